"""CIFAR-10-C: how well corrupted images are told from clean ones, against the severity of the corruption.

    ddu reproduce cifar10-c

Below the paper's scale the corruptions are made here, of some of the test images (`ddu.data.corruptions`), so the
published set is not needed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddu import data
from ddu.data import ArrayDataset
from ddu.data.corruptions import corrupt
from ddu.data.registry import Root
from ddu.experiments.compare import Comparison
from ddu.experiments.experiment import ROWS
from ddu.experiments.trained import limited, split_severity
from ddu.files import FilePath, write_bytes
from ddu.report import as_png, corruption_figure, corruption_panels
from ddu.results import RowFile, latest

MEAN, EACH = "auroc-by-severity.png", "auroc-by-corruption.png"


@dataclass(frozen=True)
class CorruptionCurves(Comparison):
    """A comparison whose OoD sets are corruptions of the test set, and whose figures are the paper's.

    Attributes:
        made_here: Whether the corruptions are made of the test images; otherwise CIFAR-10-C is read.
    """

    made_here: bool = True

    def load_ood(self, data_root: Root = None) -> dict[str, ArrayDataset]:
        """The corrupted images."""
        if not self.made_here:
            return super().load_ood(data_root)
        clean = limited(data.load(self.data, "test", root=data_root), self.inputs)
        return {name: _corrupted(clean, name) for name in self.ood}

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes the AUROC against severity, as the mean of all corruptions and of each of them."""
        rows: Any = latest(RowFile(Path(folder) / ROWS).read())
        figures = {MEAN: corruption_figure(rows), EACH: corruption_panels(rows)}
        for name, figure in figures.items():
            write_bytes(Path(folder) / name, as_png(figure))
        return [Path(folder) / name for name in figures]


def _corrupted(clean: ArrayDataset, name: str) -> ArrayDataset:
    """Images with the corruption of a name such as cifar10_c:fog:3; grey ones by way of colour."""
    corruption, severity = split_severity(name)
    assert corruption is not None
    assert severity is not None
    images = clean.inputs[np.arange(len(clean))]
    if images.dtype != np.uint8:
        images = (255 * images).round().astype(np.uint8)
    colours = images if images.shape[-1] == 3 else images.repeat(3, axis=-1)
    return ArrayDataset(corrupt(colours, corruption.partition(":")[2], severity), clean.labels, clean.info)
