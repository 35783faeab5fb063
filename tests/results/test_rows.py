"""Rows say what was measured, or what went wrong, and their file survives what may happen to it."""

import csv
import math
import multiprocessing
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ddu
from ddu.errors import ArtifactError, DDUWarning, InputError
from ddu.results import Row, RowFile, RowKey, latest, source

FACTS = {"detector": "ddu", "network": "resnet18+sn", "data": "mnist", "seed": 3, "run": "12ab34cd56ef"}


def auroc(value: float, ood: str = "fashion_mnist", **changes) -> Row:
    return Row(**FACTS | {"ood": ood, "metric": "auroc", "value": value} | changes)


def test_the_key_is_what_was_measured_and_not_what_came_out():
    assert auroc(0.9).key == RowKey(
        "ddu", "resnet18+sn", "mnist", 3, "12ab34cd56ef", 1, "fashion_mnist", None, None, "auroc"
    )
    assert auroc(0.9, seconds=1.0).key == auroc(0.8, seconds=2.0, command="ddu compare").key
    assert auroc(0.9).key == auroc(0.9, reductions="epochs 50 -> 1", commit="abc").key


@pytest.mark.parametrize(
    "other", [{"severity": 2}, {"run": "ef56cd34ab12"}, {"members": 5}, {"labels": 100}, {"seed": 4}]
)
def test_another_severity_run_size_or_number_of_labels_is_another_question(other):
    assert auroc(0.9).key != auroc(0.9, **other).key
    assert latest([auroc(0.9), auroc(0.8, **other)]) == [auroc(0.9), auroc(0.8, **other)]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_value_that_is_no_number_is_not_ok(value):
    with pytest.raises(InputError) as caught:
        auroc(value)
    assert str(caught.value) == (
        f"A row with status 'ok' needs a metric and a finite value. Got 'auroc' and {value!r}: record the run with "
        "Row.failed and say why."
    )


def test_a_failure_says_what_went_wrong_and_has_no_value():
    row = Row.failed(RuntimeError("out of memory"), **FACTS)
    assert (row.status, row.error, row.value, row.metric) == ("failed", "RuntimeError: out of memory", None, None)
    assert Row.failed("killed", **FACTS, ood="svhn").error == "killed"
    with pytest.raises(InputError) as caught:
        Row(**FACTS, status="failed", value=0.5, error="killed")
    assert str(caught.value) == ("A row with status 'failed' needs an error and no value. Got 'killed' and 0.5.")
    with pytest.raises(InputError) as caught:
        auroc(0.5, status="done")
    assert str(caught.value) == "The status of a row is 'ok' or 'failed'. Got 'done'."


def test_the_later_of_two_rows_with_one_key_counts():
    first, other, again = auroc(0.8), auroc(0.7, ood="svhn"), auroc(0.9)
    assert latest([first, other, again]) == [again, other]


def test_a_failure_stays_until_a_later_value_makes_it_good():
    whole, on_svhn = Row.failed("no memory", **FACTS), Row.failed("no file", **FACTS, ood="svhn")
    assert latest([auroc(0.8), whole, on_svhn]) == [auroc(0.8), whole, on_svhn]
    assert latest([whole, on_svhn, auroc(0.8)]) == [on_svhn, auroc(0.8)]
    assert latest([whole, on_svhn, auroc(0.8, ood="svhn")]) == [auroc(0.8, ood="svhn")]
    elsewhere = auroc(0.8, seed=4)
    assert latest([whole, elsewhere]) == [whole, elsewhere]


def test_the_source_of_a_row_names_what_its_value_may_depend_on(monkeypatch):
    monkeypatch.setattr("ddu.provenance.commit", lambda: "0123456789ab+changes")
    found = source("ddu compare")
    assert found.keys() == {"command", "versions", "commit"}
    assert (found["command"], found["commit"]) == ("ddu compare", "0123456789ab+changes")
    assert str(found["versions"]).startswith(f"ddu {ddu.__version__}, python 3.")
    assert f"torch {torch.__version__}, numpy " in str(found["versions"])
    assert source("")["command"] is None


def test_a_failure_of_one_run_is_not_made_good_by_another():
    lost = Row.failed("no memory", **FACTS)
    other = auroc(0.8, run="ef56cd34ab12")
    assert latest([lost, other]) == [lost, other]


def test_the_subject_names_set_severity_labels_and_seed():
    assert auroc(0.9, severity=2).subject == "ddu on resnet18+sn against fashion_mnist severity 2, seed 3"
    learner = Row.failed("no memory", **FACTS, labels=1250)
    assert learner.subject == "ddu on resnet18+sn with 1,250 labels, seed 3"


FORMATS = pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
RUN = {"detector": "ddu", "network": "lenet", "data": "mnist", "run": "12ab"}


def row(seed: int, **changes) -> Row:
    return Row(**RUN | {"seed": seed, "metric": "accuracy", "value": 0.1 + seed} | changes)


def failure(seed: int, error: str) -> Row:
    return Row.failed(error, **RUN, seed=seed, command='ddu compare "a, b"')


