"""The folder that Ambiguous-MNIST is kept in: arrays in `.npz`, everything else in `manifest.json`.

Every file is whole or absent. The manifest comes last: without it there is no set.
"""

import hashlib
import io
import json
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ddu._version import __version__
from ddu.errors import ArtifactError, InputError
from ddu.files import whole_file, write_json

FORMAT = "ddu-dirty-mnist"
FORMAT_VERSION = 1
SPLITS = ("train", "test")

_MANIFEST = "manifest.json"


def seed_for(seed: int, *purpose: str | int) -> int:
    """A seed of its own for every purpose, so that the parts of the work can be done in any order, or again."""
    words = "|".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little") >> 1


def numbers(seed: int, *purpose: str | int) -> np.random.Generator:
    """A random stream of its own for every purpose.

    >>> [int(numbers(0, *purpose).integers(100)) for purpose in (("mix", 1), ("mix", 2), ("mix", 1))]
    [60, 72, 60]
    """
    return np.random.default_rng(seed_for(seed, *purpose))


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
    """Writes the arrays of a split, which are numbers, and returns their SHA-256."""
    with whole_file(_arrays_file(folder, split)) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return _digest(arrays)


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
    if _digest(arrays) != manifest["splits"][split]["sha256"]:
        raise ArtifactError(f"{path} was changed after it was made: its checksum does not match the manifest's.")
    return arrays, manifest


def _arrays_file(folder: Path, split: str) -> Path:
    return folder / f"ambiguous_{split}.npz"


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of arrays: dtypes, shapes and bytes, in the order of their names."""
    content = hashlib.sha256()
    for name in sorted(arrays):
        content.update(f"{arrays[name].dtype}|{arrays[name].shape}|".encode())
        content.update(np.ascontiguousarray(arrays[name]).data)
    return content.hexdigest()
