"""`ddu compare` and `ddu evaluate` as a user meets them."""

import numpy as np
import pytest

YAML = """
data: two_moons
ood: [npz:{plane}]
limit: 1500
model: resffn2_16
recipe: {{name: two_moons, epochs: 1}}
detectors: [ddu, softmax]
"""


@pytest.fixture
def plane(tmp_path):
    points = np.random.default_rng(0).uniform(-4, 4, (300, 2)).astype(np.float32)
    np.savez(tmp_path / "plane.npz", x=points, y=np.zeros(300, dtype=np.int64))
    return tmp_path / "plane.npz"


@pytest.fixture
def config(tmp_path, plane):
    (tmp_path / "moons.yaml").write_text(YAML.format(plane=plane))
    return tmp_path / "moons.yaml"


def test_a_comparison_prints_its_table_and_leaves_a_folder(command, config, plane, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    folder = tmp_path / "comparison"
    code, out, err = command("compare", str(config), "--output", str(folder))
    assert code == 0
    assert "Train ddu-seed0, 1 of 2" in err
    assert "Measure softmax on resffn2_16, seed 0" in err
    assert out.count("time, ratio ↓") == 2  # of training and of inference
    assert out.endswith(f"{folder} has rows.csv, table.md, table.csv, table.tex, figures, scores and networks.\n")
    names = {path.name for path in folder.iterdir()}
    tables = {"table.md", "table.csv", "table.tex"}
    assert names == {"comparison.json", "figures", "networks", "rows.csv", "scores"} | tables
    assert f"ddu compare {config} --output {folder}" in (folder / "rows.csv").read_text()

    run = str(folder / "networks" / "ddu-seed0")
    code, out, err = command("evaluate", run, "--ood", f"npz:{plane}", "--detectors", "energy", "knn")
    assert code == 0
    assert err.splitlines() == ["Measure energy, knn"]
    assert [line.split()[0] for line in out.splitlines() if line.startswith((" energy ", " knn "))] == ["energy", "knn"]
    assert out.endswith(f"{run} has rows.csv, table.md, table.csv, table.tex, figures and scores.\n")
    figures = {path.name for path in (folder / "networks" / "ddu-seed0" / "figures").iterdir()}
    assert figures >= {"roc-plane.png", "scores-energy.png", "scores-knn.png", "reliability-energy.png"}


def test_mistakes_of_a_comparison_are_one_line(command, config, tmp_path):
    for old, new, message in [
        ("limit: 1500", "limits: 1500", "A comparison has no key 'limits'. Did you mean 'limit'?\n"),
        ("softmax", "sofmax", "There is no method 'sofmax'. Did you mean 'softmax'?\n"),
        ("epochs", "epoch", "A recipe has no field 'epoch'. Did you mean 'epochs'?\n"),
        ("data: two_moons", "data:", "The data of a comparison must be the name of a data set. Got None instead.\n"),
    ]:
        (tmp_path / "wrong.yaml").write_text(config.read_text().replace(old, new))
        code, _, err = command("compare", str(tmp_path / "wrong.yaml"), "-o", str(tmp_path / "new"))
        assert (code, err) == (1, message)
        assert not (tmp_path / "new").exists()


def test_mistakes_of_an_evaluation_are_one_line(command, tmp_path, plane):
    code, _, err = command("evaluate", str(tmp_path), "--ood", f"npz:{plane}")
    assert (code, err) == (
        1,
        f"There is no finished run in {tmp_path}: it has no run.json. `ddu train` writes one.\n",
    )


def test_help_has_examples(command):
    _, out, _ = command("evaluate", "--help")
    assert "ddu evaluate runs/mnist --ood fashion_mnist" in out
    _, out, _ = command("compare", "--help")
    assert "ddu compare examples/compare_mnist.yaml --output runs/compare" in out
