"""One forward pass of any model: inputs as it takes them, the logits in what it returns, and help where it fails.

run          calls the model, or a function in its place, on its device, in its precision, with its argument names
logits_in    finds the logits in whatever the model returned
undisturbed  evaluation mode without gradients; afterwards the model is as it was
observed     all of it: one undisturbed pass, or an error that says which form of input the model takes
"""

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.random import fork_rng
from torch.utils.data import DataLoader, Dataset

from ddu.errors import InputError
from ddu.messages import shown

T = TypeVar("T")

_COMPILER = threading.RLock()
_MODES = threading.Lock()
# How many passes are under way, of each module that was training before
_PASSES: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_TRANSFORM = (
    "transform it as in training, for instance transform = torchvision.transforms.Compose([Resize(size), ToTensor(), "
    "Normalize(mean, std)]), and pass transform(image)[None], or torch.stack([transform(i) for i in images])."
)


def check_model(model: object) -> None:
    """Refuses what is not a network."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model= must be a torch.nn.Module. Got {shown(model)} instead.")


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of parallel training and torch.compile, which rename its layers."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def example_of(model: nn.Module) -> Tensor | None:
    """The first floating tensor of a model: its device and precision are those of the inputs."""
    return next((p for p in chain(model.parameters(), model.buffers()) if p.dtype.is_floating_point), None)


def run(function: Callable[..., Any], model: nn.Module, inputs: Any) -> Any:
    """Calls the model, or a function in its place, with copies of the inputs."""
    args, kwargs = arguments(model, inputs)
    return function(*args, **kwargs)


def arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of one forward pass."""
    like = example_of(model)
    items = inputs if isinstance(inputs, Mapping | tuple | list) else (inputs,)
    values = [_placed(value, like) for value in (items.values() if isinstance(items, Mapping) else items)]
    if not any(isinstance(value, Tensor) for value in values):
        raise InputError(_not_tensors(inputs))
    if not isinstance(items, Mapping):
        return tuple(values), {}
    named = dict(zip(items, values, strict=True))
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**named)
    except TypeError as error:
        if len(values) == 1:
            return tuple(values), {}
        raise InputError(
            f"{type(model).__name__} takes ({', '.join(signature.parameters)}). "
            f"Got inputs with keys {list(named)} instead."
        ) from error
    return (), named


def _placed(value: Any, like: Tensor | None) -> Any:
    """A copy of a tensor or array on the model's device and, of floats, in its precision; others as they are."""
    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(np.array(value))  # a copy: arrays may be read-only or run backwards
        except TypeError as error:
            raise InputError(f"The inputs must be numbers. Got an array of {value.dtype} instead.") from error
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.uint8:
        raise InputError(
            f"The inputs are uint8, of shape {tuple(value.shape)}: scale them to floats as in training, for "
            "instance images.float() / 255. If the model takes bytes and scales them itself, pass images.int()."
        )
    device = value.device if like is None else like.device
    dtype = like.dtype if like is not None and value.is_floating_point() else value.dtype
    return value.detach().to(device, dtype, copy=True)  # a model that works in place must not change its input


def _not_tensors(inputs: Any) -> str:
    """What to do about inputs without a single tensor."""
    if isinstance(inputs, DataLoader):
        return (
            "The inputs are a DataLoader, and a tap takes one batch: detector.predict(loader) runs all of them, and "
            "ddu.features.extract(tap, loader) gives their features."
        )
    if isinstance(inputs, Dataset):
        return (
            f"The inputs are a {type(inputs).__name__}, and a tap takes one batch: detector.predict(dataset) runs all "
            "of it, and ddu.features.extract(tap, DataLoader(dataset, batch_size=...)) gives its features."
        )
    first = inputs[0] if isinstance(inputs, tuple | list) and inputs else inputs
    if type(first).__module__.split(".")[0] == "PIL":  # which need not be installed
        return f"The inputs are PIL images, and a model takes tensors: {_TRANSFORM}"
    if isinstance(first, str | os.PathLike):
        return (
            f"The inputs are text ({os.fspath(first)!r}), and a model takes tensors. Text goes through a tokenizer "
            f"first. Of the name of an image, open the file with PIL.Image.open(name), and {_TRANSFORM}"
        )
    return f"The inputs must be a tensor or an array, or a tuple, list or mapping of them. Got {shown(inputs)} instead."


def logits_in(output: Any) -> Tensor:
    """The logits (N, C) in what a model returned."""
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    elif isinstance(output, tuple | list):
        logits = next((item for item in output if isinstance(item, Tensor)), None)
    else:
        logits = output
    if not isinstance(logits, Tensor):
        raise InputError(
            "The model must return its logits: a tensor, a mapping or an object with 'logits', or a tuple that "
            f"starts with them. Got {shown(output)} instead."
        )
    if logits.ndim != 2:
        raise InputError(
            f"The model's logits must have the shape (N, C). Got {tuple(logits.shape)} instead: return one logit per "
            "class for each input, also where there are two classes."
        )
    return logits


def check_logits(logits: Tensor) -> None:
    """Refuses probabilities in place of logits: rows of numbers that are not negative and sum to 1.

    A few rows of logits may look like that by accident, in particular those of zeros and ones.
    """
    if len(logits) < 3 or logits.shape[1] < 2 or bool((logits < 0).any()) or bool((logits == logits.round()).all()):
        return
    eps = torch.finfo(logits.dtype).eps
    # The rounding of a softmax, which sums half precision in single, grows as the root of the number of classes
    tolerance = max(4 * eps, logits.shape[1] ** 0.5 * min(eps, torch.finfo(torch.float32).eps))
    if bool(((logits.double().sum(1) - 1).abs() <= tolerance).all()):
        raise InputError(
            f"The model returns probabilities instead of logits: each of {len(logits)} rows sums to 1. Leave out its "
            "softmax, for instance model[:-1], or have it return log-probabilities, probs.log()."
        )