TEXT = st.text(min_size=1, max_size=20) | st.sampled_from(
    ['"', "\n", '",\n', "\\n", "\\", "a\r\nb", "é∞", "\0", "\x85 "]
)
MAYBE = st.none() | TEXT
ROWS = st.lists(
    st.builds(
        Row,
        detector=TEXT,
        network=TEXT,
        data=TEXT,
        seed=st.integers(0, 2**63),
        run=TEXT,
        ood=MAYBE,
        severity=st.none() | st.integers(1, 5),
        labels=st.none() | st.integers(0, 2**63),
        metric=TEXT,
        value=st.floats(allow_nan=False, allow_infinity=False),
        members=st.integers(1, 9),
        reductions=MAYBE,
        command=MAYBE,
        versions=MAYBE,
        commit=MAYBE,
        seconds=st.none() | st.floats(0, 1e9),
    )
    | st.builds(lambda error: Row.failed(error, **RUN, seed=0), TEXT),
    max_size=5,
)


@FORMATS
@given(first=ROWS, second=ROWS)
@settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_appended_is_read_again_to_the_last_bit(tmp_path, suffix, first, second):
    file = RowFile(tmp_path / f"rows{suffix}")
    file.path.unlink(missing_ok=True)
    file.append(first)
    file.append(second)
    assert file.read() == first + second
    assert file.path.read_bytes().count(b"\n") == len(first + second) + (suffix == ".csv")


@FORMATS
def test_numbers_of_other_libraries_are_written_as_numbers(tmp_path, suffix):
    file = RowFile(tmp_path / f"rows{suffix}")
    file.append([row(np.int64(2), value=torch.tensor(0.5), seconds=np.float32(0.25))])
    assert file.read() == [row(2, value=0.5, seconds=0.25)]


def test_any_reader_of_csv_understands_the_file(tmp_path):
    file = RowFile(tmp_path / "new" / "folder" / "rows.csv")
    file.append([row(0), failure(1, 'no "data", sorry')])
    with file.path.open(newline="") as stream:
        ok, failed = csv.DictReader(stream)
    assert (ok["detector"], ok["metric"], ok["value"], ok["error"]) == ("ddu", "accuracy", "0.1", "")
    assert (failed["status"], failed["error"], failed["command"]) == (
        "failed",
        'no "data", sorry',
        'ddu compare "a, b"',
    )


def test_a_file_that_is_not_there_has_no_rows(tmp_path):
    file = RowFile(tmp_path / "rows.csv")
    assert file.read() == []
    assert file.done([row(0).key]) == set()
    assert not file.path.exists()


def test_done_is_what_has_a_value_and_failures_are_tried_again(tmp_path):
    file = RowFile(tmp_path / "rows.csv")
    file.append([row(0), failure(1, "no memory"), row(2)])
    assert file.done([row(seed).key for seed in (0, 1, 5)]) == {row(0).key}


@FORMATS
def test_wherever_a_killed_process_stopped_whole_rows_stay_and_the_rest_is_cut_off(tmp_path, suffix):
    rows = [row(0), failure(1, "two\nlines, é"), row(2)]
    whole = RowFile(tmp_path / f"whole{suffix}")
    whole.append(rows)
    content = whole.path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    header = 1 if suffix == ".csv" else 0
    file = RowFile(tmp_path / f"torn{suffix}")
    for cut in range(len(content)):
        file.path.write_bytes(content[:cut])
        survivors = rows[: max(0, sum(end <= cut for end in ends) - header)]
        torn = cut - max([0, *(end for end in ends if end <= cut)])
        if torn == 0:
            assert file.read() == survivors
            file.append([row(9)])
        else:
            words = f"{file.path} ends in an unfinished line of {torn} bytes, left by a process that was killed: it "
            with pytest.warns(DDUWarning) as caught:
                assert file.read() == survivors
            assert str(caught[0].message) == words + "is left out."
            assert file.path.read_bytes() == content[:cut]
            with pytest.warns(DDUWarning) as caught:
                file.append([row(9)])
            assert str(caught[0].message) == words + "was cut off."
        assert file.read() == [*survivors, row(9)]


def append_pairs(path: Path, detector: str, count: int, reports: Connection) -> None:
    file = RowFile(path)
    for seed in range(count):
        # Longer than a page, so that a write is not one step for the system either
        pair = [row(seed, detector=detector, metric=name, command="x" * 5000) for name in ("accuracy", "nll")]
        file.append(pair)
        reports.send(seed)


def start_writer(path: Path, detector: str, count: int) -> tuple[BaseProcess, Connection]:
    # A fork has torch already, which a new interpreter would import for seconds
    context = multiprocessing.get_context("fork")
    reports, sender = context.Pipe(duplex=False)
    writer = context.Process(target=append_pairs, args=(path, detector, count, sender))
    writer.start()
    sender.close()
    return writer, reports


def drain(reports: Connection) -> int:
    received = 0
    while True:
        try:
            reports.recv()
        except EOFError:
            return received
        received += 1


