"""Links between the files of the repository lead somewhere, with and without an anchor."""

import re
from pathlib import Path

import pytest

from scripts.site_hooks import LINK
from tests.docs.pages import PAGES, ROOT

FILES = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]
SAME_PAGE = re.compile(r"\]\((#[^)\s]+)\)")
CODE = re.compile(r"```.*?```|^    .*?$|`[^`\n]*`", flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub and the site make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = [heading.strip().lower() for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[tuple[Path, str]]:
    """The file and the anchor of each link in a page, without those in code."""
    text = CODE.sub("", page.read_text())
    others = [((page.parent / target).resolve(), anchor) for _, target, anchor in LINK.findall(text)]
    return others + [(page, anchor) for anchor in SAME_PAGE.findall(text)]


@pytest.mark.parametrize("page", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_to_files_and_headings(page):
    for file, anchor in links(page):
        assert file.exists(), f"{page.name} links to {file}"
        if anchor and file.suffix == ".md":
            assert anchor[1:] in anchors(file), f"{page.name} links to {anchor} of {file.name}"


def test_there_are_links_to_check():
    found = [link for page in FILES for link in links(page)]
    assert len(found) > 60
    assert sum(bool(anchor) for _, anchor in found) > 10
