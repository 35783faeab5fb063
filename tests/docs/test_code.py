"""Every Python block of the documentation runs; those of docs/extending.md in tests/test_extending.py."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, run_page
from tests.docs.prepared import PREPARED, prepared

WITH_CODE = [page for page in PAGES if blocks(page)]
SLOW = {"active-learning.md", "corruptions.md", "exporting.md", "training.md"}
NOT_RUN = {"dirty-mnist.md": 1, "exporting.md": 1}
"""How many blocks of a page cannot run; each says why."""


def parameters() -> list[object]:
    slow = pytest.mark.slow
    return [
        pytest.param(page, id=page.stem, marks=slow if page.name in SLOW else ())
        for page in WITH_CODE
        if page.stem != "extending"
    ]


@pytest.fixture
def page_folder(tmp_path, monkeypatch) -> Path:
    """An empty folder, which is the data root too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDU_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", parameters())
@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # networks of a second's training, few samples
def test_the_code_of_a_page_runs(page, page_folder):
    with prepared(page) as (names, replaced):
        run_page(page, names, replaced)


def test_only_these_blocks_are_not_run():
    marked = {page.name: sum(block.reason is not None for block in blocks(page)) for page in WITH_CODE}
    assert {name: count for name, count in marked.items() if count} == NOT_RUN


def test_the_blocks_of_the_documentation_are_found():
    found = sum(len(blocks(page)) for page in PAGES)
    assert found == sum(page.read_text().count("```python\n") for page in PAGES)
    assert found > 35


def test_nothing_is_prepared_for_a_page_without_code():
    assert PREPARED.keys() <= {page.name for page in WITH_CODE}
    assert {page.name for page in WITH_CODE} >= SLOW


def test_the_quick_start_has_ten_lines():
    (code,) = [block.code for block in blocks(ROOT / "docs/index.md")]
    assert len(code.splitlines()) <= 10
