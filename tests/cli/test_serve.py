"""`ddu serve` as a user starts and stops it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES

RUN = "import sys; sys.argv[0] = 'ddu'; from ddu.cli import main; main()"
SPEC = RunSpec("resffn2_32", "two_moons", RECIPES["two_moons"].with_changes(epochs=1), limit=1500)


def test_something_to_serve_must_be_named(command):
    for arguments in ((), ("runs/a", "--demo")):
        code, _, complaint = command("serve", *arguments)
        assert (code, complaint) == (
            1,
            "Name what to serve, the folder of a run for instance; or --demo, and nothing else.\n",
        )


def test_a_folder_that_does_not_exist_is_named_and_the_port_is_free_again(command, tmp_path):
    code, _, complaint = command("serve", str(tmp_path / "none"), "--port", "0")
    assert code == 1
    assert complaint.startswith(f"There is no folder {tmp_path / 'none'}")


def test_help_has_examples(command):
    code, printed, _ = command("serve", "--help")
    assert code == 0
    for words in ("ddu serve --demo", "--token", "curl -F file=@digit.png", "DDU_TOKEN"):
        assert words in printed


def test_a_missing_extra_is_named(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert command("serve", "run") == (
        1,
        "",
        "ddu serve needs the 'serve' extra: pip install 'ddu[serve]', or in a clone: pip install '.[serve]'.\n",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run, trained for an epoch."""
    run = train_run(SPEC, tmp_path_factory.mktemp("serve") / "moons")
    assert run is not None
    return run.folder


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_run_is_served_until_a_signal_and_then_stops_with_a_word(folder: Path, stop):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "serve", str(folder), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200", "DDU_TOKEN": "secret"},
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line
        assert "Serving moons on " in line
        headers = {"Authorization": "Bearer secret"}
        url = f"{address[0]}/v1/predict"
        deadline = time.monotonic() + 30
        while True:  # the socket listens, and answers once the application has begun
            answer = requests.post(url, json={"inputs": [[0.5, 0.2], [90.0, 90.0]]}, headers=headers, timeout=30)
            if answer.status_code == 200 or time.monotonic() > deadline:
                break
        verdicts = [row["verdict"] for row in answer.json()["predictions"]]
        assert verdicts[1] == "out_of_distribution"
        assert requests.post(url, json={"inputs": [[0.5, 0.2]]}, timeout=30).status_code == 401
        found = []

        def ask() -> None:
            with suppress(requests.ConnectionError):  # nobody is there any more
                while True:
                    body = {"inputs": [[0.5, 0.2]]}
                    found.append(requests.post(url, json=body, headers=headers, timeout=30).status_code)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        process.send_signal(stop)
        _, rest = process.communicate(timeout=60)
        for thread in threads:
            thread.join(timeout=30)
        assert process.returncode == 0
        assert rest == "Stopped.\n"
        assert set(found) == {200}
    finally:
        process.kill()
        process.wait()
