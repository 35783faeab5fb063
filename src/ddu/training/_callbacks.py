"""What Lightning calls between the steps of a training: checkpoints, signals, progress. Imports Lightning."""

import errno
import io
import math
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from ddu.errors import ArtifactError, CheckpointWarning, TrainingError
from ddu.files import whole_file
from ddu.training._module import STATE, TrainingModule

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
_EXIT_CODE = 128 + signal.SIGTERM
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SECONDS_PER_LINE = 5.0  # short epochs share a line
_SECONDS_PER_REPORT = 1.0


# Checkpoints: written whole, the one before the last kept, and the best


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        content = io.BytesIO()  # torch.save hides an error of the file behind one of its own
        torch.save(checkpoint, content)
        with whole_file(Path(path)) as file:
            file.write(content.getbuffer())


class Checkpoints(Checkpoint):
    """Saves the best epoch so far and, for a training that can be resumed, the last two.

    Args:
        folder: Where to save them.
        resumable: Whether to save the last two epochs as well.
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
    """Whether the last epoch is better than all before it: by validation accuracy, or by loss where there is none.

    >>> [is_best([{"val_accuracy": score} for score in scores]) for scores in ([0.5], [0.5, 0.5], [0.5, 0.4, 0.6])]
    [True, False, True]
    >>> is_best([{"val_loss": 0.5}, {"val_loss": 0.4}])
    True
    """
    scores = [row.get("val_accuracy", -row.get("val_loss", math.nan)) for row in history]
    return not math.isnan(scores[-1]) and scores[-1] > max(scores[:-1], default=-math.inf)


def find_checkpoint(folder: Path, *, is_main: bool, needs_best: bool) -> tuple[Path | None, int]:
    """The newest checkpoint that can be read, and the number of its epoch.

    If the last checkpoint cannot be read, the one before it is used, with a warning. The broken file is removed, so
    that it does not become the previous checkpoint after the next epoch.

    Args:
        folder: Where to look.
        is_main: Whether this process, out of several, warns and removes.
        needs_best: Whether the training ends with the best epoch. Its checkpoint must then be readable as well.
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
    """A checkpoint of ours, its tensors still on disk; None if it is missing, truncated or something else."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, UnpicklingError):
        return None
    return checkpoint if isinstance(checkpoint, dict) and STATE in checkpoint else None


def load_best(module: TrainingModule, folder: Path) -> int:
    """Loads the weights of the best epoch, and returns its number."""
    checkpoint = torch.load(folder / BEST, map_location=module.device, weights_only=True)
    module.load_state_dict(checkpoint["state_dict"])
    return checkpoint["epoch"] + 1


# Interruptions: SIGTERM, Ctrl-C, a full disk


class Terminated(KeyboardInterrupt):
    """SIGTERM was received. Lightning shuts down all ranks, as after Ctrl-C."""


class Termination(Callback):
    """Ends a training at once on SIGTERM.

    This replaces Lightning's own handler, which waits for the end of the batch and for ranks that may never answer. A
    handler that the caller has set stays in force. Outside the main thread Python allows no handler: there SIGTERM
    ends the process as it ends any other.
    """

    def __init__(self) -> None:
        self.before = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate if self.before == signal.SIG_DFL else self.before)


def _terminate(number: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise Terminated


@contextmanager
def interruptible(module: TrainingModule, output: Path | None) -> Iterator[None]:
    """Keeps Ctrl-C a KeyboardInterrupt, lets SIGTERM exit with its own code, and explains a full disk."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as end:  # what Lightning makes of a KeyboardInterrupt
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, on_interrupt)
        if not isinstance(end.__context__, Terminated):
            raise KeyboardInterrupt from end
        if module.trainer.is_global_zero:
            way_out = " Run the same command again to resume." if output else ""
            print(f"Terminated in epoch {len(module.history) + 1} of {module.recipe.epochs}.{way_out}", file=sys.stderr)
        raise SystemExit(_EXIT_CODE) from end
    except OSError as error:
        if error.errno not in _FULL:
            raise
        way_out = "The last checkpoint is kept: free some space and run the same command again to resume."
        raise TrainingError(
            f"Cannot write to {output or tempfile.gettempdir()}: {error.strerror}. "
            + (way_out if output else "Free some space and run the same command again.")
        ) from error


