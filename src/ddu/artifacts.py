"""A fitted detector as a folder with one safetensors file, whose metadata holds everything that is not a tensor.

Nothing is unpickled. The file is replaced in one step, so that at any moment it is the old detector or the new one, for
every reader and after every crash, however many processes save to the folder at the same time.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ddu._version import __version__
from ddu.errors import ArtifactError, InputError
from ddu.features import unwrapped
from ddu.files import write_bytes
from ddu.messages import check_entries
from ddu.provenance import versions

FORMAT = "ddu-detector"
FORMAT_VERSION = 1
FILE = "detector.safetensors"

# Levels of lists and dictionaries; the deepest are the places of several layers, at 6
_DEEPEST = 16


def save_artifact(folder: str | os.PathLike[str], content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a detector; an older one in the same folder is replaced only once the new one is safely on disk."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is a file: a detector is saved as a folder, so give another name.")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": versions("safetensors"),
        "tensors": fingerprint(tensors),
        "content": content,
    }
    write_bytes(folder / FILE, _encode(manifest, tensors))


def load_artifact(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads what `save_artifact` wrote, or says what is wrong with it.

    Returns:
        The content and the tensors.
    """
    path = Path(folder) / FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"There is no detector in {folder}: it has no {FILE}. Give the folder that save() wrote."
        ) from error
    try:
        manifest, tensors = _decode(data)
        intact = _is_intact(manifest, tensors)
    # A KeyError is a type of numbers that torch does not have, a RecursionError a nesting that no detector has
    except (safetensors.SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise ArtifactError(
            f"{path} is truncated or not written by ddu ({error}). Copy it again, or save the detector again."
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{path} does not hold a ddu detector.")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {version}, and ddu {__version__} reads up to {FORMAT_VERSION}: "
            "install the newer ddu that wrote it, or a later one."
        )
    if not intact:
        raise ArtifactError(
            f"{path} was changed after it was saved: its checksum does not match its content. Copy it again, or save "
            "the detector again."
        )
    content: Any = manifest.get("content")
    try:
        check_entries("the content", content, ("detector", "class_names", "options", "calibration", "model"))
    except InputError as error:
        raise ArtifactError(f"{path} was not written by this ddu. {error} Save the detector again.") from error
    return content, tensors


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's weights and buffers, wherever they are."""
    return fingerprint(unwrapped(model).state_dict())


def fingerprint(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of tensors by name: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _encode(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """One safetensors file, with the manifest and its checksum as metadata."""
    signed = manifest | {"sha256": _manifest_digest(manifest)}
    return safetensors.torch.save(tensors, {FORMAT: json.dumps(signed)})


def _decode(data: bytes) -> tuple[Any, dict[str, Tensor]]:
    """The inverse of `_encode`."""
    tensors = dict(sorted(safetensors.torch.load(data).items()))  # their order in the file is no order
    # A safetensors file begins with the length of its header, which is JSON
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    manifest = json.loads((header.get("__metadata__") or {}).get(FORMAT, "null"))
    if (depth := _depth(manifest)) > _DEEPEST:
        raise ValueError(f"its manifest is nested {depth} levels deep, and no detector's is deeper than {_DEEPEST}")
    return manifest, tensors


def _depth(content: Any) -> int:
    """Levels of lists and dictionaries, level by level: a recursion would be as deep."""
    depth, level = 0, [content]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def _is_intact(manifest: Any, tensors: dict[str, Tensor]) -> bool:
    return (
        isinstance(manifest, dict)
        and manifest.get("sha256") == _manifest_digest(manifest)
        and manifest.get("tensors") == fingerprint(tensors)
    )


def _manifest_digest(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
