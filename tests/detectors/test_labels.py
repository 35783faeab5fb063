"""Labels at chance level are told from those of a bad model, and small sets are left in peace."""

import math

import pytest
import torch
from scipy.stats import binom

from ddu.detectors.labels import Agreement, _beyond_chance
from ddu.errors import LabelWarning


def generator(seed):
    return torch.Generator().manual_seed(seed)


def agreement(labels, predicted, num_classes, batches=3):
    """Summed up over batches."""
    logits = torch.nn.functional.one_hot(predicted, num_classes).float()
    total = Agreement(num_classes)
    for part in torch.arange(len(labels)).chunk(batches):
        total.add(logits[part], labels[part])
    return total


def model_of(accuracy, samples, num_classes, seed=0):
    """Balanced labels, and predictions that are right with a probability and otherwise random."""
    labels = torch.arange(samples) % num_classes
    guess = torch.randint(num_classes, (samples,), generator=generator(seed))
    share = (accuracy - 1 / num_classes) / (1 - 1 / num_classes)
    return labels, torch.where(torch.rand(samples, generator=generator(seed + 1)) < share, labels, guess)


def shuffled(labels, seed=2):
    return labels[torch.randperm(len(labels), generator=generator(seed))]


@pytest.mark.parametrize(("num_classes", "samples"), [(2, 400), (3, 300), (10, 100), (10, 50_000), (1000, 5000)])
def test_shuffled_labels_are_warned_of(num_classes, samples):
    labels, predicted = model_of(0.95, samples, num_classes)
    with pytest.warns(LabelWarning, match="Check that they belong to these inputs, in this order"):
        agreement(shuffled(labels), predicted, num_classes).warn_of_chance()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("accuracy", "num_classes", "samples"),
    [(0.3, 10, 60), (0.3, 10, 1000), (0.65, 2, 400), (0.05, 100, 2000), (0.01, 1000, 20_000), (1.0, 3, 30)],
)
def test_a_bad_model_is_not_blamed_on_its_labels(accuracy, num_classes, samples, seed):
    agreement(*model_of(accuracy, samples, num_classes, 100 * seed), num_classes).warn_of_chance()


@pytest.mark.parametrize(("num_classes", "samples"), [(2, 100), (3, 29), (10, 25), (2, 0), (5, 1)])
def test_sets_too_small_to_tell_are_left_in_peace(num_classes, samples):
    labels, predicted = model_of(0.95, samples, num_classes)
    agreement((labels + 1) % num_classes, predicted, num_classes, batches=1).warn_of_chance()


def test_the_message_has_both_numbers_and_a_way_out():
    labels, predicted = model_of(1.0, 300, 3)
    with pytest.warns(LabelWarning) as caught:
        agreement((labels * 2) % 3, predicted, 3).warn_of_chance()
    # classes 1 and 2 are swapped, so that a third is right
    assert str(caught[0].message) == (
        "The labels are what the model predicts for 100 of 300 samples (33%), and would be for 33% in random order. "
        "Check that they belong to these inputs, in this order, with the classes numbered as in training."
    )
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("shift", "remedy"), [(1, "y - 1"), (-1, "y + 1")])
def test_labels_off_by_one_are_named(shift, remedy):
    """Of a model with more outputs than the data has classes, so that no label is out of range."""
    predicted = 1 + torch.arange(300) % 3
    with pytest.warns(LabelWarning) as caught:
        agreement(predicted + shift, predicted, 6).warn_of_chance()
    assert str(caught[0].message) == (
        "The labels are what the model predicts for 0 of 300 samples (0%), and would be for 22% in random order. They "
        f"are off by one: {remedy} is right for 300."
    )


def test_few_of_many_classes_are_named():
    predicted = torch.randint(1000, (500,), generator=generator(0))
    with pytest.warns(LabelWarning) as caught:
        agreement(torch.arange(500) % 10, predicted, 1000).warn_of_chance()
    assert str(caught[0].message) == (
        "The labels are what the model predicts for 0 of 500 samples (0%), and would be for 0% in random order. They "
        "cover 10 of the model's 1,000 classes: number them as in training, or give the model's class of each, "
        "ddu.DDU(model, classes=[...])."
    )


def test_few_of_many_classes_are_fine_where_the_model_predicts_them():
    labels = torch.arange(500) % 10
    agreement(labels, labels, 1000).warn_of_chance()


def test_a_rare_class_that_is_never_predicted_is_not_blamed_on_the_labels():
    """99 % of the labels are what the model always says: nothing can be told from these."""
    labels = (torch.arange(1000) % 100 == 0).long()
    agreement(labels, torch.zeros(1000, dtype=torch.int64), 2).warn_of_chance()


@pytest.mark.parametrize(("samples", "chance"), [(30, 0.5), (1000, 0.1), (100_000, 0.001), (300, 0.9)])
def test_what_is_beyond_chance_is_the_tail_of_the_binomial_distribution(samples, chance):
    spread = math.sqrt(samples * chance * (1 - chance))
    for deviations in (-1, 0.5, 2, 3, 4):
        hits = min(math.ceil(samples * chance + deviations * spread), samples)
        tail = binom.sf(hits - 1, samples, chance)
        for level in (0.9 * tail, 1.1 * tail):
            assert _beyond_chance(hits, samples, chance, level) == (tail < level and deviations > 0)
