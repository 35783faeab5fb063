"""Recipes: the paper's numbers, schedules, and changes that are checked."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR

from ddu.errors import InputError
from ddu.training import RECIPES, Recipe, find_recipe, parse_changes


def _torch_factors(make, steps):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make(optimiser)
    factors = []
    for _ in range(steps):
        factors.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return factors


def test_the_papers_numbers():
    cifar, mnist = RECIPES["cifar"], RECIPES["mnist"]
    assert (cifar.epochs, cifar.milestones, cifar.lr, cifar.weight_decay) == (350, (150, 250), 0.1, 5e-4)
    assert (cifar.batch_size, cifar.momentum, cifar.nesterov, cifar.augmentation) == (128, 0.9, False, "crop_flip")
    assert (mnist.epochs, mnist.milestones, mnist.optimiser, mnist.augmentation) == (50, (25, 40), "sgd", "none")
    imagenet, moons, active = RECIPES["imagenet"], RECIPES["two_moons"], RECIPES["active_learning"]
    assert (imagenet.epochs, imagenet.milestones, imagenet.weight_decay, imagenet.warmup_factor) == (
        90,
        (30, 60),
        1e-4,
        0.01,
    )
    assert (moons.epochs, moons.optimiser, moons.lr, moons.batch_size, moons.drop_last) == (150, "adam", 1e-3, 64, True)
    assert moons.model == {"spectral_norm": 0.65, "power_steps": 5}
    assert (active.epochs, active.samples_per_epoch, active.select, active.optimiser) == (100, 5056, "best", "adam")
    assert all(recipe.label_smoothing == 0 for recipe in RECIPES.values())


def test_step_schedule_is_torchs_multi_step():
    recipe = Recipe(epochs=10, milestones=(3, 7))
    expected = _torch_factors(lambda optimiser: MultiStepLR(optimiser, [3, 7], 0.1), 10)
    assert [recipe.lr_factor(epoch) for epoch in range(10)] == pytest.approx(expected)


def test_cosine_schedule_is_torchs():
    recipe = Recipe(epochs=10, schedule="cosine")
    expected = _torch_factors(lambda optimiser: CosineAnnealingLR(optimiser, 10), 10)
    assert [recipe.lr_factor(epoch) for epoch in range(10)] == pytest.approx(expected)


def test_one_cycle_is_torchs():
    # torch ends its rise at step 0.3 n - 1 and its fall at n - 1
    steps = 101
    recipe = Recipe(epochs=1, schedule="one_cycle")
    make = lambda optimiser: OneCycleLR(  # noqa: E731
        optimiser, max_lr=1.0, total_steps=steps, pct_start=31 / 101, final_div_factor=1e4 / 25, cycle_momentum=False
    )
    ours = [recipe.lr_factor(step / (steps - 1)) for step in range(steps)]
    assert ours == pytest.approx(_torch_factors(make, steps), abs=1e-6)


def test_warm_up_rises_to_the_schedule():
    recipe = Recipe(epochs=90, milestones=(30, 60), warmup_epochs=5, warmup_factor=0.01)
    assert recipe.lr_factor(0) == 0.01
    assert recipe.lr_factor(2.5) == pytest.approx(0.505)
    assert recipe.lr_factor(5) == 1
    assert recipe.lr_factor(30) == pytest.approx(0.1)


def test_milestones_keep_their_share_when_the_epochs_change():
    assert RECIPES["cifar"].with_changes(epochs=35).milestones == (15, 25)
    assert RECIPES["cifar"].with_changes(epochs=35, milestones=(1,)).milestones == (1,)


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("name", ["mnist", "cifar", "duq_cifar", "duq_fashion_mnist"])
def test_a_short_training_starts_at_the_full_rate(name, epochs):
    recipe = RECIPES[name].with_changes(epochs=epochs)
    assert recipe.lr_factor(0) == recipe.lr_factor(0.99) == 1


def test_a_recipe_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        RECIPES["cifar"].lr = 1.0


def test_wrong_fields_and_values_are_named():
    with pytest.raises(InputError, match=r"^A recipe has no field 'epoch'\. Did you mean 'epochs'\?$"):
        RECIPES["cifar"].with_changes(epoch=3)
    with pytest.raises(InputError, match=r"^A recipe's epochs must be at least 1\. Got 0 instead\.$"):
        RECIPES["cifar"].with_changes(epochs=0)
    with pytest.raises(InputError, match=r"^A recipe's lr must be at least 0\. Got nan instead\.$"):
        RECIPES["cifar"].with_changes(lr=math.nan)
    with pytest.raises(
        InputError, match=r"^A recipe's schedule must be one of 'constant', 'step', 'cosine', 'one_cycle'\. Got 'cos' "
    ):
        RECIPES["cifar"].with_changes(schedule="cos")
    with pytest.raises(InputError, match=r"^There is no recipe 'cifar10'\. Did you mean 'cifar'\?$"):
        find_recipe("cifar10")


def test_changes_are_read_from_text():
    read = parse_changes(["epochs=3", "lr=1e-3", "nesterov=true", "milestones=1,2", "samples_per_epoch=none"])
    assert read == {"epochs": 3, "lr": 1e-3, "nesterov": True, "milestones": (1, 2), "samples_per_epoch": None}
    for text, message in [
        ("epochs", "A change to the recipe is written FIELD=VALUE. Got 'epochs' instead."),
        ("epochs=three", "The recipe's epochs must be an integer. Got 'three' instead."),
        ("lr=fast", "The recipe's lr must be a number. Got 'fast' instead."),
        ("nesterov=maybe", "The recipe's nesterov must be true or false. Got 'maybe' instead."),
        ("milestones=a", "The recipe's milestones must be integers with commas between. Got 'a' instead."),
    ]:
        with pytest.raises(InputError) as caught:
            parse_changes([text])
        assert str(caught.value) == message
