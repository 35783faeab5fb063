"""From MNIST to Ambiguous-MNIST, in stages that leave files, so that a killed run goes on where it was.

    autoencoder ─┐
    labellers ───┼─ mixtures, filtered, a chunk at a time ─ chosen images and their labels; for training, then for test
    digits ──────┘

Training images are mixtures of training digits, test images of test digits. Autoencoder and labellers learn from
training digits only, and the labellers' epochs are chosen by a part of them that is held out.
"""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

from ddu._version import __version__
from ddu.data.dataset import ArrayDataset
from ddu.data.dirty_mnist._artifact import (
    FORMAT,
    FORMAT_VERSION,
    SPLITS,
    array_digest,
    digest,
    has_manifest,
    read_manifest,
    read_tensors,
    stage,
    write_arrays,
    write_manifest,
)
from ddu.data.dirty_mnist._candidates import make_candidates
from ddu.data.dirty_mnist._labelling import Labeller, train_labeller
from ddu.data.dirty_mnist._mixing import Mixer
from ddu.data.dirty_mnist._randomness import numbers
from ddu.data.dirty_mnist._selection import Fate, draw_labels, stratified
from ddu.data.dirty_mnist._settings import SCALES, Settings
from ddu.data.dirty_mnist._vae import PIXELS, VAE, train_vae
from ddu.errors import InputError

_HELD_OUT = 0.1  # of the training digits, to choose the labellers' epochs by
_PATIENCE = 8  # chunks without a single mixture worth keeping

Progress = Callable[[str, float, str], None]
"""Called with a stage, the share of it that is done, and a note."""


def make_dirty_mnist(
    folder: str | os.PathLike[str],
    train: ArrayDataset,
    test: ArrayDataset,
    settings: Settings = SCALES["cpu"],
    *,
    seed: int = 0,
    progress: Progress = lambda stage, done, note: None,
) -> dict[str, Any]:
    """Makes Ambiguous-MNIST into a folder, for `load_ambiguous` and `load_dirty`.

    A folder that holds the very set is left as it is. Stopped at any moment, even by SIGKILL, a second call goes on
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
    pipeline = _Pipeline(Path(folder), {"train": train, "test": test}, settings, seed, progress)
    if has_manifest(pipeline.folder):
        manifest = read_manifest(pipeline.folder)
        if manifest["key"] != pipeline.key:
            raise InputError(
                f"{folder} holds an Ambiguous-MNIST of other settings, another seed or other digits (its seed is "
                f"{manifest['seed']}). Choose another folder, or delete that one."
            )
        return manifest
    pipeline.prepare()
    manifest = pipeline.description() | {"splits": {split: pipeline.make(split) for split in SPLITS}}
    write_manifest(pipeline.folder, manifest)
    pipeline.clean_up()
    return manifest


def load_vae(folder: str | os.PathLike[str]) -> VAE:
    """The autoencoder that a set was made with."""
    vae = VAE()
    vae.load_state_dict(read_tensors(Path(folder) / read_manifest(Path(folder))["vae"]))
    return vae.eval()


def pixel_rows(images: np.ndarray) -> Tensor:
    """Digits in bytes, (digit, 28, 28, 1), as rows of 784 pixels in [0, 1]."""
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28, 1):
        raise InputError(
            f"Ambiguous-MNIST is made from digits of 28x28 bytes, (digit, 28, 28, 1). Got {images.shape} of "
            f"{images.dtype} instead."
        )
    return torch.from_numpy(images).reshape(-1, PIXELS).float() / 255


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

    def prepare(self) -> None:
        try:
            self.stages.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(f"{self.folder} is a file, or inside one, and the set is a folder.") from error
        except OSError as error:
            raise InputError(f"Cannot write to {self.folder}: {error.strerror}. Choose another folder.") from error

    def clean_up(self) -> None:
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
            "vae": str(self._vae_file.relative_to(self.folder)),
            "versions": {
                "ddu": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "safetensors": safetensors.__version__,
            },
            "threads": torch.get_num_threads(),
        }

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {split: array_digest(digits.inputs, digits.labels) for split, digits in self.data.items()}

    @cached_property
    def key(self) -> str:
        return digest(FORMAT_VERSION, asdict(self.settings), self.seed, self._sources)

    def _stage_file(self, name: str, *depends_on: Any) -> Path:
        key = digest(FORMAT_VERSION, self.seed, self._sources["train"], *depends_on)
        return self.stages / f"{name}-{key}.safetensors"

    @cached_property
    def _train_rows(self) -> Tensor:
        return pixel_rows(self.data["train"].inputs)

    @property
    def _vae_file(self) -> Path:
        return self._stage_file("vae", asdict(self.settings.vae))

    @cached_property
    def vae(self) -> VAE:
        def make() -> dict[str, Tensor]:
            report = partial(self.progress, "Train the autoencoder")
            return train_vae(self._train_rows, self.settings.vae, self.seed, report).state_dict()

        vae = VAE()
        vae.load_state_dict(stage(self._vae_file, make))
        return vae.eval()

    @cached_property
    def labellers(self) -> list[Labeller]:
        digits = self.data["train"]
        labels = torch.from_numpy(digits.labels).long()
        order = torch.from_numpy(numbers(self.seed, "held out").permutation(len(digits)))
        held_out, rest = order.tensor_split([round(_HELD_OUT * len(digits))])

        def make(member: int) -> dict[str, Tensor]:
            report = partial(self.progress, f"Train labeller {member + 1} of {self.settings.members}")
            return train_labeller(
                (self._train_rows[rest], labels[rest]),
                (self._train_rows[held_out], labels[held_out]),
                digits.info.num_classes,
                self.settings.labeller,
                seed=self.seed,
                member=member,
                progress=report,
            ).state_dict()

        members = [Labeller(digits.info.num_classes).eval() for _ in range(self.settings.members)]
        for member, network in enumerate(members):
            path = self._stage_file(f"labeller-{member + 1}", asdict(self.settings.labeller))
            network.load_state_dict(stage(path, partial(make, member)))
        return members

    def mix(self, split: str) -> list[Path]:
        """Files of mixtures that passed the filters, until the pool is full."""
        vae, labellers, mixing = self.vae, self.labellers, self.settings.mixing
        classes = self.data[split].labels
        mixer = Mixer(vae, pixel_rows(self.data[split].inputs))

        def make(chunk: int) -> dict[str, Tensor]:
            random = numbers(self.seed, "mixtures", split, chunk)
            return make_candidates(mixer, classes, labellers, mixing, self.settings.filters, random)

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
        fates = pool["fates"].reshape(-1, len(Fate)).sum(0)
        return {
            "images": len(rows),
            "mixtures": int(fates.sum()),
            "fates": {fate.name.lower(): int(fates[fate]) for fate in Fate},
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
