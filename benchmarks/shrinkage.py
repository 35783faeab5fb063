"""How well few samples separate MNIST from Fashion-MNIST in the features of a small ResNet-18, by shrinkage.

    python -m benchmarks.shrinkage

Needs `features_mnist.npz` under DDU_DATA or ../shared/data. Means over three draws of the samples; under a minute.
"""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import ddu
from ddu.density import check_features
from ddu.errors import FewSamplesWarning
from ddu.metrics import auroc

SHRINKAGES = (None, "oas", "auto")


def rows(root: Path, draws: int = 3) -> Iterator[tuple[int | None, list[float]]]:
    """Samples per class, and the AUROC with each shrinkage."""
    data = np.load(root / "features_mnist.npz")
    z, y = data["z_train"], data["y_train"]
    inside, outside = check_features(data["z_test"]), check_features(data["z_ood"])
    for samples in (5, 10, 100, None):
        scores = []
        for shrinkage in SHRINKAGES:
            draw_scores = []
            for draw in range(draws if samples else 1):
                order = np.random.default_rng(draw).permutation(len(y))
                picked = np.concatenate([order[y[order] == label][:samples] for label in range(10)])
                density = ddu.GaussianDensity(shrinkage=shrinkage).fit(z[picked], y[picked])
                draw_scores.append(auroc(-density.log_density(inside), -density.log_density(outside)))
            scores.append(float(np.mean(draw_scores)))
        yield samples, scores


if __name__ == "__main__":
    warnings.simplefilter("ignore", FewSamplesWarning)
    root = Path(os.environ.get("DDU_DATA", "../shared/data"))
    print("samples per class  " + "  ".join(f"{shrinkage!s:>6}" for shrinkage in SHRINKAGES))
    for samples, scores in rows(root):
        print(f"{samples or 'all':>17}  " + "  ".join(f"{score:6.4f}" for score in scores), flush=True)
