"""The `ddu` command: one file a command; they parse, call and print."""

import os
import sys

from ddu.errors import DDUError
from ddu.extras import require

_INTERRUPTED = 130


def main() -> None:
    """Runs the command line. What goes wrong in a way we know is said in one line, without a traceback."""
    try:
        for module in ("typer", "rich"):
            require(module, extra="cli", purpose="The ddu command")
        from ddu.cli._app import make_app

        make_app(sys.argv[1:])()
    except DDUError as error:
        _complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        _complain("Interrupted.")
        sys.exit(_INTERRUPTED)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # what typer makes of Ctrl-C
            _complain("Interrupted.")
        raise


def _complain(message: str) -> None:
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[31m{message}\033[0m" if coloured else message, file=sys.stderr)
