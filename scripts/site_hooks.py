"""Hooks of mkdocs: files from outside docs/ become part of the site, and links to them lead there.

A file `docs/PAGE.md` of the repository is the page `PAGE.md`; every other keeps its path. Examples become pages: the
docstring is the text, and the program follows it. A link is resolved in the repository, where it works too, and then
rewritten; a file that a page links to is taken along.
"""

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository's root."""

LINK = re.compile(r"(\]\()(?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")
"""A link or picture of Markdown that leads to a file."""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds the examples, pages of the root, and what pages link to."""
    from mkdocs.structure.files import File

    for example in sorted((ROOT / "examples").glob("*.py")):
        name = f"examples/{example.stem}.md"
        files.append(File.generated(config, name, content=example_page(example.read_text())))
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for file in list(files.documentation_pages()):
        for _, target, _ in LINK.findall(file.content_string):
            path = site_path(linked(repository_path(file.src_uri), target))
            if path not in files.src_uris and (ROOT / path).is_file():
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Rewrites links between files of the repository as links between pages."""
    here = page.file.src_uri

    def rewrite(link: re.Match[str]) -> str:
        path = site_path(linked(repository_path(here), link[2]))
        return f"{link[1]}{os.path.relpath(path, os.path.dirname(here) or '.')}{link[3] or ''})"

    return LINK.sub(rewrite, markdown)


def example_page(program: str) -> str:
    """An example as a page: its docstring, then its code."""
    module = ast.parse(program)
    docstring = ast.get_docstring(module)
    assert docstring is not None
    title, _, text = docstring.partition("\n")
    code = "\n".join(program.splitlines()[module.body[0].end_lineno :]).strip()
    return f"# {title.rstrip('.')}\n{text}\n\n```python\n{code}\n```\n"


def repository_path(page: str) -> str:
    """Where a page of the site is in the repository."""
    return page if page in PAGES or page.startswith("examples/") else f"docs/{page}"


def site_path(path: str) -> str:
    """Where a file of the repository is in the site."""
    example = re.fullmatch(r"examples/(\w+)\.py", path)
    return f"examples/{example[1]}.md" if example else path.removeprefix("docs/")


def linked(file: str, target: str) -> str:
    """The path of a link's target in the repository."""
    return os.path.normpath(PurePosixPath(file).parent / target)
