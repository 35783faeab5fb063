"""What a comparison compares, as people write it."""

import copy
import sys
from pathlib import Path

import pytest

from ddu.detectors import PLAIN, find_method
from ddu.errors import InputError, MissingExtraError
from ddu.experiments import parse_comparison, parse_contender, read_comparison
from ddu.runs import RunSpec
from ddu.training import RECIPES

EXAMPLE = Path(__file__).parents[2] / "examples" / "compare_mnist.yaml"
MINIMAL = {"data": "mnist", "ood": ["fashion_mnist"], "model": "resnet18", "detectors": ["ddu", "softmax"]}


def parse(**changes):
    return parse_comparison(copy.deepcopy(MINIMAL) | changes)


def test_the_example_enters_every_kind_of_rival():
    comparison = read_comparison(EXAMPLE)
    entered = {one.method for one in comparison.detectors}
    assert entered >= {"ddu", "softmax", "confidence", "energy", "mahalanobis", "relative_mahalanobis", "duq", "sngp"}
    assert entered >= {"ensemble_mi", "ensemble_pe", "knn", "vim", "react", "odin"}
    assert {one.members for one in comparison.detectors if one.method.startswith("ensemble")} == {5}
    ablated = {comparison.label(one) for one in comparison.detectors if one.method == "ddu"}
    assert ablated == {
        "resnet18 x0.25+sn",
        "resnet18 x0.25 (sensitive)",
        "resnet18 x0.25+sn (not sensitive)",
        "resnet18 x0.25",
    }


def test_a_detector_stands_on_the_network_that_is_trained_for_it():
    comparison = parse(detectors=["ddu", "energy", "duq", "sngp", "knn"])
    assert {one.name: one.network for one in comparison.detectors} == {
        "ddu": "ddu",
        "energy": "softmax",
        "duq": "duq",
        "sngp": "sngp",
        "knn": "softmax",
    }
    assert comparison.networks.keys() == {"ddu", "softmax", "duq", "sngp"}
    assert comparison.networks["softmax"].options == PLAIN.options


def test_networks_inherit_what_they_do_not_say():
    comparison = parse(
        options={"width": 0.5, "spectral_norm": 2.0},
        recipe={"name": "cifar", "epochs": 35},
        networks={"small": {"model": "lenet", "options": {"width": 0.25}, "recipe": {"lr": "1e-3"}}, "softmax": {}},
    )
    small, softmax = comparison.networks["small"], comparison.networks["softmax"]
    assert small.model == "lenet"
    assert small.options == {"width": 0.25, "spectral_norm": 2.0, "head": "linear"}
    assert small.recipe == RECIPES["cifar"].with_changes(epochs=35, lr=1e-3)
    assert softmax.model == "resnet18"
    assert softmax.options == {"width": 0.5, **PLAIN.options}  # the kind's own come last
    assert softmax.recipe == RECIPES["cifar"].with_changes(epochs=35)
    other = parse(recipe="cifar", networks={"duq": {"recipe": "duq_cifar"}}, detectors=["duq"])
    assert other.networks["duq"].recipe == RECIPES["duq_cifar"]


def test_members_have_seeds_of_their_own_and_a_split_in_common():
    comparison = parse(seeds=[3, 4])
    specs = [comparison.spec("softmax", 3, member) for member in range(3)]
    assert [spec.seed for spec in specs] == [3, 1003, 2003]
    assert [spec.split_seed for spec in specs] == [None, 3, 3]


