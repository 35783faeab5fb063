"""Progress, checkpoints and interruptions of a training."""

import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddu.errors import ArtifactError, CheckpointWarning, InputError, TrainingError
from ddu.training import CrossEntropy, Objective, Recipe, _callbacks, fit

sys.path.insert(0, str(Path(__file__).parent))
from moons import EPOCHS, Forgetful, network, points, same, train

MOONS = Path(__file__).parent / "moons.py"


# Progress


def test_off_a_terminal_there_are_lines_with_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    monkeypatch.setattr(_callbacks, "_SECONDS_PER_LINE", 0)
    train(None, epochs=3, progress=None)
    number = r"\d+\.\d"
    shown = rf"loss {number}+, accuracy {number}%, validation {number}%"
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    for epoch, line in enumerate(lines[:2], start=1):
        assert re.fullmatch(rf"epoch {epoch} of 3: {shown}, \d+ s left", line)
    assert re.fullmatch(rf"epoch 3 of 3: {shown}", lines[2])


def test_short_epochs_are_one_line_and_no_progress_is_none(capsys, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    fit(network(), points(), recipe=Recipe(epochs=4, batch_size=96))
    out, err = capsys.readouterr()
    assert re.fullmatch(r"epoch 4 of 4: loss \d\.\d{3}, accuracy \d+\.\d%\n", err)
    fit(network(), points(), recipe=Recipe(epochs=4, batch_size=96), progress=False)
    assert capsys.readouterr().err == out == ""


@pytest.mark.parametrize(("progress", "terminal"), [(True, False), (None, True)])
def test_a_bar_is_shown_on_a_terminal_or_when_asked_for(progress, terminal, capsys, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: terminal)
    fit(network(), points(), recipe=Recipe(epochs=4, batch_size=96), progress=progress)
    assert "4/4 [" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [0, 60])
def test_progress_is_reported_to_the_caller_and_changes_nothing(seconds, capsys, monkeypatch):
    monkeypatch.setattr(_callbacks, "_SECONDS_PER_REPORT", seconds)
    reports = []
    reported = train(None, epochs=2, progress=True, on_progress=lambda share, note: reports.append((share, note)))
    assert capsys.readouterr() == ("", "")
    shares, notes = zip(*reports, strict=True)
    assert sorted({*shares}) == ([0.5, 1.0] if seconds else [step / 12 for step in range(1, 13)])
    assert list(shares) == sorted(shares)
    shown = r"loss \d\.\d{3}, accuracy \d+\.\d%"
    assert all(re.fullmatch(rf"epoch [12] of 2, {shown}(, validation \d+\.\d%)?", note) for note in notes)
    assert notes[-1].startswith("epoch 2 of 2, ")
    last = reported.history[-1]
    assert notes[-1].endswith(f"accuracy {last['train_accuracy']:.1%}, validation {last['val_accuracy']:.1%}")
    assert same(reported.model, train(None, epochs=2).model)


def test_an_epoch_without_accuracy_is_reported_by_its_losses():
    class Distance(Objective):
        def loss(self, model, inputs, labels):
            return (model(inputs) - inputs).square().mean(), None

    notes = []
    options = {"recipe": Recipe(epochs=1), "objective": Distance()}
    fit(network(), points(), points(64, 1), on_progress=lambda share, note: notes.append(note), **options)
    (note,) = notes
    assert re.fullmatch(r"epoch 1 of 1, loss \d\.\d{3}, validation \d\.\d{3}", note)


def test_what_the_caller_raises_ends_the_training():
    def cancel(share, note):
        raise RuntimeError(note)

    with pytest.raises(RuntimeError, match=r"^epoch 1 of 2, loss "):
        train(None, epochs=2, on_progress=cancel)


# Interruptions


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train(folder), folder


class _Stopping(CrossEntropy):
    """Stops in the second batch of an epoch."""

    def __init__(self, epoch, stop):
        super().__init__()
        self.epoch, self.stop, self.batches = epoch, stop, 0

    def on_epoch_start(self, model):
        self.epoch, self.batches = self.epoch - 1, 0

    def after_step(self, model, inputs, labels):
        self.batches += 1
        if (self.epoch, self.batches) == (0, 2):
            self.stop()


