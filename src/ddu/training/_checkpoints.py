"""Checkpoints: written whole, the one before the last kept, and the best. Everything here imports Lightning."""

import io
import math
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ddu.errors import ArtifactError, CheckpointWarning
from ddu.files import whole_file
from ddu.training._module import STATE, TrainingModule

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        content = io.BytesIO()  # torch.save hides an error of the file behind one of its own
        torch.save(checkpoint, content)
        with whole_file(Path(path)) as file:
            file.write(content.getbuffer())


class Checkpoints(Checkpoint):
    """Saves the best epoch so far and, if the training is to be resumed, the last two.

    Args:
        folder: Where to.
        resumable: Whether to save the last epochs, too.
    """

    def __init__(self, folder: Path, *, resumable: bool) -> None:
        self.folder = folder
        self.resumable = resumable

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        if is_best(pl_module.history):
            trainer.save_checkpoint(self.folder / BEST, weights_only=False)
        if self.resumable:
            last = self.folder / LAST
            if trainer.is_global_zero and last.is_file():
                last.replace(self.folder / PREVIOUS)
            trainer.save_checkpoint(last, weights_only=False)


def is_best(history: list[dict[str, float]]) -> bool:
    """Whether the last epoch has a higher validation accuracy than all before it.

    >>> [is_best([{"val_accuracy": score} for score in scores]) for scores in ([0.5], [0.5, 0.5], [0.5, 0.4, 0.6])]
    [True, False, True]
    """
    scores = [row["val_accuracy"] for row in history if "val_accuracy" in row]
    return bool(scores) and scores[-1] > max(scores[:-1], default=-math.inf)


def find_checkpoint(folder: Path, *, is_main: bool, needs_best: bool) -> tuple[Path | None, int]:
    """The newest checkpoint that can be read, and how many epochs it has behind it.

    A last one that cannot be read is passed over with a warning, and removed so that it does not replace the one
    before it after the next epoch.

    Args:
        folder: Where to look.
        is_main: Whether this process warns and removes, out of several.
        needs_best: Whether training ends with the best epoch, which then has to be readable as well.
    """
    found = [path for name in (LAST, PREVIOUS) if (path := folder / name).is_file()]
    readable = [(path, checkpoint) for path in found if (checkpoint := _read(path)) is not None]
    if not found:
        return None, 0
    again = f"Delete {' and '.join(path.name for path in found)} to start again from epoch 1."
    if not readable:
        raise ArtifactError(f"No checkpoint in {folder} can be read. {again}")
    path, checkpoint = readable[0]
    done = checkpoint["epoch"] + 1
    if needs_best and _read(folder / BEST) is None:
        raise ArtifactError(f"The checkpoint of the best epoch, {folder / BEST}, cannot be read. {again}")
    if is_main and path != found[0]:
        warnings.warn(
            f"{found[0]} cannot be read. Resuming from {path.name}, after epoch {done}.",
            CheckpointWarning,
            stacklevel=3,
        )
        found[0].unlink()
    return path, done


def _read(path: Path) -> dict[str, Any] | None:
    """A checkpoint of ours, its tensors still on disk; None if it is not there, truncated or something else."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, UnpicklingError):
        return None
    return checkpoint if isinstance(checkpoint, dict) and STATE in checkpoint else None
