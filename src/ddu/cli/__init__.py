"""The `ddu` command: one file per command; they parse, call and print."""

import inspect
import os
import re
import sys
import warnings
from typing import Any

from ddu.errors import DDUError, DDUWarning
from ddu.messages import require

_INTERRUPTED = 130
_usually = warnings.formatwarning
_told: set[str] = set()  # notes of this command

# A name before "=", and not that of an option, a path or an attribute
_NAMED = re.compile(r"(?<![-\w./])([a-z_]+)=")
# These have options, or need none
_OPTIONS = {"false_alarm_rate", "seed", "class_names", "progress", "ranks"}


def main() -> None:
    """Runs the command line. What goes wrong in a way we know is said in one line, without a traceback."""
    warnings.formatwarning = _plainly
    _told.clear()
    try:
        for module in ("typer", "rich"):
            require(module, extra="cli", purpose="The ddu command")
        from ddu.cli._app import make_app

        make_app(sys.argv[1:])()
    except DDUError as error:
        _complain(_for_the_command_line(str(error)))
        sys.exit(1)
    except KeyboardInterrupt:
        _complain("Interrupted.")
        sys.exit(_INTERRUPTED)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # what typer makes of Ctrl-C
            _complain("Interrupted.")
        raise


def _plainly(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
    """A warning of ours without the line of code that gave it; others as usual."""
    if not issubclass(category, DDUWarning):
        return _usually(message, category, *place, **more)
    return _coloured(f"Warning: {_for_the_command_line(str(message))}", 33) + "\n"


def _for_the_command_line(message: str) -> str:
    """A message, and once for all that name the same arguments of Python what to do about those."""
    note = note_on_arguments(message)
    if note is None or note in _told:
        return message
    _told.add(note)
    return f"{message}\n{note}"


def note_on_arguments(message: str) -> str | None:
    """How somebody on the command line sets the arguments that a message names; None where it names none.

    >>> print(note_on_arguments("Give more samples, or use covariance='shared' or pca=."))
    No option sets covariance= or pca=: fit such a detector in Python, save it, and name its folder with --detector.
    >>> note_on_arguments("--set lr=0.1 is no option of runs/seed=1.")
    """
    words = dict.fromkeys(_NAMED.findall(message))
    if not words:
        return None
    from ddu.density import GaussianDensity
    from ddu.detectors import DDU

    functions = (DDU.__init__, DDU.calibrate, GaussianDensity.__init__)
    arguments = {name for function in functions for name in inspect.signature(function).parameters} - _OPTIONS
    found = [f"{name}=" for name in words if name in arguments]
    if not found:
        return None
    *others, last = found
    named = f"{', '.join(others)} or {last}" if others else last
    return f"No option sets {named}: fit such a detector in Python, save it, and name its folder with --detector."


def _complain(message: str) -> None:
    print(_coloured(message, 31), file=sys.stderr)


def _coloured(message: str, colour: int) -> str:
    on_screen = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return f"\033[{colour}m{message}\033[0m" if on_screen else message