def _fail():
    raise RuntimeError("stopped")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a training with three finished epochs, to be copied."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(RuntimeError, match="stopped"):
        train(folder, objective=_Stopping(4, _fail))
    return folder


@pytest.fixture
def resumable(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "moved")


def _epochs(folder):
    with (Path(folder) / "history.csv").open() as file:
        return len(list(csv.DictReader(file)))


def _assert_ends_like(folder, uninterrupted):
    """Resumes in a folder, and compares everything with a training that was never interrupted."""
    resumed, (whole, expected) = train(folder), uninterrupted
    assert same(resumed.model, whole.model)
    assert [row | {"seconds": 0} for row in resumed.history] == [row | {"seconds": 0} for row in whole.history]
    assert _epochs(folder) == EPOCHS
    for name in ("best.ckpt", "last.ckpt", "previous.ckpt"):
        ours, theirs = (torch.load(path / name, weights_only=True) for path in (Path(folder), expected))
        assert ours["epoch"] == theirs["epoch"]
        assert all(torch.equal(ours["state_dict"][name], theirs["state_dict"][name]) for name in theirs["state_dict"])
    assert {path.name for path in Path(folder).iterdir()} == {path.name for path in expected.iterdir()}


def test_a_training_that_failed_ends_with_the_same_weights(resumable, uninterrupted):
    assert _epochs(resumable) == 3
    _assert_ends_like(resumable, uninterrupted)


def test_the_best_epoch_is_remembered_where_the_folder_was_moved(tmp_path):
    options = {"recipe": "two_moons", "batch_size": 16, "epochs": 4, "select": "best", "progress": False}

    class StoppingLater(Forgetful):
        def on_epoch_start(self, model):
            super().on_epoch_start(model)
            if self.epoch == 4:
                _fail()

    with pytest.raises(RuntimeError, match="stopped"):
        fit(network(), points(), points(64, 1), objective=StoppingLater(), output=tmp_path / "here", **options)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = fit(network(), points(), points(64, 1), objective=Forgetful(3), output=tmp_path / "there", **options)
    assert moved.epoch in (1, 2)
    scores = [row["val_accuracy"] for row in moved.history]
    assert scores[moved.epoch - 1] == max(scores) > scores[3]
    assert all(float(p.detach().abs().max()) > 0 for p in moved.model.parameters())


