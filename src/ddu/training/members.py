"""`fit_members`: trains the members of an ensemble at once where that pays, and one after the other elsewhere."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from ddu.errors import NotSupportedError
from ddu.models import LeNet
from ddu.models.mlp import MLP, PlainLayer, ResidualLayer
from ddu.training._stack import Stack, StackedCrossEntropy, StackedSamples
from ddu.training.loop import fit, repeated
from ddu.training.recipes import Recipe, find_recipe

# What is known to work under torch.func.vmap: layers without state and without random numbers. The type must be the
# very one, since a parametrization such as spectral norm makes a new type, and a subclass may do anything
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_LAYERS = (
    *_CONVOLUTIONS,
    *(nn.Linear, nn.LayerNorm, nn.Identity, nn.Flatten, nn.Dropout),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.Sequential, MLP, PlainLayer, ResidualLayer, LeNet),
)

# On a CPU, a larger member spends its step on arithmetic, which one vectorised step does not save: members of 76,000
# weights (FC-Net-4-128) train faster together, of 280,000 (FC-Net-4-256) hardly, and of a million (FC-Net-4-512) more
# slowly, by benchmarks/ensembles.py
_MOST_WEIGHTS = 100_000


def fit_members(
    models: Sequence[nn.Module],
    train: Dataset[Any],
    validation: Dataset[Any] | None = None,
    *,
    seeds: Sequence[int],
    recipe: Recipe | str = "quick",
    together: bool | None = None,
    accelerator: str = "auto",
    workers: int = 0,
    progress: bool | None = None,
    **changes: Any,
) -> list[nn.Module]:
    """Trains networks of one architecture on the same data, each as `fit` does with its own seed.

    Members that are trained together go through one vectorised step (`torch.func.vmap`). Each has the order of samples,
    the learning rates and the best epoch that it has alone, and so the same weights but for rounding. Networks without
    state and randomness can do it: no batch norm, spectral norm, dropout or augmentation. It pays where steps are
    short. By default networks without convolutions are trained together, on a CPU only if a member has at most 100,000
    weights; all others are trained one after the other.

    Different from separate training: a loss that becomes infinite in one member ends the training of all; loss and
    accuracy that are shown are the means of all members; a data set that draws random numbers draws others.

    Args:
        models: The members, with their initial weights; they are trained in place.
        train: As in `fit`.
        validation: As in `fit`.
        seeds: A seed per member.
        recipe: As in `fit`.
        together: Whether to train them together; by default where it pays.
        accelerator: As in `fit`.
        workers: As in `fit`.
        progress: As in `fit`.
        **changes: Fields of the recipe to change.

    Returns:
        The members, in evaluation mode.

    Raises:
        NotSupportedError: `together=True` for members that cannot be trained together.
    """
    recipe = (find_recipe(recipe) if isinstance(recipe, str) else recipe).with_changes(**changes)
    options: dict[str, Any] = {"accelerator": accelerator, "workers": workers, "progress": progress}
    if not train_together(models, recipe, together=together, accelerator=accelerator):
        for model, seed in zip(models, seeds, strict=True):
            fit(model, train, validation, recipe=recipe, seed=seed, **options)
        return list(models)
    stack, objective = Stack(models), StackedCrossEntropy(recipe.label_smoothing)
    fit(
        stack,
        StackedSamples(repeated(train, recipe.samples_per_epoch), seeds),
        None if validation is None else StackedSamples(validation, seeds),
        # Samples are repeated already, and the objective knows the best epoch of each member
        recipe=recipe.with_changes(samples_per_epoch=None, select="last"),
        objective=objective,
        **options,
    )
    if recipe.select == "best" and validation is not None:
        objective.load_best(stack)
    return stack.unstack(models)


def train_together(
    models: Sequence[nn.Module], recipe: Recipe, *, together: bool | None = None, accelerator: str = "auto"
) -> bool:
    """Whether `fit_members` trains these members together; the arguments are its own."""
    if together is False:
        return False
    obstacle = find_obstacle(models, recipe)
    if together and obstacle:
        raise NotSupportedError(f"These members cannot be trained together: {obstacle}. Set together=False.")
    return not obstacle and (together or _pays(models[0], accelerator))


def find_obstacle(models: Sequence[nn.Module], recipe: Recipe) -> str | None:
    """Why members cannot be trained together; None if they can."""
    if len(models) < 2:
        return "there is only one"
    for module in models[0].modules():
        if type(module) not in _LAYERS:
            return f"{type(module).__name__} is not known to be without state and randomness"
        if isinstance(module, nn.Dropout) and module.p > 0:
            return "each needs its own random numbers for dropout"
    if any(True for _ in models[0].buffers()):
        return "their buffers are not stacked"
    if any(_architecture(model) != _architecture(models[0]) for model in models):
        return "their architectures differ"
    if recipe.augmentation != "none":
        return f"each needs its own random numbers for the augmentation {recipe.augmentation!r}"
    if recipe.precision == "16-mixed":
        return "the precision '16-mixed' skips a step of all where the gradient of one overflows"
    return None


def _architecture(model: nn.Module) -> tuple[Any, ...]:
    """What must be equal: the layers with their options, and the parameters but for their values."""
    parameters = [(name, p.shape, p.dtype, p.device, p.requires_grad) for name, p in model.named_parameters()]
    return repr(model), parameters


def _pays(model: nn.Module, accelerator: str) -> bool:
    """Whether one vectorised step is faster than the steps of all members."""
    if any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        return False  # it is a grouped convolution, which is no faster than one by one
    on_cpu = accelerator == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())
    return not on_cpu or sum(parameter.numel() for parameter in model.parameters()) <= _MOST_WEIGHTS
