"""A network by one name: `module:function`, or `timm:NAME` and `torchvision:NAME` with weights in a safetensors file.

With it comes how it wants to be shown an image, where that can be read. Nothing is unpickled.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ddu.data import Preprocessing
from ddu.errors import ArtifactError, DDUError, InputError
from ddu.features import Tap
from ddu.features.taps import FeatureBatch
from ddu.files import FilePath
from ddu.messages import check_name, require

LIBRARIES = ("timm", "torchvision")
"""Networks of these are named `LIBRARY:NAME`."""

_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib", ".tar")

# What turns an image into a tensor of floats in [0, 1], as every preprocessing does
_TO_TENSOR = ("ToTensor", "MaybeToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype")

# What networks raise on inputs of a shape that they do not take; anything else is a bug, and keeps its traceback
_MISFITS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)


@dataclass(frozen=True)
class Network:
    """A network, where it comes from, and how it wants to be shown an image.

    Attributes:
        name: What it was opened by.
        model: The network, in evaluation mode.
        preprocessing: None where it is not known.
        options: What a library was asked for beside the name, as JSON.
    """

    name: str
    model: nn.Module
    preprocessing: Preprocessing | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_of_library(self) -> bool:
        """Whether timm or torchvision made it, so that its name and its weights are enough to make it again."""
        return is_of_library(self.name)


def is_of_library(name: str) -> bool:
    """Whether a name is one of timm's or torchvision's networks."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library in LIBRARIES


def open_network(
    name: FilePath, *, weights: FilePath | None = None, options: Mapping[str, Any] | None = None
) -> Network:
    """The network behind a name.

    Args:
        name: `module:function`, where the function takes no arguments and returns a network with its weights, or the
            network and its preprocessing (see `read_preprocessing`); or `timm:NAME` or `torchvision:NAME`.
        weights: A safetensors file with the state of a network of timm's or torchvision's.
        options: For timm's or torchvision's function that makes it, such as {"num_classes": 10}.

    Modules are looked for in the working folder as well.
    """
    name = os.fspath(name)
    refuse_pickles(name)
    if is_of_library(name):
        if weights is None:
            raise InputError(f"{name} has random weights: give the trained ones, a safetensors file, with --weights.")
        model, preprocessing = _make(name, options or {})
        load_weights(model, weights, name)
        return Network(name, model.eval(), preprocessing, dict(options or {}))
    if weights is not None or options:
        raise InputError(
            f"Weights and options are for {' and '.join(f'{library}:NAME' for library in LIBRARIES)}. Got {name} "
            "instead: load them in the function."
        )
    with _working_folder():
        made = _called(name, find_function(name))
    model, preprocessing = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{name} must return a network, an nn.Module, or (network, preprocessing). Got {type(model).__name__} "
            "instead."
        )
    known = None if preprocessing is None else read_preprocessing(preprocessing)
    return Network(name, model.eval(), known)


def refuse_pickles(file: FilePath) -> None:
    """Refuses a file that would have to be unpickled, by its name."""
    path = Path(file)
    if path.suffix.lower() in _PICKLES:
        raise InputError(
            f"{path} would have to be unpickled, which runs whatever code is in the file. Write a function that makes "
            "the network and loads weights by torch.load(file, weights_only=True), and name it as module:function; or "
            "save the weights by safetensors.torch.save_file, and name a network of timm or torchvision."
        )


def find_function(name: str) -> Callable[..., Any]:
    """What `module:function` names."""
    module, colon, function = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise InputError(f"A network is named module:function, timm:NAME or torchvision:NAME. Got {name!r} instead.")
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise InputError(f"The module {module} cannot be imported: {error}.") from error
        raise InputError(
            f"There is no module {error.name!r} in the working folder, nor anywhere else that Python imports from."
        ) from error
    except Exception as error:
        raise InputError(f"The module {module} cannot be imported: {error!r}.") from error
    known = [one for one, value in vars(home).items() if callable(value) and not one.startswith("_")]
    check_name(function, {*known, *([function] * hasattr(home, function))}, f"{module} has no function {{name!r}}")
    return getattr(home, function)


def first_batch(tap: Tap, inputs: Tensor, name: str, *, whose: str = "", way_out: str) -> FeatureBatch:
    """What a tap reads of the first inputs that a network is shown, or an error that says which it cannot take.

    Args:
        tap: Of the network.
        inputs: As its preprocessing gives them.
        name: What the network was opened by.
        whose: Whose inputs they are, such as "cifar10's".
        way_out: The last sentence of the error.
    """
    try:
        return tap(inputs)
    except (DDUError, torch.OutOfMemoryError):
        raise
    except _MISFITS as error:
        shape = " x ".join(map(str, inputs.shape[1:])) + " numbers" * (inputs.ndim == 2)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"{name} cannot take {whose}{' ' * bool(whose)}inputs of {shape}: {reason}. {way_out}"
        ) from error


def load_weights(model: nn.Module, weights: FilePath, name: str) -> None:
    """Loads the state of a network from a safetensors file; other names or shapes than its own are refused."""
    refuse_pickles(weights)
    try:
        model.load_state_dict(safetensors.torch.load_file(os.fspath(weights)))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {weights} with the weights of {name}.") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise ArtifactError(f"{weights} is truncated, or no safetensors file: {error}.") from error
    except RuntimeError as error:
        raise InputError(f"{weights} does not have the weights of {name}: {_first_of_each(str(error))}.") from error


