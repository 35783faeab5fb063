"""The pages of the documentation: their Python blocks, run from top to bottom, and their links.

A block that cannot run has a line `<!-- not run: reason -->` above it; `test_code.py` counts these. Names that a page
takes as given, such as `model`, are prepared in `prepared.py`.
"""

import doctest
import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```python\n(?P<code>.*?)^```", flags=re.DOTALL | re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block of Python.

    Attributes:
        page: The file that it stands in.
        line: Of its first line of code.
        code: Without the fences.
        reason: Why it cannot run; None where it can.
    """

    page: Path
    line: int
    code: str
    reason: str | None

    def run(self, names: dict[str, Any]) -> str:
        """Runs it with the names of the blocks before it, and returns what it prints."""
        printed = io.StringIO()
        with redirect_stdout(printed):
            if self.code.lstrip().startswith(">>>"):
                test = doctest.DocTestParser().get_doctest(
                    self.code, names, self.page.name, str(self.page), self.line - 1
                )
                failed = doctest.DocTestRunner().run(test, clear_globs=False).failed
                names.update(test.globs)
                assert failed == 0, printed.getvalue()
            else:  # the lines above it are empty, so that an error tells its line in the page
                exec(compile("\n" * (self.line - 1) + self.code, str(self.page), "exec"), names)
        return printed.getvalue()


def blocks(page: Path) -> list[Block]:
    """All Python blocks of a page, in order."""
    text = page.read_text()
    found = FENCE.finditer(text)
    return [Block(page, text[: one.start("code")].count("\n") + 1, one["code"], one["reason"]) for one in found]


def run_page(page: Path, names: dict[str, Any], replaced: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs the blocks of a page in the current folder, and returns the names that are then defined.

    Args:
        page: The page.
        names: What it takes as given.
        replaced: Words in the code that stand for something else here, such as the address of a server.
    """
    names = {"__name__": "page"} | names
    for block in blocks(page):
        code = block.code
        for word, other in (replaced or {}).items():
            code = code.replace(word, other)
        if block.reason is None:
            Block(page, block.line, code, None).run(names)
    return names
