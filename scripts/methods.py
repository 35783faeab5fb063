"""Writes the table of methods in docs/comparing.md from the registry.

python scripts/methods.py
"""

import re
from pathlib import Path

from ddu.detectors.registry import METHODS

PAGE = Path(__file__).parents[1] / "docs/comparing.md"
_BLOCK = re.compile(r"(<!-- methods -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def methods_table() -> str:
    """The registered methods as a table in Markdown."""
    head = "| name | score | kind of network | networks |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{method.name}` | {method.summary} | `{method.network.name}` | {method.members} |\n"
        for method in METHODS.values()
    )


def with_table(page: str) -> str:
    """The page with the table of today."""
    return _BLOCK.sub(lambda match: f"{match[1]}{methods_table()}{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
