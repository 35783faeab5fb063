"""How far a training is: a bar on a terminal, lines elsewhere. Everything here imports Lightning."""

import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ddu.training._module import TrainingModule

# Short epochs share a line
_SECONDS_PER_LINE = 5.0


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
        if self.bar.update():  # true when it was drawn anew, about twice a second
            loss, accuracy = pl_module.running()
            self.bar.set_description(f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}", refresh=False)
            self.bar.set_postfix(self._shown(pl_module, loss, accuracy), refresh=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if hasattr(self, "bar"):
            self.bar.close()

    @staticmethod
    def _shown(module: TrainingModule, loss: float, accuracy: float) -> dict[str, str]:
        shown = {"loss": f"{loss:.3f}", "accuracy": f"{accuracy:.1%}"}
        if module.history and "val_accuracy" in module.history[-1]:
            shown["validation"] = f"{module.history[-1]['val_accuracy']:.1%}"
        return shown


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
    """What is said of an epoch.

    >>> row = {"epoch": 3, "train_loss": 0.41, "train_accuracy": 0.85, "val_loss": 0.52, "val_accuracy": 0.8}
    >>> progress_line(row, 350, 4000)
    'epoch 3 of 350: loss 0.410, accuracy 85.0%, validation 80.0%, 1 h 07 min left'
    """
    parts = [f"loss {row['train_loss']:.3f}", f"accuracy {row['train_accuracy']:.1%}"]
    if "val_accuracy" in row:
        parts.append(f"validation {row['val_accuracy']:.1%}")
    if row["epoch"] < epochs:
        parts.append(f"{_duration(seconds_left)} left")
    return f"epoch {row['epoch']:.0f} of {epochs}: {', '.join(parts)}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
