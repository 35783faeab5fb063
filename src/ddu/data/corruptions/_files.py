"""Files that are whole or not there at all."""

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that appears under its name in one step, once all is written and safely on disk.

    An exception, Ctrl-C among them, leaves nothing; what a killed process left goes when the file is next written.
    """
    for abandoned in path.parent.glob(f".{path.name}.*.tmp"):
        abandoned.unlink(missing_ok=True)
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


def write_array(path: Path, shape: tuple[int, ...], parts: Iterable[np.ndarray]) -> str:
    """Writes an array of bytes in NumPy's format, part by part along its first axis.

    Returns:
        The file's SHA-256.
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    digest = hashlib.sha256()
    with whole_file(path) as file:
        for piece in chain([header.getvalue()], (np.ascontiguousarray(part, np.uint8).data for part in parts)):
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