@pytest.mark.parametrize("content", [b"", b"PK", b"no checkpoint", None], ids=["empty", "start", "text", "half"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over_for_the_one_before(content, resumable, uninterrupted):
    last = resumable / "last.ckpt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2] if content is None else content)
    with pytest.warns(
        CheckpointWarning, match=r"last\.ckpt cannot be read\. Resuming from previous\.ckpt, after epoch 2\.$"
    ):
        _assert_ends_like(resumable, uninterrupted)


def test_a_broken_checkpoint_never_replaces_the_one_before_it(resumable):
    (resumable / "last.ckpt").write_bytes(b"")
    before = (resumable / "previous.ckpt").read_bytes()
    with pytest.warns(CheckpointWarning), pytest.raises(RuntimeError, match="stopped"):
        train(resumable, objective=_Stopping(1, _fail))
    assert not (resumable / "last.ckpt").exists()
    assert (resumable / "previous.ckpt").read_bytes() == before


def test_without_a_readable_checkpoint_the_way_to_start_again_is_named(resumable, uninterrupted):
    for name in ("last.ckpt", "previous.ckpt"):
        (resumable / name).write_bytes(b"")
    with pytest.raises(
        ArtifactError,
        match=r"^No checkpoint in .*moved can be read\. "
        r"Delete last\.ckpt and previous\.ckpt to start again from epoch 1\.$",
    ):
        train(resumable)
    for name in ("last.ckpt", "previous.ckpt"):
        (resumable / name).unlink()
    _assert_ends_like(resumable, uninterrupted)


def test_a_best_epoch_that_cannot_be_read_is_named_before_the_next_epoch(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        train(tmp_path, select="best", objective=_Stopping(2, _fail))
    (tmp_path / "best.ckpt").write_bytes(b"")
    with pytest.raises(
        ArtifactError,
        match=r"^The checkpoint of the best epoch, .*best\.ckpt, cannot be read\. "
        r"Delete last\.ckpt to start again from epoch 1\.$",
    ):
        train(tmp_path, select="best")
    assert _epochs(tmp_path) == 1


def test_a_full_disk_leaves_the_last_checkpoint(resumable, uninterrupted):
    size, (soft, hard) = (resumable / "last.ckpt").stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.raises(
            TrainingError,
            match=r"^Cannot write to .*moved: File too large\. "
            r"The last checkpoint is kept: free some space and run the same command again to resume\.$",
        ):
            train(resumable)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _assert_ends_like(resumable, uninterrupted)


def test_what_worker_processes_draw_does_not_depend_on_interruptions(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        train(tmp_path, epochs=2, workers=1, objective=_Stopping(2, _fail))
    resumed, whole = train(tmp_path, epochs=2, workers=1), train(None, epochs=2, workers=1)
    assert same(resumed.model, whole.model)


def test_a_finished_training_is_not_repeated(uninterrupted):
    whole, folder = uninterrupted
    again = train(folder)
    assert same(again.model, whole.model)
    assert again.history == whole.history


def test_another_recipe_cannot_resume_a_checkpoint(uninterrupted):
    with pytest.raises(
        InputError,
        match=r"^The training to resume has lr=0\.001, and this one has lr=0\.1: use the same, or another folder\.$",
    ):
        train(uninterrupted[1], lr=0.1)


def test_logs_are_left_for_tensorboard(uninterrupted):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    whole, folder = uninterrupted
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("val_accuracy")]
    assert logged == pytest.approx([row["val_accuracy"] for row in whole.history])


# Signals


@pytest.fixture
def sigterm():
    """A process that SIGTERM ends."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_the_program_with_its_code_and_a_line(sigterm, tmp_path, uninterrupted, capsys):
    with pytest.raises(SystemExit) as caught:
        train(tmp_path, objective=_Stopping(3, lambda: signal.raise_signal(signal.SIGTERM)))
    assert caught.value.code == 143
    assert capsys.readouterr().err == "Terminated in epoch 3 of 5. Run the same command again to resume.\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    _assert_ends_like(tmp_path, uninterrupted)


def test_sigterm_is_left_to_a_caller_who_handles_it(sigterm):
    calls = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    train(None, epochs=1, objective=_Stopping(1, lambda: signal.raise_signal(signal.SIGTERM)))
    assert calls == [signal.SIGTERM]


def test_control_c_stays_a_keyboard_interrupt(tmp_path, uninterrupted):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, objective=_Stopping(3, lambda: signal.raise_signal(signal.SIGINT)))
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    _assert_ends_like(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "arguments", "code", "line"),
    [
        (signal.SIGKILL, [], -signal.SIGKILL, ""),
        (signal.SIGINT, [], -signal.SIGINT, "KeyboardInterrupt"),
        (signal.SIGTERM, [], 143, "Terminated in epoch 3 of 5. Run the same command again to resume."),
        (signal.SIGTERM, ["--thread"], -signal.SIGTERM, ""),
    ],
    ids=["SIGKILL", "SIGINT", "SIGTERM", "SIGTERM in a thread"],
)
def test_a_process_ended_by_a_signal_is_resumed_to_the_same_weights(
    how, arguments, code, line, uninterrupted, tmp_path
):
    command = [sys.executable, MOONS, tmp_path, "--paused-in", "3", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "paused\n", process.stderr.read()
        process.send_signal(how)
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == code
    assert errors.splitlines()[-1:] == ([line] if line else [])
    assert how == signal.SIGINT or len(errors.splitlines()) <= 1
    assert _epochs(tmp_path) == 2
    _assert_ends_like(tmp_path, uninterrupted)
