"""What an experiment is: a specification that measures its rows and writes its page."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ddu.data.registry import Root
from ddu.files import FilePath
from ddu.results import Row

ROWS = "rows.csv"
"""The file of rows in the folder of an experiment."""

Say = Callable[[str], None]
"""Is told what is being done."""


def silent(words: str) -> None:
    """Says nothing."""


class Experiment(Protocol):
    """Specification -> rows -> page. The specification is a frozen dataclass: everything that decides the values."""

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Measures what is missing, appends it to `rows.csv` in the folder, and returns the rows of the experiment.

        An experiment that was interrupted is resumed by the same call.
        """
        ...

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes tables and figures of the rows in a folder beside them; nothing is measured."""
        ...
