"""Members that are trained together: the weights that each gets alone, and which members can do it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddu import create_model
from ddu.errors import InputError, NotSupportedError
from ddu.layers import spectral_norm
from ddu.training import Recipe, fit, fit_members
from ddu.training._stack import Stack, StackedCrossEntropy, StackedSamples
from ddu.training.members import find_obstacle, train_together

PLAIN = {"spectral_norm": None, "sensitive": False}
SEEDS = [3, 4, 5]
RECIPE = Recipe(epochs=3, batch_size=16, lr=0.1, schedule="constant")


def mlp() -> nn.Module:
    return create_model("resffn2_8", in_features=4, num_classes=3, **PLAIN)


def lenet() -> nn.Module:
    return create_model("lenet", num_classes=3, width=0.5, **PLAIN)


def tanh() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 3))


def members_of(make: Callable[[], Any], count: int = 3) -> list[Any]:
    """In double precision, so that rounding stays small through many steps."""
    torch.manual_seed(0)
    return [make().double() for _ in range(count)]


def samples(count=100, *, seed=1, shape=(4,)):
    """Three classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs + labels.view(-1, *([1] * len(shape))), labels)


def check_same(members, alone):
    for one, other in zip(members, alone, strict=True):
        assert not one.training
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-9, atol=1e-12)


RECIPES = {
    "step": {"milestones": (1, 2), "schedule": "step", "nesterov": True},
    "decay, smoothing": {"weight_decay": 0.1, "label_smoothing": 0.2, "momentum": 0.5, "schedule": "cosine"},
    "adam": {"optimiser": "adam", "lr": 1e-2, "warmup_epochs": 1},
    "full batches": {"drop_last": True, "schedule": "one_cycle"},
    "repeated": {"samples_per_epoch": 170},
}


@pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES)
def test_members_trained_together_are_those_trained_alone(changes):
    members, recipe = members_of(mlp), RECIPE.with_changes(**changes)
    alone = copy.deepcopy(members)
    fit_members(members, samples(), recipe=recipe, seeds=SEEDS, together=True, progress=False)
    for model, seed in zip(alone, SEEDS, strict=True):
        fit(model, samples(), recipe=recipe, seed=seed, progress=False)
    check_same(members, alone)


@pytest.mark.parametrize(("make", "shape"), [(lenet, (1, 16, 16)), (tanh, (4,))])
def test_members_of_other_kinds_are_those_of_a_bare_loop(make, shape):
    members, train = members_of(make), samples(40, shape=shape)
    bare = copy.deepcopy(members)
    fit_members(members, train, recipe=RECIPE, seeds=SEEDS, together=True, progress=False)
    for model, seed in zip(bare, SEEDS, strict=True):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        sampler = DistributedSampler(train, 1, 0, seed=seed)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for inputs, labels in DataLoader(train, 16, sampler=sampler):
                optimiser.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                optimiser.step()
        model.eval()
    check_same(members, bare)


def test_each_member_keeps_the_best_epoch_of_its_own():
    recipe = RECIPE.with_changes(epochs=6, lr=0.2, select="best")
    members, held_out = members_of(mlp), samples(30, seed=2)
    alone = copy.deepcopy(members)
    fit_members(members, samples(), held_out, recipe=recipe, seeds=SEEDS, together=True, progress=False)
    epochs = [
        fit(model, samples(), held_out, recipe=recipe, seed=seed, progress=False).epoch
        for model, seed in zip(alone, SEEDS, strict=True)
    ]
    assert len(set(epochs)) > 1
    check_same(members, alone)


def test_of_equally_good_epochs_the_first_is_kept():
    stack, objective = Stack([nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)]), StackedCrossEntropy()
    ones, zeros = torch.ones(4, 2, 1), torch.zeros(4, 2, dtype=torch.int64)
    epochs = (1.0, -1.0), (2.0, 2.0), (3.0, 3.0), (-4.0, -4.0)  # a member is right where its first weight is positive
    for weights in epochs:
        objective.on_epoch_start(stack)
        with torch.no_grad():
            stack.get_parameter("network.weight").copy_(torch.tensor([[[weight], [-weight]] for weight in weights]))
            objective.loss(stack, ones, zeros)
        objective.on_epoch_end(stack)
    objective.load_best(stack)
    assert stack.get_parameter("network.weight")[:, 0, 0].tolist() == [1.0, 2.0]


def test_without_validation_the_best_epoch_is_the_last():
    members = members_of(mlp)
    alone = copy.deepcopy(members)
    recipe = RECIPE.with_changes(select="best")
    fit_members(members, samples(), recipe=recipe, seeds=SEEDS, together=True, progress=False)
    fit_members(alone, samples(), recipe=recipe, seeds=SEEDS, together=False, progress=False)
    check_same(members, alone)


