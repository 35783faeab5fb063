"""The set as a folder: arrays in `.npz`, everything else in `manifest.json`; and the files of finished stages.

Every file is written under another name, flushed and renamed, so it is whole or absent. The manifest comes last:
without it there is no set, only stages of one.
"""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import safetensors
import safetensors.torch
from torch import Tensor

from ddu._version import __version__
from ddu.data._arrays import save_arrays
from ddu.errors import ArtifactError, InputError
from ddu.files import whole_file, write_bytes, write_json

FORMAT = "ddu-dirty-mnist"
FORMAT_VERSION = 1
SPLITS = ("train", "test")

_MANIFEST = "manifest.json"


def digest(*parts: Any) -> str:
    """A short fingerprint of settings.

    >>> digest({"epochs": 4}, 0) == digest({"epochs": 4}, 1)
    False
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def array_digest(*arrays: np.ndarray) -> str:
    """SHA-256 of arrays: dtypes, shapes and bytes."""
    content = hashlib.sha256()
    for array in arrays:
        content.update(f"{array.dtype}|{array.shape}|".encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()


def stage(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What an earlier run left at `path`, or else what `make` gives, which is left there for the next run."""
    if not path.exists():
        write_bytes(path, safetensors.torch.save({name: tensor.contiguous() for name, tensor in make().items()}))
    return read_tensors(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a finished stage."""
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ArtifactError(f"{path} is missing or damaged ({error}). Delete it and make the set again.") from error


def has_manifest(folder: Path) -> bool:
    """Whether the folder holds a finished set."""
    return (folder / _MANIFEST).is_file()


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Declares the set finished."""
    write_json(folder / _MANIFEST, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What is known of a finished set."""
    path = folder / _MANIFEST
    if not path.is_file():
        raise ArtifactError(
            f"There is no Ambiguous-MNIST in {folder}: it has no {_MANIFEST}. "
            f"Make it with: ddu data make dirty-mnist --output {folder}"
        )
    try:
        manifest = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}). Delete it and make the set again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{path} does not describe an Ambiguous-MNIST.")
    if manifest["format_version"] > FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {manifest['format_version']}, and ddu {__version__} reads up to "
            f"{FORMAT_VERSION}: install the newer ddu that wrote it, or a later one."
        )
    return manifest


def write_arrays(folder: Path, split: str, arrays: dict[str, np.ndarray]) -> str:
    """Writes the arrays of a split and returns their fingerprint."""
    with whole_file(_arrays_file(folder, split)) as file:
        save_arrays(file, arrays)
    return _content_digest(arrays)


def read_arrays(folder: Path, split: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a split, and the manifest."""
    manifest = read_manifest(folder)
    if split not in SPLITS:
        raise InputError(f"Ambiguous-MNIST has the splits {', '.join(SPLITS)}, and no {split!r}.")
    path = _arrays_file(folder, split)
    try:
        with np.load(io.BytesIO(path.read_bytes())) as file:
            arrays = dict(file)
    except (OSError, ValueError, BadZipFile) as error:
        raise ArtifactError(f"{path} is missing or damaged ({error}). Copy it again, or make the set again.") from error
    if _content_digest(arrays) != manifest["splits"][split]["sha256"]:
        raise ArtifactError(f"{path} was changed after it was made: its checksum does not match the manifest's.")
    return arrays, manifest


def _arrays_file(folder: Path, split: str) -> Path:
    return folder / f"ambiguous_{split}.npz"


def _content_digest(arrays: dict[str, np.ndarray]) -> str:
    return array_digest(*(arrays[name] for name in sorted(arrays)))