def are_log_probabilities(logits: Tensor) -> bool:
    """Whether exp of every row sums to 1, for at least three rows of at least two classes."""
    if len(logits) < 3 or logits.shape[1] < 2:
        return False
    tolerance = 4 * torch.finfo(logits.dtype).eps * logits.abs().amax(1).clamp(min=1)
    return bool((torch.logsumexp(logits.double(), 1).abs() <= tolerance).all())


# Leaving the model as it was


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module's mode and the random state come back, whatever happens."""
    modules, like = list(model.modules()), example_of(model)
    device = None if like is None or like.device.type in ("cpu", "meta") else like.device
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(fork_rng([device], device_type=device.type) if device else fork_rng([]))
        if any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in modules):
            # compiled code does not see later hooks; the stance is of the whole process: one thread at a time
            stack.enter_context(_COMPILER)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_evaluating(modules))
        yield


@contextmanager
def _evaluating(modules: list[nn.Module]) -> Iterator[None]:
    """Evaluation mode, which threads share: the first that finds a module training stops it, the last sets it going."""
    held = []
    with _MODES:
        for module in modules:
            if module.training or module in _PASSES:
                _PASSES[module] = _PASSES.get(module, 0) + 1
                module.training = False
                held.append(module)
    try:
        yield
    finally:
        with _MODES:
            for module in held:
                _PASSES[module] -= 1
                if not _PASSES[module]:
                    del _PASSES[module]
                    module.training = True


def observed(model: nn.Module, inputs: Any, work: Callable[[], tuple[T, Tensor]]) -> tuple[T, Tensor]:
    """What `work` reads from a model that is left as it was, and the logits.

    Where that fails, or gives another number of rows than there are inputs, and the model takes the inputs in another
    form, the error says in which. A model that takes its batch as the second dimension takes no other form.
    """
    with undisturbed(model):
        try:
            value, logits = work()
        except Exception as error:
            advice = misuse(model, inputs)
            if advice is None:
                raise
            raise InputError(advice) from error
        one_input = isinstance(inputs, Tensor | np.ndarray) and inputs.ndim
        if one_input and len(inputs) != len(logits) and (advice := misuse(model, inputs)):
            raise InputError(advice)
    return value, logits.detach().clone()


# Help with inputs that the model does not take


def misuse(model: nn.Module, inputs: Any) -> str | None:
    """What to say about inputs that the model failed on: the first of some likely forms that it does take, if any."""
    return next((advice for form, rows, advice in _other_forms(model, inputs) if _takes(model, form, rows)), None)


def _takes(model: nn.Module, inputs: Any, rows: int) -> bool:
    try:
        return len(logits_in(run(model, model, inputs))) == rows
    except Exception:  # whatever it is, the model does not take them
        return False


def _is_numeric(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")


def _other_forms(model: nn.Module, inputs: Any) -> Iterator[tuple[Any, int, str]]:
    """Forms of the inputs that may have been meant, how many rows of logits each is for, and what to say of it."""
    items = inputs if isinstance(inputs, tuple | list) else [inputs]
    if not items or not all(_is_numeric(item) and item.ndim for item in items):
        return
    tensors = [item if isinstance(item, Tensor) else torch.from_numpy(np.array(item)) for item in items]
    shapes = [tuple(item.shape) for item in tensors]
    *others, last = tensors
    if not others:
        shape, rows = shapes[0], len(last)
        yield (
            last[None],
            1,
            f"The inputs have the shape {shape}, that of a single input: give it a batch dimension, x[None] of shape "
            f"{(1, *shape)}.",
        )
        if last.ndim == 3:
            yield (
                last[:, None],
                rows,
                f"The inputs have the shape {shape}, without channels: pass x[:, None] of shape "
                f"{(rows, 1, *shape[1:])}.",
            )
        if last.ndim == 4:
            yield (
                last.movedim(-1, 1),
                rows,
                f"The inputs have the shape {shape}, with their channels last, and the model takes them first: pass "
                f"x.permute(0, 3, 1, 2) of shape {(rows, shape[3], *shape[1:3])}.",
            )
        if last.ndim > 1:
            yield (
                last.flatten(0, 1),
                rows * shape[1],
                f"The inputs have the shape {shape}, one dimension too many: pass x.flatten(0, 1). A list of batches "
                "is stacked; pass it as an iterator, iter(batches).",
            )
        like = example_of(model)
        if like is not None and not last.is_floating_point():
            yield (
                last.to(like.dtype),
                rows,
                f"The inputs are {last.dtype}, and the model takes {like.dtype}: convert and scale them as in "
                "training, for instance x.float().",
            )
        return
    if last.ndim == 1 and not last.is_floating_point() and len(last) == len(others[0]):
        yield (
            others[0] if len(others) == 1 else tuple(others),
            len(last),
            f"The inputs are {len(items)} tensors, and the last, {last.dtype} of shape {shapes[-1]}, is not one that "
            "the model takes. If it holds labels, pass the inputs alone: x of (x, y).",
        )
    if len(set(shapes)) == 1:
        yield (
            torch.stack(tensors),
            len(tensors),
            f"The inputs are a {type(inputs).__name__} of {len(tensors)} tensors of shape {shapes[0]}, which is taken "
            "for as many arguments of the model: pass one batch, torch.stack(x).",
        )
