"""Files that are written whole or not at all, and the versions that belong in them."""

import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ddu._version import __version__

_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that appears under its name in one step, once all is written and safely on disk.

    An exception, Ctrl-C among them, leaves what was there before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def holds_files(folder: Path) -> bool:
    """Whether there is anything in a folder, but for what `whole_file` left there when its process was killed."""
    return folder.is_dir() and any(not _TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file in one step."""
    with whole_file(path) as file:
        file.write(data)


def write_json(path: Path, content: Any) -> None:
    """Writes readable JSON in one step."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def versions(*packages: str) -> dict[str, str]:
    """The versions of ddu, Python, torch and numpy, and of further packages where they are installed."""
    found = {
        "ddu": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,  # names the build too
        "numpy": np.__version__,
    }
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
