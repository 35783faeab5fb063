"""Makes the small set and is killed when a stage is reached; run by test_make.py.

python killed_run.py <folder> <arrays of digits> <stage>
"""

import os
import signal
import sys

import numpy as np
from conftest import TINY

from ddu.data import ArrayDataset, DataInfo
from ddu.dirty_mnist import make_dirty_mnist


def progress(stage: str, done: float, note: str) -> None:
    if stage == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    info = DataInfo("digits", (1, 28, 28), tuple("0123456789"), (0.1307,), (0.3081,))
    with np.load(sys.argv[2]) as arrays:
        train, test = (ArrayDataset(arrays[f"x_{split}"], arrays[f"y_{split}"], info) for split in ("train", "test"))
    make_dirty_mnist(sys.argv[1], train, test, TINY, seed=3, progress=progress)