# Progress: to the caller, as a bar on a terminal, as lines elsewhere


def show_progress(progress: bool | None, on_progress: Callable[[float, str], None] | None) -> list[Callback]:
    """What reports the progress; `ddu.training.fit` explains the arguments."""
    if on_progress is not None:
        return [ProgressReports(on_progress)]
    if progress is False:
        return []
    return [ProgressBar() if progress or os.isatty(2) else ProgressLines()]


class ProgressReports(Callback):
    """Calls `report(share, note)` after every epoch, and about every second in between."""

    def __init__(self, report: Callable[[float, str], None]) -> None:
        self.report = report

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._reported = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._reported >= _SECONDS_PER_REPORT:
            self._report(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._report(trainer, pl_module)

    def _report(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        share = trainer.global_step / trainer.estimated_stepping_batches
        self.report(share, f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}, {_listed(module.running())}")
        self._reported = time.monotonic()


class ProgressBar(Callback):
    """One bar over the whole training, with loss, accuracy and the time left."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        from tqdm.auto import tqdm

        total = int(trainer.estimated_stepping_batches)
        self.bar = tqdm(total=total, initial=trainer.global_step, desc="training", unit="step", mininterval=0.5)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        if self.bar.update():  # true when it was drawn again, about twice per second
            self.bar.set_description(f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}", refresh=False)
            self.bar.set_postfix(_figures(pl_module.running()), refresh=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if hasattr(self, "bar"):
            self.bar.close()


class ProgressLines(Callback):
    """A line on standard error after an epoch: at most one every few seconds, and one at the end."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self._resumed = len(pl_module.history)
        self._started = self._printed = time.monotonic()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # An epoch is in the history only after the callbacks of its end
        if time.monotonic() - self._printed >= _SECONDS_PER_LINE:
            self._print(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(pl_module)

    def _print(self, module: LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        now, done = time.monotonic(), len(module.history)
        if done == self._resumed:
            return
        left = (module.recipe.epochs - done) * (now - self._started) / (done - self._resumed)
        print(progress_line(module.history[-1], module.recipe.epochs, left), file=sys.stderr, flush=True)
        self._printed = now


def progress_line(row: dict[str, float], epochs: int, seconds_left: float) -> str:
    """The line that is printed after an epoch.

    >>> row = {"epoch": 3, "train_loss": 0.41, "train_accuracy": 0.85, "val_loss": 0.52, "val_accuracy": 0.8}
    >>> progress_line(row, 350, 4000)
    'epoch 3 of 350: loss 0.410, accuracy 85.0%, validation 80.0%, 1 h 07 min left'
    """
    left = f", {_duration(seconds_left)} left" if row["epoch"] < epochs else ""
    return f"epoch {row['epoch']:.0f} of {epochs}: {_listed(row)}{left}"


def _figures(row: dict[str, float]) -> dict[str, str]:
    """What is shown of a row of the history; the validation loss stands in for an accuracy that is not known.

    >>> _figures({"train_loss": 0.41, "val_loss": 0.52})
    {'loss': '0.410', 'validation': '0.520'}
    """
    shown = {"loss": f"{row['train_loss']:.3f}"}
    if "train_accuracy" in row:
        shown["accuracy"] = f"{row['train_accuracy']:.1%}"
    if "val_loss" in row:
        shown["validation"] = f"{row['val_accuracy']:.1%}" if "val_accuracy" in row else f"{row['val_loss']:.3f}"
    return shown


def _listed(row: dict[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in _figures(row).items())


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
