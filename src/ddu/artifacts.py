"""A fitted detector as a folder with one safetensors file, whose metadata holds everything that is not a tensor.

Nothing is unpickled. The file is replaced in one step, so that at any moment it is the old detector or the new one, for
every reader and after every crash, however many processes save to the folder at the same time.
"""

import hashlib
import json
import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ddu._version import __version__
from ddu.errors import ArtifactError, InputError
from ddu.features import unwrapped
from ddu.files import whole_file
from ddu.messages import check_entries
from ddu.provenance import versions

FORMAT = "ddu-detector"
FORMAT_VERSION = 3
FILE = "detector.safetensors"

# What safetensors calls the types of numbers that detectors and networks have
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

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
    with whole_file(folder / FILE) as file:
        _encode(file, manifest, tensors)


def load_artifact(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads what `save_artifact` wrote, or says what is wrong with it.

    Returns:
        The content and the tensors.
    """
    path = Path(folder) / FILE
    try:
        with path.open("rb") as file:
            manifest, tensors = _decode(file)
        intact = _is_intact(manifest, tensors)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"There is no detector in {folder}: it has no {FILE}. Give the folder that save() wrote."
        ) from error
    # A header may be any JSON: a KeyError is a type of numbers that no detector has, a RecursionError such a nesting
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    if version < FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {version}, and ddu {__version__} reads {FORMAT_VERSION}: fit the detector "
            "again and save it."
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
            digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _encode(file: BinaryIO, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a safetensors file, with the manifest and its checksum as metadata, without a copy of it in memory."""
    signed = manifest | {"sha256": _manifest_digest(manifest)}
    header: dict[str, Any] = {"__metadata__": {FORMAT: json.dumps(signed)}}
    # Those of the widest numbers first, so that each begins at a multiple of its width
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        dtype = next(code for code, dtype in _DTYPES.items() if dtype == tensors[name].dtype)
        header[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        file.write(_bytes_of(tensors[name]))


def _decode(file: BinaryIO) -> tuple[Any, dict[str, Tensor]]:
    """The inverse of `_encode`; each tensor is read to where it stays, so that there is one copy of it in memory."""
    size = os.fstat(file.fileno()).st_size
    # A safetensors file begins with the length of its header, which is JSON; the tensors follow
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= size - 8:
        raise ValueError(f"its header should have {length} bytes, and the file has {size}")
    header = json.loads(file.read(length))
    manifest = json.loads((header.pop("__metadata__", None) or {}).get(FORMAT, "null"))
    if (depth := _depth(manifest)) > _DEEPEST:
        raise ValueError(f"its manifest is nested {depth} levels deep, and no detector's is deeper than {_DEEPEST}")
    # Tensors that shared bytes would let a small file ask for any amount of memory
    wanted = 8 + length + sum(end - start for start, end in (entry["data_offsets"] for entry in header.values()))
    if wanted != size:
        raise ValueError(f"its header and tensors should have {wanted} bytes, and the file has {size}")
    tensors = {}
    for name, entry in sorted(header.items()):  # their order in the file is no order
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype, shape = _DTYPES[entry["dtype"]], [operator.index(extent) for extent in entry["shape"]]
        wanted = math.prod(shape) * dtype.itemsize
        if not 8 + length <= start <= end <= size or end - start != wanted or min(shape, default=0) < 0:
            raise ValueError(f"its tensor {name!r} should have {wanted} bytes, from {start} to {end} of {size}")
        tensors[name] = torch.empty(shape, dtype=dtype)
        file.seek(start)
        if file.readinto(_bytes_of(tensors[name])) != wanted:  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(f"it ends within the tensor {name!r}")
    return manifest, tensors


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU, or a copy of any other."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


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
