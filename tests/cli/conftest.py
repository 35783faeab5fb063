"""The command line inside this process."""

import sys
from collections.abc import Callable

import pytest

from ddu.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch, capsys) -> Command:
    """Runs `ddu` with arguments: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddu", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return run