forks = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs fork and its file locks"
)
# Python 3.12 and later warn of any fork beside threads; these children only write files
quietly = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@forks
@quietly
@FORMATS
def test_two_processes_that_append_at_once_do_not_interleave(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    writers = [start_writer(path, detector, 40) for detector in ("a", "b")]
    for writer, reports in writers:
        assert drain(reports) == 40
        writer.join()
        assert writer.exitcode == 0
    rows = RowFile(path).read()
    for detector in ("a", "b"):
        mine = [(r.seed, r.metric) for r in rows if r.detector == detector]
        assert mine == [(seed, metric) for seed in range(40) for metric in ("accuracy", "nll")]
    # Both rows of an append stand together
    assert [replace(r.key, metric=None) for r in rows[::2]] == [replace(r.key, metric=None) for r in rows[1::2]]


@forks
@quietly
@pytest.mark.filterwarnings("ignore:.*unfinished line:ddu.errors.DDUWarning")
def test_a_process_killed_while_it_appends_loses_nothing_that_it_had_appended(tmp_path):
    file = RowFile(tmp_path / "rows.csv")
    before = 0
    for attempt in range(8):
        writer, reports = start_writer(file.path, f"attempt {attempt}", 100_000)
        reports.recv()
        time.sleep(0.003 * attempt)
        writer.kill()
        appended = 2 * (1 + drain(reports))
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        rows = file.read()
        # What was reported is there; the append under way may be there as well, or its first row
        assert before + appended <= len(rows) <= before + appended + 2
        before = len(rows)
        mine = [(r.seed, r.metric) for r in rows if r.detector == f"attempt {attempt}"]
        assert mine == [(i // 2, ("accuracy", "nll")[i % 2]) for i in range(len(mine))]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    resource = pytest.importorskip("resource", reason="only POSIX can limit the size of files")
    file = RowFile(tmp_path / "rows.csv")
    file.append([row(0)])
    before = file.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append([row(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.path.read_bytes() == before


@FORMATS
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, suffix):
    file = RowFile(tmp_path / f"notes{suffix}")
    for content in ("my notes, unfinished", "my notes\nand more\n"):
        file.path.write_text(content)
        for use in (file.read, lambda: file.append([row(0)])):
            with pytest.raises(ArtifactError) as caught:
                use()
            assert str(caught.value).startswith(f"{file.path} does not begin with ")
            assert str(caught.value).endswith(", so it was not written by this ddu: give another name.")
        assert file.path.read_text() == content


@pytest.mark.parametrize(
    ("suffix", "broken", "problem"),
    [
        (".csv", "ddu,lenet", "it has 2 cells, and there are 18 columns"),
        (
            ".csv",
            "ddu,lenet,mnist,zero,12ab,1,,,,accuracy,0.5,ok,,,,,,",
            "invalid literal for int() with base 10: 'zero'",
        ),
        (
            ".csv",
            "ddu,lenet,mnist,0,12ab,1,,,,accuracy,,ok,,,,,,",
            "A row with status 'ok' needs a metric and a finite value.",
        ),
        (".jsonl", '{"detector": "ddu"}', "it does not have the names detector, network, data, seed, run, "),
        (".jsonl", '{"detector": "ddu', "Unterminated string"),
    ],
)
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, suffix, broken, problem):
    file = RowFile(tmp_path / f"rows{suffix}")
    file.append([row(0)])
    with file.path.open("a") as stream:
        stream.write(broken + "\n")
    line = 3 if suffix == ".csv" else 2
    with pytest.raises(ArtifactError) as caught:
        file.read()
    assert str(caught.value).startswith(f"Line {line} of {file.path} is not a row: {problem}")
    assert str(caught.value).endswith("Fix the line, or start a new file.")


def test_bytes_that_are_no_text_are_not_misread(tmp_path):
    file = RowFile(tmp_path / "rows.csv")
    file.append([row(0)])
    file.path.write_bytes(file.path.read_bytes().replace(b"lenet", b"le\xffet"))
    with pytest.raises(ArtifactError, match=r"Line 2 of .* is not a row: 'utf-8' codec can't decode byte 0xff"):
        file.read()


def test_an_error_text_that_is_not_quite_text_is_still_recorded(tmp_path):
    file = RowFile(tmp_path / "rows.csv")
    file.append([failure(0, "no file caf\udce9")])
    assert file.read() == [failure(0, "no file caf\\udce9")]


def test_another_ending_is_refused():
    with pytest.raises(InputError) as caught:
        RowFile("results.json")
    assert str(caught.value) == ("Rows are kept in .csv and .jsonl files. Got 'results.json': give it such a name.")


@FORMATS
def test_rows_of_another_kind_are_not_taken_for_ours(tmp_path, suffix):
    """Such as those without the column `run`, which an earlier ddu wrote."""
    path = tmp_path / f"rows{suffix}"
    RowFile(path).append([row(0)])
    other = path.read_text().replace("seed,run,", "seed,").replace('{"detector"', '{"place"')
    path.write_text(other)
    for use in (RowFile(path).read, lambda: RowFile(path).append([row(1)])):
        with pytest.raises(ArtifactError, match=r" does not begin with .*, so it was not written by this ddu: give "):
            use()
    assert path.read_text() == other
