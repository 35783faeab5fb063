"""From MNIST to Ambiguous-MNIST, in stages that leave files, so that a killed run resumes.

    autoencoder ─┐
    labellers ───┼─ mixtures, filtered, a chunk at a time ─ chosen images and their labels; for training, then for test
    digits ──────┘

Training images are mixtures of training digits, test images of test digits. Autoencoder and labellers learn from
training digits only, and the labellers' epochs are chosen by a part of them that is held out.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ddu.data import ArrayDataset, DataInfo
from ddu.data.dirty_mnist_format import (
    FORMAT,
    FORMAT_VERSION,
    SPLITS,
    has_manifest,
    numbers,
    read_manifest,
    write_arrays,
    write_manifest,
)
from ddu.data.sources.mnist import SCALE
from ddu.dirty_mnist.autoencoder import PIXELS, VAE, check_digits, pixel_rows, train_autoencoder
from ddu.dirty_mnist.fitting import Progress, adam
from ddu.dirty_mnist.labellers import create_labeller, train_labeller
from ddu.dirty_mnist.mixtures import Mixer, Mixing
from ddu.dirty_mnist.selection import (
    FilterResult,
    Filters,
    Stratification,
    draw_labels,
    filtered_mixtures,
    stratified,
)
from ddu.errors import ArtifactError, InputError
from ddu.files import FilePath, write_bytes
from ddu.models import Classifier
from ddu.provenance import versions
from ddu.resume import one_at_a_time
from ddu.training import Recipe

_HELD_OUT = 0.1  # of the training digits, to choose the labellers' epochs by
_PATIENCE = 8  # chunks without a single mixture worth keeping


@dataclass(frozen=True)
class Settings:
    """How Ambiguous-MNIST is made.

    Attributes:
        autoencoder: How the autoencoder learns.
        labeller: How each labeller learns.
        mixing: What is mixed.
        filters: What a mixture must be like.
        strata: How the images are chosen.
        members: Labellers in the ensemble.
        labels: Labels drawn per image.
    """

    autoencoder: Recipe
    labeller: Recipe
    mixing: Mixing
    filters: Filters
    strata: Stratification = field(default_factory=Stratification)
    members: int = 5
    labels: int = 10

    def __post_init__(self) -> None:
        if self.mixing.pool < self.strata.images:
            raise InputError(
                f"{self.strata.images:,} images cannot be chosen from a pool of {self.mixing.pool:,} mixtures."
            )
        if self.mixing.digits < 2:
            raise InputError(f"A mixture has at least 2 digits. Got digits={self.mixing.digits} instead.")


SCALES = {
    "cpu": Settings(
        autoencoder=adam(epochs=20, milestones=(12, 17)),
        labeller=adam(epochs=4, milestones=(3,), select="best"),
        mixing=Mixing(pool=12_000, concentration=3.0),
        # Stricter than the paper where one can see it: two readings that a person would consider, in white strokes
        filters=Filters(
            min_entropy=0.5,
            max_entropy=1.1,
            max_mutual_information=0.05,
            min_second=0.2,
            min_ink=0.7,
            first_look=0.95,
        ),
    ),
    "paper": Settings(
        autoencoder=adam(epochs=74, milestones=(25, 50, 65)),
        labeller=adam(epochs=19, select="best"),
        mixing=Mixing(pool=2**21, per_tuple=64),
        filters=Filters(min_entropy=0.05, max_entropy=1.6, max_mutual_information=0.05),
    ),
}
"""`cpu` takes minutes on two cores; `paper` has the numbers of the paper's public code, and takes hours there."""


