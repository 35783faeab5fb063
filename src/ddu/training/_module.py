"""The Lightning side of training: steps, sums, checkpoints' content. Everything here imports Lightning."""

import csv
import io
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ddu.errors import InputError, TrainingError
from ddu.files import write_bytes
from ddu.training._augmentation import AUGMENTATIONS
from ddu.training._recipes import Recipe
from ddu.training.objectives import Objective

# The state in a checkpoint, under this key
STATE = "ddu"


class TrainingModule(LightningModule):
    """Trains a network by a recipe.

    Args:
        model: The network.
        recipe: How to train it.
        objective: What to minimise.
        seed: Checked against that of a checkpoint.
        black: A black pixel as the data set gives it, per channel; what augmentation pads with.
        history_file: Where to write the history, if anywhere.

    Attributes:
        history: One dictionary an epoch: epoch, lr, train and validation loss and accuracy, seconds.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        objective: Objective,
        seed: int,
        *,
        black: Tensor,
        history_file: Path | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.objective = objective
        self.seed = seed
        self.history_file = history_file
        self.history: list[dict[str, float]] = []
        self.black: Tensor
        self.register_buffer("black", black, persistent=False)
        self._augment = AUGMENTATIONS[recipe.augmentation]
        self._steps_an_epoch = math.nan
        self._sums: dict[str, Tensor] = {}

    def configure_optimizers(self) -> Any:
        recipe, parameters = self.recipe, [p for p in self.model.parameters() if p.requires_grad]
        optimiser: Optimizer
        if recipe.optimiser == "sgd":
            options: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
            optimiser = SGD(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay, **options)
        else:
            optimiser = Adam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
        self._steps_an_epoch = self.trainer.estimated_stepping_batches / recipe.epochs
        schedule = LambdaLR(optimiser, lambda step: recipe.lr_factor(step / self._steps_an_epoch))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_epoch_start(self) -> None:
        self._started = time.monotonic()
        self._sums["train"] = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.objective.on_epoch_start(self.model)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, labels = batch
        inputs = self._augment(inputs, self.black)
        loss, scores = self.objective.loss(self.model, inputs, labels)
        if not torch.isfinite(loss):
            raise TrainingError(
                f"The loss became {loss.item()} at step {self.global_step + 1} (epoch {self.current_epoch + 1} of "
                f"{self.recipe.epochs}) with a learning rate of {self._lr():g}: lower lr, or add warmup_epochs."
            )
        self._add("train", loss, scores, labels)
        self._batch = inputs, labels
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.objective.after_step(self.model, *self._batch)
        del self._batch

    def on_validation_epoch_start(self) -> None:
        self._sums["val"] = torch.zeros(3, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        inputs, labels = batch
        loss, scores = self.objective.loss(self.model, inputs, labels)
        self._add("val", loss, scores, labels)

    def on_train_epoch_end(self) -> None:
        row = {"epoch": self.current_epoch + 1, "lr": self._lr(), **self._means("train"), **self._means("val")}
        self.log_dict({name: value for name, value in row.items() if name != "epoch"}, rank_zero_only=True)
        self.history.append(row | {"seconds": time.monotonic() - self._started})
        if self.history_file is not None and self.trainer.is_global_zero:
            write_bytes(self.history_file, _csv(self.history).encode())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[STATE] = {"made_with": self._settings(), "history": self.history}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint[STATE]
        for name, now in self._settings().items():
            then = saved["made_with"][name]
            if then != now:
                raise InputError(
                    f"The training to go on with was started with {name}={then}, and this one has {name}={now}: "
                    "give the same, or start again in another folder."
                )
        self.history = saved["history"]

    def running(self) -> tuple[float, float]:
        """Mean loss and accuracy of this epoch so far, on this rank."""
        loss, correct, count = self._sums["train"].tolist()
        return loss / count, correct / count

    def _settings(self) -> dict[str, Any]:
        # As JSON has them: a tuple comes back as a list
        return json.loads(json.dumps({**asdict(self.recipe), "seed": self.seed}))

    def _lr(self) -> float:
        optimiser = self.optimizers()
        assert isinstance(optimiser, Optimizer) or hasattr(optimiser, "param_groups")
        return float(optimiser.param_groups[0]["lr"])  # type: ignore[union-attr]

    def _add(self, part: str, loss: Tensor, scores: Tensor, labels: Tensor) -> None:
        correct = (scores.detach().argmax(1) == labels).sum()
        self._sums[part] += torch.stack([loss.detach().double() * len(labels), correct, torch.tensor(len(labels))])

    def _means(self, part: str) -> dict[str, float]:
        if part not in self._sums:
            return {}
        sums = self._sums.pop(part)
        if self.trainer.world_size > 1:
            gathered = self.all_gather(sums)
            assert isinstance(gathered, Tensor)
            sums = gathered.sum(0)
        loss, correct, count = sums.tolist()
        return {f"{part}_loss": loss / count, f"{part}_accuracy": correct / count}


def _csv(rows: list[dict[str, float]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
