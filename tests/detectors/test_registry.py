"""The registry: a method is named once, and every command knows it; also one of another package."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ddu
from ddu.cli import main
from ddu.data import loader
from ddu.detectors import (
    METHODS,
    BaseDetector,
    Energy,
    Evidence,
    Method,
    NetworkKind,
    find_method,
    find_network_kind,
    list_methods,
    method_for_head,
    network_kinds,
    register,
    registry,
)
from ddu.errors import ArtifactError, DDUWarning, InputError
from ddu.experiments import Evaluation, parse_comparison
from ddu.features import FeatureBatch, FeatureTap
from ddu.models import create_model
from ddu.results import RowFile
from ddu.runs import RunSpec, load_run, train_run
from ddu.training import RECIPES

EPOCH = RECIPES["two_moons"].with_changes(epochs=1)


class Mine(BaseDetector):
    """The distance to the mean of all features, times a factor."""

    name = "distance_to_mean"

    def __init__(self, model: nn.Module, *, scale: float = 1.0, class_names: Any = None):
        super().__init__(FeatureTap(model), class_names)
        self.scale = scale
        self.mean_: Tensor | None = None

    @property
    def is_fitted(self) -> bool:
        return self.mean_ is not None

    def _learn(self, batches: Iterable[FeatureBatch]) -> None:
        self.mean_ = torch.cat([batch.features for batch in batches]).mean(0)

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        assert self.mean_ is not None
        return Evidence(batch.logits, self.scale * (batch.features - self.mean_).norm(dim=1))

    def _options(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def _tensors(self) -> dict[str, Tensor]:
        assert self.mean_ is not None
        return {"mean": self.mean_}

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> "Mine":
        detector = cls(model, **options)
        detector.mean_ = tensors["mean"]
        return detector


MINE = Method("mine", Mine, "distance to the mean", network=NetworkKind("tight", {"spectral_norm": 0.9}))


@pytest.fixture(autouse=True)
def methods() -> Iterator[None]:
    """Every test finds the registry, and commands that have not read it yet, and leaves them so."""
    before, commands = dict(METHODS), ("ddu.cli.train", "ddu.cli.evaluate")
    for name in commands:
        sys.modules.pop(name, None)
    yield
    METHODS.clear()
    METHODS.update(before)
    for name in commands:
        sys.modules.pop(name, None)


@pytest.fixture
def mine() -> Method:
    return register(MINE)


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., str]:
    """Runs `ddu` with arguments, and returns what it prints."""
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ddu", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        printed, complaint = capsys.readouterr()
        assert end.value.code == 0, complaint
        return printed

    return run


@pytest.fixture
def plane(tmp_path) -> str:
    points = np.random.default_rng(0).uniform(-4, 4, (300, 2)).astype(np.float32)
    np.savez(tmp_path / "plane.npz", x=points, y=np.zeros(300, dtype=np.int64))
    return f"npz:{tmp_path / 'plane.npz'}"


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


# A plug-in


def test_a_registered_detector_is_trained_saved_and_loaded_by_name(mine, tmp_path):
    spec = RunSpec("resffn2_16", "two_moons", EPOCH, "mine", limit=1500, options=mine.network.options)
    run = train_run(spec, tmp_path / "run")
    assert run is not None
    sets = run.load_data()
    by_hand = Mine(run.load_model()).fit(loader(sets.train)).calibrate(loader(sets.validation), 0.01)
    points = torch.from_numpy(sets.test.inputs)
    for found in (load_run(run.folder).detector, ddu.load(run.folder / "detector", run.load_model())):
        assert type(found) is Mine
        assert torch.equal(found.predict(points).epistemic, by_hand.predict(points).epistemic)
        assert found.epistemic_threshold == by_hand.epistemic_threshold
    # Without the plug-in its file is not misread
    del METHODS["mine"]
    with pytest.raises(ArtifactError, match=r"holds a detector 'distance_to_mean', and this ddu knows ddu, softmax, "):
        ddu.load(run.folder / "detector", run.load_model())


@pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")
def test_the_command_line_trains_evaluates_and_names_a_registered_detector(mine, command, plane, tmp_path):
    folder = str(tmp_path / "run")
    options = ("--model", "resffn2_16", "--data", "two_moons", "--recipe", "two_moons", "--set", "epochs=1")
    assert "test accuracy" in command("train", *options, "--method", "mine", "--output", folder)
    run = load_run(folder)
    assert (type(run.detector), run.spec.method, run.spec.label) == (Mine, "mine", "resffn2_16+sn")
    assert run.spec.options["spectral_norm"] == 0.9
    printed = command("evaluate", folder, "--ood", plane)
    assert [line.split()[0] for line in printed.splitlines() if line.startswith(" mine ")] == ["mine"]
    rows = RowFile(run.folder / "rows.csv").read()
    assert {(row.detector, row.status, row.run) for row in rows} == {("mine", "ok", run.fingerprint)}
    for name in ("train", "evaluate"):
        assert "mine" in words(command(name, "--help"))


def test_help_does_not_name_what_is_not_registered(command):
    assert "mine" not in words(command("train", "--help"))


@pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")
def test_a_registered_detector_is_compared_on_the_network_that_it_wants(mine, plane, tmp_path):
    content = {
        **{"data": "two_moons", "ood": [plane], "model": "resffn2_16", "limit": 1500},
        "recipe": {"name": "two_moons", "epochs": 1},
        "detectors": ["mine", {"mine": {"scale": 2.0}}, "energy"],
    }
    comparison = parse_comparison(content)
    assert comparison.networks["tight"].options == {"spectral_norm": 0.9}
    rows = comparison.measure(tmp_path / "comparison", progress=False)
    found = {(row.detector, row.network, row.status) for row in rows}
    assert found == {
        ("mine", "resffn2_16+sn", "ok"),
        ("mine scale=2.0", "resffn2_16+sn", "ok"),
        ("energy", "resffn2_16", "ok"),
    }
    auroc = {row.detector: row.value for row in rows if row.metric == "auroc"}
    assert auroc["mine"] == auroc["mine scale=2.0"]
    with pytest.raises(InputError, match=r"^The detector 'mine' has no option 'scael'\. Did you mean 'scale'\?$"):
        parse_comparison(content | {"detectors": [{"mine": {"scael": 2.0}}]})
    # An evaluation of the network, which was trained without a detector, knows it as well
    alone = load_run(tmp_path / "comparison" / "networks" / "tight-seed0")
    assert {row.status for row in Evaluation(alone, (plane,), ("mine",)).measure()} == {"ok"}


THEIRS = """
from ddu.detectors import Energy, Method