def _first_of_each(complaint: str) -> str:
    r"""What PyTorch says of a state that does not fit, with one name of each kind and how many more there are.

    >>> _first_of_each('Error(s) ...\n\tMissing key(s) in state_dict: "a", "b", "c". \n\tsize mismatch for d.')
    'Missing key(s) in state_dict: "a" and 2 more; size mismatch for d'
    """
    missing, sizes = [], []
    for line in complaint.split("\n\t")[1:] or [complaint]:
        first, *others = line.rstrip(" .").split(", ") if "key(s)" in line else [line.rstrip(" .")]
        (missing if "key(s)" in line else sizes).append(f"{first} and {len(others):,} more" if others else first)
    return "; ".join(missing + sizes[:1])


def read_preprocessing(given: Any) -> Preprocessing:
    """A preprocessing as other packages write it.

    Args:
        given: A `Preprocessing` or its JSON; the data configuration of a timm network; the `transforms()` of
            torchvision's weights; or a `Compose` of one `Resize`, one square `CenterCrop`, what makes a tensor and
            `Normalize`, like the one of `timm.data.create_transform`.

    Raises:
        InputError: It does something else, which is named.

    >>> config = {"input_size": (3, 224, 224), "interpolation": "bilinear", "crop_pct": 0.875, "mean": (0.5,) * 3}
    >>> read_preprocessing(config | {"std": (0.5,) * 3, "crop_mode": "center"}).kept
    0.875
    """
    if isinstance(given, Preprocessing):
        return given
    if isinstance(given, Mapping):
        return _of_config(given) if "input_size" in given else Preprocessing.from_json(given)
    if all(hasattr(given, name) for name in ("crop_size", "resize_size", "mean", "std", "interpolation")):
        (crop,), (size,) = given.crop_size, given.resize_size
        return _square(crop, size, given.mean, given.std, given.interpolation)
    if hasattr(given, "transforms"):
        return _of_steps(list(given.transforms))
    raise InputError(
        "A preprocessing is a ddu.data.Preprocessing, or a transform of torchvision or timm. Got "
        f"{type(given).__name__} instead."
    )


def _of_config(config: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing of a timm data configuration."""
    if config.get("crop_mode", "center") != "center":
        raise _unreadable(f"the crop mode {config['crop_mode']!r}")
    resizing, scale = _resizing(config.get("interpolation", "bilinear")), {n: tuple(config[n]) for n in ("mean", "std")}
    return Preprocessing(tuple(config["input_size"]), **scale, kept=config.get("crop_pct", 1.0), resizing=resizing)


def _of_steps(steps: list[Any]) -> Preprocessing:
    """The preprocessing of the steps of a `Compose`."""
    found: dict[str, Any] = {}
    for step in steps:
        kind = type(step).__name__
        if kind in found or (kind not in ("Resize", "CenterCrop", "Normalize", "Grayscale") and kind not in _TO_TENSOR):
            raise _unreadable(f"{'a second ' * (kind in found)}{kind}")
        if kind not in _TO_TENSOR:
            found[kind] = step
    resize, crop, normalise = (found.get(kind) for kind in ("Resize", "CenterCrop", "Normalize"))
    if resize is None or crop is None:
        raise _unreadable("no Resize to one number followed by CenterCrop, so that its size is unknown")
    mean, std = ((0.0,) * 3, (1.0,) * 3) if normalise is None else (normalise.mean, normalise.std)
    if "Grayscale" in found and normalise is None:
        mean, std = (0.0,), (1.0,)
    sizes = [size] if isinstance(size := resize.size, int) else list(size)
    crops = {crop.size} if isinstance(crop.size, int) else {*crop.size}
    if len(sizes) != 1 or len(crops) != 1:
        raise _unreadable(f"Resize({resize.size}) and CenterCrop({crop.size}), where only squares can be read")
    return _square(crops.pop(), sizes[0], mean, std, resize.interpolation)


def _square(crop: int, size: int, mean: Any, std: Any, interpolation: Any) -> Preprocessing:
    """The shorter side is scaled to `size`, and a square of `crop` pixels is cut out."""
    if crop > size:
        raise _unreadable(f"a crop of {crop} out of {size} pixels")
    scale = {name: tuple(map(float, values)) for name, values in (("mean", mean), ("std", std))}
    resizing = _resizing(interpolation)
    return Preprocessing((len(scale["mean"]), crop, crop), **scale, kept=crop / size, resizing=resizing)


def _resizing(interpolation: Any) -> str:
    kind = str(getattr(interpolation, "value", interpolation))
    if kind not in ("bilinear", "bicubic"):
        raise _unreadable(f"{kind} resizing")
    return kind


def _unreadable(what: str) -> InputError:
    return InputError(f"This preprocessing has {what}, which ddu does not do: return a ddu.data.Preprocessing instead.")


def _make(name: str, options: Mapping[str, Any]) -> tuple[nn.Module, Preprocessing | None]:
    """A network of a library with random weights, and its usual preprocessing."""
    library, _, architecture = name.partition(":")
    needed = {"extra": "vision", "purpose": f"The network {name}"}
    try:
        if library == "timm":
            timm: Any = require("timm", **needed)
            check_name(architecture, timm.list_models(), "timm has no network {name!r}")
            model = timm.create_model(architecture, pretrained=False, **options)
            return model, read_preprocessing(timm.data.resolve_model_data_config(model))
        models: Any = require("torchvision.models", **needed)
        check_name(architecture, models.list_models(module=models), "torchvision has no classifier {name!r}")
        model = models.get_model(architecture, weights=None, **options)
        return model, read_preprocessing(models.get_model_weights(architecture).DEFAULT.transforms())
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{name} cannot be made with {dict(options)}: {error}") from error


def _called(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise InputError(f"{name}() raised {error!r}: it must return a network without arguments.") from error


@contextmanager
def _working_folder() -> Iterator[None]:
    """Imports from the working folder too, as `python -m` does and an installed command does not."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = [*before, *(path for path in sys.path[1:] if path not in before)]
