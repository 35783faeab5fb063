"""A fitted detector as a folder: tensors in safetensors, everything else in manifest.json. Nothing is unpickled.

The tensors' file is named after its content, and the manifest, which names it, is replaced in one step at the very end.
So a crash at any moment leaves a folder that holds the old detector or the new one, whole.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from ddu._version import __version__
from ddu.errors import ArtifactError
from ddu.features import unwrapped
from ddu.files import versions, write_bytes, write_json

FORMAT = "ddu-detector"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"


def save_artifact(folder: str | os.PathLike[str], content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes a detector; an older one in the same folder is replaced only once the new one is safely on disk."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder} is a file: a detector is saved as a folder, so give another name.")
    folder.mkdir(parents=True, exist_ok=True)
    data = safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    name = f"tensors-{digest[:16]}.safetensors"
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": versions("safetensors"),
        "tensors": {"file": name, "bytes": len(data), "sha256": digest},
        "content": content,
    }
    manifest["sha256"] = _manifest_digest(manifest)
    write_bytes(folder / name, data)
    write_json(folder / MANIFEST, manifest)
    # Older tensors, and what a process that was killed while saving left behind
    for pattern in ("tensors-*.safetensors", ".tensors-*.tmp", f".{MANIFEST}.*.tmp"):
        for old in folder.glob(pattern):
            if old.name != name:
                old.unlink(missing_ok=True)


def load_artifact(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads what `save_artifact` wrote, or says what is wrong with it.

    Returns:
        The content and the tensors.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    try:
        described = manifest["tensors"]
        file, size, digest, content = (
            folder / described["file"],
            described["bytes"],
            described["sha256"],
            manifest["content"],
        )
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{folder / MANIFEST} has no entry {error}: it was not written by ddu.") from error
    if file.parent != folder:
        raise ArtifactError(f"{folder / MANIFEST} names a file outside its folder, {file}: it was not written by ddu.")
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise ArtifactError(f"{file} is missing: copy the whole folder, or save the detector again.") from error
    if len(data) != size:
        raise ArtifactError(
            f"{file} has {len(data)} bytes where {size} were written: it is truncated. Copy it again, or save the "
            "detector again."
        )
    if hashlib.sha256(data).hexdigest() != digest:
        raise ArtifactError(f"{file} was changed after it was saved: its checksum does not match the manifest's.")
    return content, safetensors.torch.load(data)


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's weights and buffers: names, dtypes, shapes and bytes, wherever they are."""
    digest = hashlib.sha256()
    for name, tensor in sorted(unwrapped(model).state_dict().items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(
            f"There is no detector in {folder}: it has no {MANIFEST}. Give the folder that save() wrote."
        )
    try:
        manifest = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{path} is truncated or not JSON ({error}). Copy it again, or save the detector again."
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{path} does not describe a ddu detector.")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {version}, and ddu {__version__} reads up to {FORMAT_VERSION}: "
            "install the newer ddu that wrote it, or a later one."
        )
    if manifest.get("sha256") != _manifest_digest(manifest):
        raise ArtifactError(f"{path} was changed after it was saved: its checksum does not match its content.")
    return manifest


def _manifest_digest(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