def make_dirty_mnist(
    folder: FilePath,
    train: ArrayDataset,
    test: ArrayDataset,
    settings: Settings = SCALES["cpu"],
    *,
    seed: int = 0,
    progress: Progress = lambda stage, done, note: None,
) -> dict[str, Any]:
    """Makes Ambiguous-MNIST into a folder, for `load_ambiguous` and `load_dirty`.

    A folder that holds the very set is left as it is. Stopped at any moment, even by SIGKILL, a second call resumes
    after the last finished stage and gives what one call would have given on the same machine.

    Args:
        folder: Where to.
        train: MNIST's training digits, as bytes.
        test: MNIST's test digits.
        settings: One of `SCALES`, or your own.
        seed: The same seed gives the same set.
        progress: Is told how far the work is.

    Returns:
        The manifest: seed, settings, versions, and for each split the images and what became of the mixtures.

    Raises:
        InputError: The folder holds another set, the digits are not 28x28 bytes, or no mixture passes the filters.
    """
    for digits in (train, test):
        check_digits(digits.inputs)
    as_mnist = DataInfo("mnist", (1, 28, 28), train.info.classes, **SCALE)
    data = {"train": train.like(as_mnist), "test": test.like(as_mnist)}
    pipeline = _Pipeline(Path(folder), data, settings, seed, progress)
    if not has_manifest(pipeline.folder):
        with one_at_a_time(pipeline.folder):
            pipeline.run()
    manifest = read_manifest(pipeline.folder)
    if manifest["key"] != pipeline.key:
        raise InputError(
            f"{folder} holds an Ambiguous-MNIST of other settings, another seed or other digits (its seed is "
            f"{manifest['seed']}). Choose another folder, or delete that one."
        )
    return manifest


def load_autoencoder(folder: FilePath) -> VAE:
    """The autoencoder that a set was made with."""
    vae = VAE()
    vae.load_state_dict(read_tensors(Path(folder) / read_manifest(Path(folder))["autoencoder"]))
    return vae.eval()