def test_seeds_decide_the_order_of_each_member():
    first, *_ = members_of(mlp)
    members = [copy.deepcopy(first) for _ in range(3)]
    fit_members(members, samples(), recipe=RECIPE, seeds=[1, 1, 2], together=True, progress=False)
    one, same, other = (member.head.weight for member in members)
    torch.testing.assert_close(one, same, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(one, other)


def test_frozen_weights_stay():
    members = members_of(tanh)
    for member in members:
        member[0].requires_grad_(False)
    before = copy.deepcopy(members)
    fit_members(members, samples(), recipe=RECIPE, seeds=SEEDS, together=True, progress=False)
    for one, other in zip(members, before, strict=True):
        assert torch.equal(one[0].weight, other[0].weight)
        assert not torch.equal(one[4].weight, other[4].weight)


def test_the_history_of_a_stack_has_the_means_of_losses_and_accuracies():
    members, held_out = members_of(mlp), samples(30, seed=2)
    stack, shown = Stack(members), StackedSamples(held_out, SEEDS)
    history = fit(
        stack, StackedSamples(samples(), SEEDS), shown, recipe=RECIPE, objective=StackedCrossEntropy(), progress=False
    ).history
    inputs, labels = held_out.tensors
    with torch.no_grad():
        logits = [member(inputs) for member in stack.unstack(members)]
    losses = [float(cross_entropy(one, labels)) for one in logits]
    accuracies = [float((one.argmax(1) == labels).double().mean()) for one in logits]
    assert history[-1]["val_loss"] == pytest.approx(sum(losses) / 3, rel=1e-9)
    assert history[-1]["val_accuracy"] == pytest.approx(sum(accuracies) / 3, rel=1e-9)


def test_mixed_precision_trains_too():
    members = [member.float() for member in members_of(mlp)]
    inputs, labels = samples().tensors
    train = TensorDataset(inputs.float(), labels)
    options = {
        "recipe": RECIPE.with_changes(precision="bf16-mixed", epochs=1, lr=0.02),
        "seeds": SEEDS,
        "progress": False,
    }
    alone = copy.deepcopy(members)
    fit_members(members, train, together=True, **options)
    fit_members(alone, train, together=False, **options)
    for one, other in zip(members, alone, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=1e-2)  # bfloat16 has 8 bits


def test_a_loss_is_refused_for_an_empty_set():
    empty = TensorDataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    for changes in ({}, {"samples_per_epoch": 10}):
        with pytest.raises(InputError, match="The training set is empty"):
            fit_members(members_of(mlp), empty, recipe=RECIPE, seeds=SEEDS, together=True, **changes)


def with_buffer() -> nn.Module:
    network = tanh()
    network.register_buffer("scale", torch.ones(1))
    return network


OBSTACLES = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        {},
        "BatchNorm1d is not known to be without state and randomness",
    ),
    "spectral norm": (
        lambda: nn.Sequential(spectral_norm(nn.Linear(4, 3), 1.0)),
        {},
        "ParametrizedLinear is not known to be without state and randomness",
    ),
    "dropout": (
        lambda: create_model("resffn2_8", in_features=4, dropout=0.1, **PLAIN),
        {},
        "each needs its own random numbers for dropout",
    ),
    "buffers": (with_buffer, {}, "their buffers are not stacked"),
    "augmentation": (
        lenet,
        {"augmentation": "crop_flip"},
        "each needs its own random numbers for the augmentation 'crop_flip'",
    ),
    "half precision": (
        mlp,
        {"precision": "16-mixed"},
        "the precision '16-mixed' skips a step of all where the gradient of one overflows",
    ),
}


@pytest.mark.parametrize(("make", "changes", "reason"), OBSTACLES.values(), ids=OBSTACLES)
def test_members_that_cannot_be_stacked_say_why(make, changes, reason):
    members, recipe = [make(), make()], RECIPE.with_changes(**changes)
    assert find_obstacle(members, recipe) == reason
    assert not train_together(members, recipe)
    with pytest.raises(NotSupportedError) as caught:
        train_together(members, recipe, together=True)
    assert str(caught.value) == f"These members cannot be trained together: {reason}. Set together=False."


def test_members_of_different_architectures_are_not_stacked():
    wider = create_model("resffn2_9", in_features=4, num_classes=3, **PLAIN)
    slope = [nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(slope)) for slope in (0.1, 0.2)]
    frozen = [mlp(), mlp().requires_grad_(False)]
    for members in ([mlp(), wider], slope, frozen):
        assert find_obstacle(members, RECIPE) == "their architectures differ"
    assert find_obstacle([mlp()], RECIPE) == "there is only one"


def test_the_default_is_what_pays(monkeypatch):
    narrow, wide = (
        [create_model(name, in_features=4, **PLAIN) for _ in range(3)] for name in ("fc_net4_128", "fc_net4_256")
    )
    images = [lenet() for _ in range(3)]
    with_batch_norm = [create_model("resnet18", width=0.125, **PLAIN) for _ in range(2)]
    everything = narrow, wide, images, with_batch_norm
    on_cpu = [train_together(members, RECIPE, accelerator="cpu") for members in everything]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_gpu = [train_together(members, RECIPE) for members in everything]
    assert on_cpu == [train_together(members, RECIPE, accelerator="cpu") for members in everything]
    assert (on_cpu, on_gpu) == ([True, False, False, False], [True, True, False, False])
    assert train_together(images, RECIPE, together=True)
    assert not train_together(narrow, RECIPE, together=False)


def test_members_with_state_are_trained_one_after_the_other():
    def make():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    members = members_of(make, 2)
    alone = copy.deepcopy(members)
    fit_members(members, samples(), recipe=RECIPE, seeds=[3, 4], progress=False)
    for model, seed in zip(alone, (3, 4), strict=True):
        fit(model, samples(), recipe=RECIPE, seed=seed, progress=False)
    check_same(members, alone)
