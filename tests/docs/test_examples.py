"""The examples run, and read as articles."""

import ast
import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# What an example has to show, beside ending well
SHOWN = {
    "choosing_what_to_label": "epistemic {20:",
    "monitoring_a_stream": "at input",
    "own_model": "photographs {'out_of_distribution': '100.0%'}",
    "pretrained_backbone": "all stages",
    "streaming_density": "corrected",
    "table": "flagged at a false-alarm rate of 5%",
    "text_classifier": "out_of_distribution",
}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example, tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert SHOWN[example.stem] in done.stdout
    assert "Warning" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_begins_with_an_article_and_its_command(example):
    docstring = ast.get_docstring(ast.parse(example.read_text()))
    assert docstring is not None
    title, _, text = docstring.partition("\n\n")
    assert len(title) < 100
    assert len(text.split()) > 40
    assert text.endswith(f"    python examples/{example.name}")