def stage(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What an earlier run left at `path`, or else what `make` gives, which is left there for the next run."""
    if not path.exists():
        write_bytes(path, safetensors.torch.save({name: tensor.contiguous() for name, tensor in make().items()}))
    return read_tensors(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a finished stage."""
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ArtifactError(f"{path} is missing or damaged ({error}). Delete it and make the set again.") from error


def _key(*parts: Any) -> str:
    """A short fingerprint of settings."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class _Pipeline:
    """The stages. A file's name ends with a fingerprint of all that its content depends on."""

    folder: Path
    data: dict[str, ArrayDataset]
    settings: Settings
    seed: int
    progress: Progress

    @property
    def stages(self) -> Path:
        return self.folder / "stages"

    def run(self) -> None:
        """All stages, unless another command finished the set while this one waited for it."""
        if has_manifest(self.folder):
            return
        self.stages.mkdir(exist_ok=True)
        write_manifest(self.folder, self.description() | {"splits": {split: self.make(split) for split in SPLITS}})
        for chunk in self.stages.glob("mixtures-*"):  # gigabytes at the paper's scale
            chunk.unlink()

    def description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "key": self.key,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "digits": {split: len(digits) for split, digits in self.data.items()},
            "autoencoder": str(self._autoencoder_file.relative_to(self.folder)),
            "versions": versions("safetensors", "lightning"),
            "threads": torch.get_num_threads(),
        }

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {split: digits.digest() for split, digits in self.data.items()}

    @cached_property
    def key(self) -> str:
        return _key(FORMAT_VERSION, asdict(self.settings), self.seed, self._sources)

    def _stage_file(self, name: str, *depends_on: Any) -> Path:
        key = _key(FORMAT_VERSION, self.seed, self._sources["train"], *depends_on)
        return self.stages / f"{name}-{key}.safetensors"

    @property
    def _autoencoder_file(self) -> Path:
        return self._stage_file("autoencoder", asdict(self.settings.autoencoder))

    @cached_property
    def autoencoder(self) -> VAE:
        def make() -> dict[str, Tensor]:
            report = partial(self.progress, "Train the autoencoder")
            return train_autoencoder(self.data["train"], self.settings.autoencoder, self.seed, report).state_dict()

        vae = VAE()
        vae.load_state_dict(stage(self._autoencoder_file, make))
        return vae.eval()

    @cached_property
    def labellers(self) -> list[Classifier]:
        digits = self.data["train"]
        order = numbers(self.seed, "held out").permutation(len(digits))
        held_out, rest = (digits.subset(rows) for rows in np.split(order, [round(_HELD_OUT * len(digits))]))

        def make(member: int) -> dict[str, Tensor]:
            report = partial(self.progress, f"Train labeller {member + 1} of {self.settings.members}")
            return train_labeller(rest, held_out, self.settings.labeller, self.seed, member, report).state_dict()

        members = [create_labeller(digits.info.num_classes).eval() for _ in range(self.settings.members)]
        for member, network in enumerate(members):
            path = self._stage_file(f"labeller-{member + 1}", asdict(self.settings.labeller))
            network.load_state_dict(stage(path, partial(make, member)))
        return members

    def mix(self, split: str) -> list[Path]:
        """Files of mixtures that passed the filters, until the pool is full."""
        vae, labellers, mixing = self.autoencoder, self.labellers, self.settings.mixing
        classes = self.data[split].labels
        mixer = Mixer(vae, pixel_rows(self.data[split].inputs))

        def make(chunk: int) -> dict[str, Tensor]:
            random = numbers(self.seed, "mixtures", split, chunk)
            return filtered_mixtures(mixer, classes, labellers, mixing, self.settings.filters, random)

        paths, kept = [], 0
        while kept < mixing.pool:
            chunk = len(paths) + 1
            paths.append(self.stages / f"mixtures-{split}-{chunk}-{self.key}.safetensors")
            kept += len(stage(paths[-1], partial(make, chunk))["images"])
            made = chunk * mixing.chunk
            self.progress(f"Mix {split} digits", min(kept / mixing.pool, 1), f"{kept:,} kept of {made:,}")
            if chunk == _PATIENCE and kept == 0:
                raise InputError(
                    f"Not one of {made:,} mixtures passed the filters: loosen them, or train the autoencoder and the "
                    "labellers longer."
                )
        return paths

    def make(self, split: str) -> dict[str, Any]:
        """Chooses the images of a split, draws their labels, writes both, and says what became of the mixtures."""
        paths, settings = self.mix(split), self.settings
        pool = _without_images(paths)
        random = numbers(self.seed, "choice", split)
        rows = stratified(pool["probs"], pool["entropy"], settings.filters, settings.strata, random)
        soft_labels = pool["probs"][rows]
        arrays = {
            "images": _images(paths, rows).reshape(-1, 28, 28, 1),
            "soft_labels": soft_labels,
            "labels": draw_labels(soft_labels, settings.labels, numbers(self.seed, "labels", split)),
            "parents": pool["parents"][rows],
            "weights": pool["weights"][rows],
            "mutual_information": pool["mutual_information"][rows],
        }
        counts = pool["counts"].reshape(-1, len(FilterResult)).sum(0)
        return {
            "images": len(rows),
            "mixtures": int(counts.sum()),
            "filter_results": {result.name.lower(): int(counts[result]) for result in FilterResult},
            "sha256": write_arrays(self.folder, split, arrays),
        }


def _without_images(paths: list[Path]) -> dict[str, np.ndarray]:
    """All that is known of the pool, which at the paper's scale has too many images for memory."""
    chunks = [{name: t.numpy() for name, t in read_tensors(path).items() if name != "images"} for path in paths]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _images(paths: list[Path], rows: np.ndarray) -> np.ndarray:
    """The images of some rows of the pool, (image, 784)."""
    images, start = np.empty((len(rows), PIXELS), dtype=np.uint8), 0
    for path in paths:
        chunk = read_tensors(path)["images"].numpy()
        here = (rows >= start) & (rows < start + len(chunk))
        images[here] = chunk[rows[here] - start]
        start += len(chunk)
    return images
