"""The figures of docs/scaling.md: the memory of a large pool, and what a thousand million images cost.

python scripts/scaling.py pool [--images 1000000]   # the memory curve of a pool that is scored for active learning
python scripts/scaling.py cost [--images 20000]     # seconds of one core per image, and core-hours for 10^9 images

The images are those of CIFAR-10, each repetition with noise of its own; the data is needed. Times are the processor's
time of one thread, so other work on the machine does not matter much.
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

import ddu
from ddu import data
from ddu.active import Candidates
from ddu.data import ArrayDataset
from ddu.predicting import Inputs, predict_rows
from ddu.predicting.tables import write_rows
from ddu.progress import track
from ddu.runs import input_options
from ddu.sources import DetectorSource
from ddu.training import fit

NETWORKS = {"lenet": {}, "resnet18, width 0.25": {"width": 0.25}}
POINTS = 10  # of the memory curve
MANY = 10**9


def main() -> None:
    """Measures, and prints what the page says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pool", "cost"])
    parser.add_argument("--images", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of networks that are trained for an instant
    if arguments.what == "pool":
        measure_pool(data.load("cifar10"), arguments.images or 1_000_000)
    else:
        measure_cost(data.load("cifar10"), arguments.images or 20_000)


def make_detector(train: ArrayDataset, name: str, **options: Any) -> ddu.DDU:
    """A detector around a network that has seen a little of the data."""
    torch.manual_seed(0)
    few, held_out = train.subset(np.arange(2_000)), train.subset(np.arange(2_000, 3_000))
    model = ddu.create_model(name.partition(",")[0], **input_options(train.info), **options)
    fit(model, few, recipe="quick", epochs=1, progress=False)
    detector = ddu.DDU(model).fit(data.loader(few), progress=False)
    return detector.calibrate(data.loader(held_out), 0.05, progress=False)


class Repeated(Dataset[Tensor]):
    """So many images: those of an array on disk again and again, each time with other noise."""

    def __init__(self, images: np.ndarray, like: ArrayDataset, count: int):
        self.images, self.like, self.count = images, like, count

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, rows: list[int]) -> Tensor:
        images = self.images[np.asarray(rows) % len(self.images)].astype(np.int16)
        noise = np.random.default_rng(rows[0]).integers(-8, 9, images.shape, dtype=np.int16)
        return self.like.preprocessing.of_arrays(np.clip(images + noise, 0, 255).astype(np.uint8))


def measure_pool(train: ArrayDataset, count: int) -> None:
    """Scores a pool, and prints the resident memory on the way."""
    detector = make_detector(train, "lenet")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "images.npy"), train.inputs[np.arange(len(train))])
        like = train.subset([0])
        del train
        pool = Repeated(np.load(Path(folder, "images.npy"), mmap_mode="r"), like, count)
        candidates = Watched(detector, pool, np.arange(count), progress=None)
        started = time.process_time()
        scores = candidates.uncertainties
    seconds = time.process_time() - started
    kept = sum(column.nbytes for column in scores)
    pixels, features = 3 * 32 * 32 * count, 4 * sum(detector.score.widths if detector.score else []) * count
    print(f"\n{count:,} images in {seconds:,.0f} s of one core, {count / seconds:,.0f} per second")
    print(f"kept: {kept / 1e6:,.0f} MB of scores; all pixels would be {pixels / 1e9:,.1f} GB of bytes,")
    print(f"and all features {features / 1e9:,.1f} GB")


class Watched(Candidates):
    """Candidates that print how much memory the process has while they are scored."""

    def _score(self, indices: np.ndarray) -> Any:
        found, step = [], max(1, len(indices) // POINTS)
        print("| images scored | resident memory, MB |\n|---|---|")
        for part in range(0, len(indices), step):
            found.append(super()._score(indices[part : part + step]))
            print(f"| {min(part + step, len(indices)):,} | {resident() / 1e6:,.0f} |", flush=True)
        return type(found[0])(*(np.concatenate(column) for column in zip(*found, strict=True)))


def resident() -> int:
    """The resident memory of this process without pages of files, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def measure_cost(train: ArrayDataset, count: int) -> None:
    """Times the job of one worker, from a `.npy` shard to a Parquet file, for several networks."""
    images = np.asarray(train.inputs[np.arange(count) % len(train)])
    print("| network | images per second and core | core-hours for 10^9 images | rows of 10^9, GB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        shard, rows = Path(folder, "shard.npy"), Path(folder, "rows.parquet")
        np.save(shard, images)
        for name, options in track(NETWORKS.items(), "networks"):
            source = DetectorSource(name, make_detector(train, name, **options), train.preprocessing, "", {})
            started = time.process_time()
            found = predict_rows(source, Inputs.find([str(shard)], train.preprocessing), batch_size=256, workers=1)
            write_rows(rows, (row for batch in found for row in batch))
            seconds = (time.process_time() - started) / count
            size = rows.stat().st_size / count
            print(
                f"| {name} | {1 / seconds:,.0f} | {MANY * seconds / 3600:,.0f} | {MANY * size / 1e9:,.0f} |", flush=True
            )


if __name__ == "__main__":
    main()