class Theirs(Energy):
    name = "theirs"


METHOD = Method("theirs", Theirs, "their score")
"""
TRAIN_AND_LOAD = """
import runpy, sys

folder = sys.argv[-1]
try:
    runpy.run_module("ddu", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
from ddu.runs import load_run

print("loaded", type(load_run(folder).detector).__module__)
"""


@pytest.mark.slow
def test_a_method_of_another_package_is_found_through_its_entry_point(tmp_path):
    package, facts = tmp_path / "site" / "theirs", tmp_path / "site" / "theirs-1.0.dist-info"
    package.mkdir(parents=True)
    facts.mkdir()
    (package / "__init__.py").write_text(THEIRS)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[ddu.methods]\ntheirs = theirs:METHOD\nbroken = no_such_package:METHOD\n")
    command = ["train", "--model", "resffn2_16", "--data", "two_moons", "--recipe", "two_moons", "--set", "epochs=1"]
    command += ["--accelerator", "cpu", "--method", "theirs", "--output", str(tmp_path / "run")]
    path = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_LOAD, *command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded theirs\n")
    # Of the two plug-ins, the one that cannot be imported is one warning
    assert done.stderr.count("does not work") == 1
    assert "The plug-in no_such_package:METHOD (ddu.methods) does not work: No module named 'no_such_package'" in (
        done.stderr
    )
    # Here the package is not installed
    with pytest.raises(ArtifactError, match=r"holds a detector 'theirs', and this ddu knows "):
        load_run(Path(tmp_path / "run")).detector  # noqa: B018


@pytest.fixture
def installed(monkeypatch) -> Iterator[Callable[..., None]]:
    """Pretends that packages with these entry points are installed."""

    def install(**entries: str) -> None:
        found = [EntryPoint(name, value, "ddu.methods") for name, value in entries.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: found if group == "ddu.methods" else [])
        registry._find_plugins.cache_clear()

    yield install
    registry._find_plugins.cache_clear()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no_such_package:METHOD", "No module named 'no_such_package'"),
        ("math:pi", "it is a float, and must be a ddu.detectors.Method."),
        (f"{__name__}:CLASH", "There is a method 'ddu' already: register yours under another name."),
    ],
)
def test_a_plug_in_that_does_not_work_is_one_warning_and_the_others_are_found(installed, value, problem):
    usual = list(METHODS)
    installed(broken=value, mine=f"{__name__}:MINE")
    with pytest.warns(DDUWarning) as warned:
        assert list_methods() == [*usual, "mine"]
    assert [str(one.message) for one in warned] == [f"The plug-in {value} (ddu.methods) does not work: {problem}"]
    assert find_method("mine") is MINE  # and no further warning, which would be an error here


# The registry itself


CLASH = Method("ddu", Mine)


def test_a_name_is_given_once():
    with pytest.raises(InputError) as caught:
        register(CLASH)
    assert str(caught.value) == "There is a method 'ddu' already: register yours under another name."
    assert METHODS["ddu"].detector is ddu.DDU
    assert register(METHODS["ddu"]) is METHODS["ddu"]  # the same again is no harm


def test_a_class_of_another_detectors_name_is_refused_since_files_are_loaded_by_it():
    class Other(Energy):
        pass

    with pytest.raises(InputError) as caught:
        register(Method("other", Other))
    assert str(caught.value) == "There is a detector class with the name 'energy' already: give Other its own."
    assert "other" not in METHODS


FREE_OPTIONS = {
    "ddu": ["features", "view", "energy", "density", "seed", "classes"],
    "ddu_paper": ["seed", "classes"],
    "density": ["seed", "classes"],
    "softmax": [],
    "confidence": [],
    "energy": [],
    "mahalanobis": ["layers", "perturbation", "classes"],
    "relative_mahalanobis": ["layers", "perturbation", "classes"],
    "ensemble_mi": [],
    "ensemble_pe": [],
    "ensemble_ee": [],
    "duq": [],
    "sngp": ["samples", "seed", "factor", "ridge"],
    "sngp_mean_field": ["samples", "seed", "factor", "ridge"],
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_found_by_name_and_works_on_the_network_that_it_wants(name):
    method = find_method(name)
    assert method is METHODS[name]
    assert method.name == name
    assert method.summary
    assert method.free_options == FREE_OPTIONS[name]
    assert find_network_kind(method.network.name) is method.network
    x, y = torch.randn(64, 2), torch.arange(64) % 3
    networks = [
        create_model("resffn2_16", num_classes=3, in_features=2, **method.network.options)
        for _ in range(method.members)
    ]
    detector = method.make(networks if method.members > 1 else networks[0], class_names=["a", "b", "c"])
    found = detector.fit([(x, y)], progress=False).predict(x)
    assert found.epistemic.isfinite().all()
    assert found.probs.shape == (64, 3)


def test_options_of_a_method_are_those_of_its_detector_and_may_be_overruled():
    network = create_model("resffn2_16", num_classes=3, in_features=2)
    assert find_method("confidence").make(network).score == "confidence"  # pyright: ignore[reportAttributeAccessIssue]
    assert find_method("mahalanobis").make(network).relative is False  # pyright: ignore[reportAttributeAccessIssue]
    assert find_method("mahalanobis").make(network, relative=True).relative  # pyright: ignore[reportAttributeAccessIssue]


def test_detectors_of_pytorch_ood_are_methods_that_check_their_options_themselves():
    method = find_method("knn")
    assert method.free_options is None
    assert method.network == registry.PLAIN
    assert "knn" not in list_methods()


def test_an_unknown_method_or_network_is_answered_with_the_closest():
    with pytest.raises(InputError, match=r"^There is no method 'sngpp'\. Did you mean 'sngp'\?$"):
        find_method("sngpp")
    with pytest.raises(InputError, match=r"^There is no kind of network 'sofmax'\. Did you mean 'softmax'\?$"):
        find_network_kind("sofmax")


def test_networks_are_named_once_and_a_head_has_its_method():
    assert list(network_kinds()) == ["ddu", "softmax", "duq", "sngp"]
    assert [method_for_head(head).name for head in ("linear", "duq", "sngp")] == ["ddu", "duq", "sngp"]
    with pytest.raises(InputError) as caught:
        method_for_head("cosine")
    assert str(caught.value) == "No registered method wants a network with the head 'cosine'."
