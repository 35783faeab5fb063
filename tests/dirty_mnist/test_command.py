"""`ddu data make dirty-mnist` as a user meets it. It is beside the tests of what it calls, for the small set's sake."""

import shutil

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from ddu.cli import _make_dirty_mnist
from ddu.dirty_mnist import SCALES, measure_quality
from ddu.dirty_mnist.fitting import adam


@pytest.fixture
def run(monkeypatch, tiny, train_digits, test_digits):
    """Runs the command on the small digits, at the tiny scale."""
    monkeypatch.setattr(
        _make_dirty_mnist.data, "load", lambda name, split, root: {"train": train_digits}.get(split, test_digits)
    )
    monkeypatch.setitem(SCALES, "cpu", tiny)
    monkeypatch.setenv("COLUMNS", "100")
    app = typer.Typer()
    app.command()(_make_dirty_mnist.dirty_mnist)
    return lambda *arguments: CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_run_says_what_became_of_the_mixtures_and_draws_a_sheet(run, made, tmp_path):
    folder = shutil.copytree(made / "stages", tmp_path / "set" / "stages").parent
    done = run("--output", str(folder), "--seed", "3", "--no-check")
    assert done.exit_code == 0
    for words in ("images chosen", "150", "junk: the labellers disagree", "samples.png"):
        assert words in done.stdout
    assert "Mix test digits" in done.stderr
    assert (folder / "samples.png").is_file()
    assert (folder / "manifest.json").read_text() == (made / "manifest.json").read_text()


def test_what_was_measured_is_shown_again(run, made, tmp_path, train_digits, test_digits):
    folder = shutil.copytree(made, tmp_path / "set")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    quality = measure_quality(folder, train_digits, test_digits, network, "linear", recipe=adam(epochs=1))
    done = run("--output", str(folder), "--seed", "3")
    assert done.exit_code == 0
    assert "What a fresh network finds (linear, 1,200 samples)" in done.stdout
    assert f"{quality.auroc_clean:.4f}" in done.stdout
    assert "Entropy of the soft labels" in done.stdout
    histograms = [counts for split in quality.entropy_histogram.values() for counts in split]
    assert done.stdout.count("█") >= sum(any(counts) for counts in histograms)  # the tallest bar of each


def test_the_set_goes_to_the_data_root_by_default(run, made, tmp_path):
    shutil.copytree(made / "stages", tmp_path / "dirty_mnist" / "stages")
    assert run("--data-root", str(tmp_path), "--seed", "3", "--no-check").exit_code == 0
    assert (tmp_path / "dirty_mnist" / "manifest.json").is_file()


def test_help_has_the_options(run):
    printed = run("--help").stdout
    for words in ("--output", "--scale", "cpu|paper", "--seed", "--data-root", "--no-check"):
        assert words in printed


def test_an_unknown_scale_is_refused(run):
    done = run("--scale", "huge")
    assert done.exit_code == 2
    assert "Invalid value for '--scale'" in done.stderr
