"""Arrays in an `.npz` file, without anything that would have to be unpickled."""

import zipfile
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np


def save_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> None:
    """What `np.savez(file, allow_pickle=False, **arrays)` writes; numpy before 2.1 takes the option for an array."""
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
