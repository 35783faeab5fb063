"""The site is built without a warning, is whole, and loads nothing from other hosts."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from scripts.site_hooks import example_page
from tests.docs.pages import PAGES, ROOT

# What a browser loads by itself
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Html(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADED.get(tag) in values and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Html]:
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return {page: Html(page.read_text()) for page in folder.rglob("*.html")}


@pytest.mark.slow
def test_every_page_is_in_the_site(site):
    names = {page.stem for page in site}
    assert names >= {page.stem for page in PAGES} | {"own_model", "CONTRIBUTING", "SECURITY"}


@pytest.mark.slow
def test_links_within_the_site_lead_to_pages_and_anchors(site):
    for page, html in site.items():
        if page.name == "404.html":  # of a server: its links begin at the root
            continue
        for link in html.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page.name}: {link}"
            if parts.fragment and target in site:
                assert unquote(parts.fragment) in site[target].anchors, f"{page.name}: {link}"


@pytest.mark.slow
def test_pages_and_styles_load_nothing_from_other_hosts(site):
    loaded = {one for html in site.values() for one in html.loaded}
    assert len(loaded) > 5
    assert [one for one in loaded if urlsplit(one).netloc] == []
    folder = next(page.parent for page in site if page.name == "404.html")
    styles = [path.read_text() for path in folder.rglob("*.css")]
    assert styles
    assert [url for style in styles for url in re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", style)] == []


@pytest.mark.slow
def test_examples_of_docstrings_are_shown_as_code(site):
    folder = next(page.parent for page in site if page.name == "404.html")
    text = (folder / "api" / "metrics.html").read_text()
    assert "&gt;&gt;&gt;" in text
    assert "<blockquote>" not in text


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    named = set(re.findall(r"[\w/-]+\.md", text))
    examples = {f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    roots = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert named == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES} | examples | roots


def test_an_example_becomes_a_page():
    page = example_page('"""A title.\n\nWords.\n\n    python it.py\n"""\n\nprint(1)\n')
    assert page == "# A title\n\nWords.\n\n    python it.py\n\n```python\nprint(1)\n```\n"
