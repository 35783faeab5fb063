"""What decides the result of a run."""

from dataclasses import fields, replace

import numpy as np
import pytest

from ddu import data
from ddu.data import ArrayDataset, DataInfo
from ddu.runs import RunSpec, data_digest
from ddu.training import RECIPES

SPEC = RunSpec("resnet18", "mnist", RECIPES["mnist"], options={"width": 0.5})

CHANGES = {
    "model": "resnet50",
    "data": "cifar10",
    "recipe": RECIPES["mnist"].with_changes(lr=0.2),
    "method": None,
    "limit": 100,
    "false_alarm_rate": 0.05,
    "options": {"width": 0.25},
    "skip_bad": True,
}
SEEDS = {"seed": 1, "split_seed": 1}


def test_every_field_is_tried_below():
    assert {one.name for one in fields(RunSpec)} == {*CHANGES, *SEEDS}


@pytest.mark.parametrize("name", CHANGES)
def test_the_fingerprint_depends_on_whatever_decides_the_result(name):
    changed = replace(SPEC, **{name: CHANGES[name]})
    assert changed.fingerprint("digest") != SPEC.fingerprint("digest")


def test_every_field_of_the_recipe_enters_the_fingerprint():
    assert SPEC.to_json()["recipe"].keys() == {one.name for one in fields(SPEC.recipe)}


def test_the_fingerprint_is_that_of_all_seeds_but_not_of_another_split():
    for seeds in ({"seed": 7}, {"seed": 7, "split_seed": 7}):
        assert replace(SPEC, **seeds).fingerprint("digest") == SPEC.fingerprint("digest")
    assert replace(SPEC, seed=7, split_seed=0).fingerprint("digest") != SPEC.fingerprint("digest")


def images(*, pixel: int = 0, label: int = 0) -> ArrayDataset:
    pixels, labels = np.zeros((6, 4, 4, 1), dtype=np.uint8), np.zeros(6, dtype=np.int64)
    pixels[5, 3, 3, 0], labels[5] = pixel, label
    return ArrayDataset(pixels, labels, DataInfo("images", (1, 4, 4), ("a", "b"), (0.5,), (0.5,)))


def test_the_fingerprint_depends_on_every_pixel_and_label_of_both_parts():
    digests = [
        data_digest(images(), images()),
        data_digest(images(pixel=1), images()),
        data_digest(images(label=1), images()),
        data_digest(images(), images(pixel=1)),
        data_digest(images(), images(label=1)),
    ]
    assert len({SPEC.fingerprint(digest) for digest in digests}) == 5
    assert data_digest(images(), images()) == digests[0]


def test_a_specification_comes_back_from_json():
    for spec in (SPEC, replace(SPEC, **CHANGES, **SEEDS)):
        assert RunSpec.from_json(spec.to_json()) == spec


CIFAR, MNIST = RunSpec("wide_resnet28_10", "cifar10", RECIPES["cifar"]), replace(SPEC, options={})


@pytest.mark.parametrize(
    ("spec", "samples", "words"),
    [
        (CIFAR, 50_000, None),
        (CIFAR, 1_000, "samples 50,000 -> 1,000"),
        (replace(CIFAR, options={"width": 0.25}), 50_000, "width 1 -> 0.25"),
        (replace(CIFAR, options={"width": 2}), 50_000, None),
        (replace(CIFAR, recipe=RECIPES["cifar"].with_changes(epochs=35)), 50_000, "epochs 350 -> 35"),
        (replace(CIFAR, recipe=RECIPES["cifar"].with_changes(epochs=400)), 50_000, None),
        (replace(CIFAR, recipe=RECIPES["quick"]), 1_000, "samples 50,000 -> 1,000; epochs 350 -> 5"),
        (
            replace(SPEC, recipe=RECIPES["quick"]),
            10_000,
            "samples 60,000 -> 10,000; width 1 -> 0.5; epochs 50 -> 5",
        ),
        # What rivals published is not reduced
        (replace(CIFAR, recipe=RECIPES["duq_cifar"], method="duq"), 50_000, None),
        (replace(CIFAR, data="cifar100", recipe=RECIPES["sngp_cifar"], method="sngp"), 50_000, None),
        (replace(CIFAR, recipe=RECIPES["duq_cifar"].with_changes(epochs=10)), 50_000, "epochs 100 -> 10"),
        (
            replace(CIFAR, recipe=RECIPES["cifar"].with_changes(samples_per_epoch=128)),
            50_000,
            "samples per epoch 50,000 -> 128",
        ),
        # What was published for other data is
        (replace(CIFAR, recipe=RECIPES["mnist"]), 50_000, "epochs 350 -> 50"),
        (replace(MNIST, recipe=RECIPES["duq_fashion_mnist"]), 60_000, "epochs 50 -> 30"),
        (replace(MNIST, data="dirty_mnist"), 60_000, "samples 120,000 -> 60,000"),
        (MNIST, 60_000, None),
        # The paper has no such run
        (replace(MNIST, data="digits", recipe=RECIPES["quick"]), 100, None),
    ],
)
def test_reductions_against_the_paper_are_said_in_words(spec, samples, words):
    assert spec.reductions(samples) == words


def test_the_two_moons_of_the_paper_are_ours():
    spec = RunSpec("resffn4_128", "two_moons", RECIPES["two_moons"])
    assert spec.reductions(len(data.load("two_moons"))) is None
