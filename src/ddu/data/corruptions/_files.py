"""Large arrays, written part by part and verified."""

import hashlib
import io
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from ddu.files import whole_file


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