def test_names_say_what_is_unusual_about_a_detector():
    for written, name in [
        ("ddu", "ddu"),
        ({"ddu": {"network": "softmax"}}, "ddu"),
        ({"ddu": {"density": {"covariance": "shared", "rank": 3}}}, "ddu covariance=shared rank=3"),
        ({"sngp": {"samples": 10}}, "sngp samples=10"),
        ({"sngp": {"samples": 10, "name": "few samples"}}, "few samples"),
        ({"ensemble_mi": {"members": 3}}, "ensemble_mi"),
    ]:
        assert parse_contender(written).name == name


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, "resnet18+sn"),
        ({"width": 0.25}, "resnet18 x0.25+sn"),
        ({"spectral_norm": None}, "resnet18 (sensitive)"),
        ({"sensitive": False}, "resnet18+sn (not sensitive)"),
        (find_method("softmax").network.options, "resnet18"),
        (find_method("duq").network.options, "resnet18"),
        (find_method("sngp").network.options, "resnet18+sn"),
    ],
)
def test_networks_are_called_as_in_the_papers_tables(options, label):
    assert RunSpec("resnet18", "mnist", RECIPES["quick"], options=options).label == label


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"detector": []}, "A comparison has no key 'detector'. Did you mean 'detectors'?"),
        ({"seeds": 3}, "The seeds of a comparison must be a list of integers of at least 0. Got 3 instead."),
        ({"seeds": [-1]}, "The seeds of a comparison must be a list of integers of at least 0. Got [-1] instead."),
        ({"ood": []}, "The ood of a comparison must be a list of data sets. Got [] instead."),
        ({"limit": 0}, "The limit of a comparison must be a positive integer. Got 0 instead."),
        ({"detectors": ["dduu"]}, "There is no method 'dduu'. Did you mean 'ddu'?"),
        ({"detectors": [3]}, "A detector is written NAME, or NAME: {OPTION: VALUE}. Got 3 instead."),
        (
            {"detectors": [{"ddu": {}, "softmax": {}}]},
            "Each detector is an item of its own, with a dash. Got ddu, softmax in one.",
        ),
        (
            {"detectors": [{"ddu": {"netwrok": "softmax"}}]},
            "The detector 'ddu' has no option 'netwrok'. Did you mean 'network'?",
        ),
        (
            {"detectors": [{"softmax": {"members": 3}}]},
            "The detector 'softmax' has no option 'members'. There are network, name.",
        ),
        (
            {"detectors": [{"ensemble_mi": {"members": 1}}]},
            "The members of ensemble_mi must be an integer of at least 2. Got 1 instead.",
        ),
        (
            {"detectors": [{"ddu": {"network": "sofmax"}}], "networks": {"softmax": None}},
            "ddu asks for a network 'sofmax', and there is none. Did you mean 'softmax'?",
        ),
        (
            {"detectors": [{"ddu": {"network": "sofmax"}}]},
            "ddu asks for a network 'sofmax', and there is none. Did you mean 'softmax'?",
        ),
        (
            {"detectors": [{"ddu": {"network": "vgg"}}], "networks": {"plain": None}},
            "ddu asks for a network 'vgg', and there is none. There are ddu, softmax, duq, sngp, plain.",
        ),
        (
            {"detectors": [{"ddu": {"network": ["softmax"]}}]},
            "The network of ddu must be text. Got ['softmax'] instead.",
        ),
        (
            {"detectors": ["ddu", "ddu"]},
            "Two detectors are called ddu on resnet18+sn: give one of them a name, or its network a label.",
        ),
        ({"networks": {"a": {"metod": "duq"}}}, "The network 'a' has no key 'metod'. Did you mean 'method'?"),
        ({"networks": {"a": {"method": "dq"}}}, "There is no method 'dq'. Did you mean 'duq'?"),
        (
            {"networks": {"a": 3}},
            "The network 'a' must be a mapping with method, model, recipe, options, label. Got 3 instead.",
        ),
        (
            {"networks": {"ddu": {"options": 3}}},
            "The options of the network 'ddu' must be a mapping of options of ddu.create_model. Got 3 instead.",
        ),
        (
            {"networks": {"ddu": {"model": 3}}},
            "The model of the network 'ddu' must be the name of a network. Got 3 instead.",
        ),
        ({"networks": {"ddu": {"label": 3}}}, "The label of the network 'ddu' must be text. Got 3 instead."),
        ({"recipe": "quik"}, "There is no recipe 'quik'. Did you mean 'quick'?"),
        (
            {"recipe": {"epochs": 3}},
            "A recipe is written NAME, or {name: NAME, FIELD: VALUE}. Got {'epochs': 3} instead.",
        ),
        ({"recipe": {"name": "quick", "epoch": 3}}, "A recipe has no field 'epoch'. Did you mean 'epochs'?"),
        (
            {"recipe": {"name": "quick", "epochs": "three"}},
            "The recipe's epochs must be an integer. Got 'three' instead.",
        ),
        (
            {"networks": {"ddu": {"recipe": {"validation_share": 0.2}}}},
            "All networks hold out the same data, and these recipes have 0.1 and 0.2 as validation_share: set it in "
            "the recipe of the whole comparison.",
        ),
    ],
)
def test_a_mistake_is_named_with_the_way_out(changes, message):
    with pytest.raises(InputError) as caught:
        parse(**changes)
    assert str(caught.value) == message


def test_what_is_missing_or_no_mapping_is_named():
    with pytest.raises(InputError) as caught:
        parse_comparison({"data": "mnist", "ood": ["fashion_mnist"]})
    assert str(caught.value) == "A comparison needs the key 'model'."
    with pytest.raises(InputError) as caught:
        parse_comparison(["mnist"])
    assert str(caught.value) == "A comparison is a mapping such as `data: mnist`. Got ['mnist'] instead."


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(InputError) as caught:
        read_comparison(tmp_path / "none.yaml")
    assert str(caught.value) == f"Cannot read {tmp_path / 'none.yaml'}: No such file or directory."
    (tmp_path / "bad.yaml").write_text("data: [mnist")
    with pytest.raises(InputError, match=r"bad\.yaml is not YAML: while parsing a flow sequence"):
        read_comparison(tmp_path / "bad.yaml")


def test_a_detector_of_pytorch_ood_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_ood.detector", None)
    with pytest.raises(MissingExtraError, match=r"needs the 'compare' extra: pip install 'ddu\[compare\]', or "):
        parse_contender("knn")
    with pytest.raises(InputError, match=r"^There is no method 'sofmax'\. Did you mean 'softmax'\?$"):
        parse_contender("sofmax")
