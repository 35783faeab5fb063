"""What an experiment is: a specification that measures its rows and writes its page."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ddu.results import Row

ROWS = "rows.csv"
"""The file of rows in the folder of an experiment."""

Say = Callable[[str], None]
"""Is told what is being done."""


class Experiment(Protocol):
    """Specification -> rows -> page. The specification is a frozen dataclass: everything that decides the values."""

    def measure(
        self,
        folder: str | os.PathLike[str],
        *,
        data_root: str | os.PathLike[str] | None = None,
        command: str = "",
        say: Say = lambda words: None,
    ) -> list[Row]:
        """Measures what is missing, appends it to `rows.csv` in the folder, and returns the rows of the experiment.

        An experiment that was interrupted is resumed by the same call.
        """
        ...

    def write_page(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes tables and figures of the rows in a folder beside them; nothing is measured."""
        ...
