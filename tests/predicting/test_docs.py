"""docs/predicting.md does what it shows."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from ddu import data
from ddu.cli import main
from ddu.predicting.tables import COLUMNS

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained

PAGE = (Path(__file__).parents[2] / "docs" / "predicting.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # the network of the page is not trained
def test_the_commands_of_the_page_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    (module,) = blocks("python")
    Path("my_models.py").write_text(module)
    np.save("digits.npy", data.load("digits", "test").inputs[:10])
    for command in "".join(blocks("sh")).splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0, (command, capsys.readouterr())
    rows = Path("rows.csv").read_text().splitlines()
    assert len(rows) == 11
    assert rows[0].startswith(",".join(COLUMNS) + ",prob_")
    assert len(Path("rows.jsonl").read_text().splitlines()) == 10


def test_the_page_names_every_column():
    assert ", ".join(f"`{name}`" for name in COLUMNS) in PAGE
