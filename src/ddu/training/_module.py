"""The steps of a training as a Lightning module, and the random changes to its batches. Imports Lightning."""

import csv
import io
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ddu.errors import TrainingError
from ddu.files import write_bytes
from ddu.resume import refuse_changes
from ddu.training.objectives import Objective
from ddu.training.recipes import Augmentation, Recipe

STATE = "ddu"  # the key of our state in a checkpoint
_PADDING = 4
_AREA, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def crop_flip(images: Tensor, black: Tensor) -> Tensor:
    """Pads by 4 black pixels, crops to the old size at a random place, and mirrors every other image.

    Args:
        images: (sample, channel, height, width).
        black: What black is after normalisation, for each channel or for all.
    """
    batch, channels, height, width = images.shape
    size = batch, channels, height + 2 * _PADDING, width + 2 * _PADDING
    padded = black.to(images)[:, None, None].expand(size).clone()
    padded[..., _PADDING:-_PADDING, _PADDING:-_PADDING] = images
    top, left = torch.randint(2 * _PADDING + 1, (2, batch, 1), device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    columns = torch.where(_coins(batch, images.device)[:, None], columns.flip(1), columns)
    sample = torch.arange(batch, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def resized_crop_flip(images: Tensor, black: Tensor) -> Tensor:
    """A crop of 8 to 100 % of the area, of a ratio from 3:4 to 4:3, brought to the old size; mirrored half the time.

    Nothing is padded, so `black` is not used.
    """
    batch, device = len(images), images.device
    area = torch.empty(batch, device=device).uniform_(*_AREA)
    ratio = torch.empty(batch, device=device).uniform_(*map(math.log, _RATIO)).exp()
    # Half-extents of the crop, in units where the image is [-1, 1]²
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    x, y = (torch.empty(batch, device=device).uniform_(-1, 1) * (1 - extent) for extent in (width, height))
    mirror = torch.where(_coins(batch, device), -1.0, 1.0)
    zero = torch.zeros_like(x)
    maps = torch.stack([torch.stack([mirror * width, zero, x], 1), torch.stack([zero, height, y], 1)], 1)
    grid = affine_grid(maps.to(images.dtype), list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _coins(count: int, device: torch.device) -> Tensor:
    return torch.rand(count, device=device) < 0.5


AUGMENTATIONS: dict[Augmentation, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda images, black: images,
    "crop_flip": crop_flip,
    "resized_crop_flip": resized_crop_flip,
}


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
        history: One dictionary per epoch, as in `ddu.training.Training`.
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
        self._steps_per_epoch = math.nan
        self._sums: dict[str, Tensor] = {}

    def configure_optimizers(self) -> Any:
        recipe, parameters = self.recipe, [p for p in self.model.parameters() if p.requires_grad]
        optimiser: Optimizer
        if recipe.optimiser == "sgd":
            options: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
            optimiser = SGD(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay, **options)
        else:
            optimiser = Adam(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
        self._steps_per_epoch = self.trainer.estimated_stepping_batches / recipe.epochs
        schedule = LambdaLR(optimiser, lambda step: recipe.lr_factor(step / self._steps_per_epoch))
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
        self.objective.on_epoch_end(self.model)
        row = {"epoch": self.current_epoch + 1, "lr": self._lr(), **self._finish("train"), **self._finish("val")}
        self.log_dict({name: value for name, value in row.items() if name != "epoch"}, rank_zero_only=True)
        self.history.append(row | {"seconds": time.monotonic() - self._started})
        if self.history_file is not None and self.trainer.is_global_zero:
            write_bytes(self.history_file, _csv(self.history).encode())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[STATE] = {"made_with": self._settings(), "history": self.history}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint[STATE]
        refuse_changes("The training to resume", saved["made_with"], self._settings())
        self.history = saved["history"]

    def running(self) -> dict[str, float]:
        """The means of this epoch so far, on this rank; before its validation, those of the last validation."""
        last = self.history[-1] if self.history else {}
        row = {name: value for name, value in last.items() if name.startswith("val")}
        for part, sums in self._sums.items():
            row |= _means(part, sums)
        return row

    def _settings(self) -> dict[str, Any]:
        # As JSON has them: a tuple comes back as a list
        return json.loads(json.dumps({**asdict(self.recipe), "seed": self.seed}))

    def _lr(self) -> float:
        optimiser = self.optimizers()
        assert isinstance(optimiser, Optimizer) or hasattr(optimiser, "param_groups")
        return float(optimiser.param_groups[0]["lr"])  # type: ignore[union-attr]

    def _add(self, part: str, loss: Tensor, scores: Tensor | None, labels: Tensor) -> None:
        loss, count = self.objective.reported(loss.detach().double()), labels.numel()
        correct = torch.tensor(math.nan) if scores is None else (scores.detach().argmax(1) == labels).sum()
        self._sums[part] += torch.stack([loss * count, correct, torch.tensor(count)])

    def _finish(self, part: str) -> dict[str, float]:
        """The means over all ranks; the next epoch starts from zero."""
        if part not in self._sums:
            return {}
        sums = self._sums.pop(part)
        if self.trainer.world_size > 1:
            gathered = self.all_gather(sums)
            assert isinstance(gathered, Tensor)
            sums = gathered.sum(0)
        return _means(part, sums)


def _means(part: str, sums: Tensor) -> dict[str, float]:
    """Loss and accuracy per sample; without class scores there is no accuracy."""
    loss, correct, count = sums.tolist()
    means = {f"{part}_loss": loss / count}
    return means if math.isnan(correct) else means | {f"{part}_accuracy": correct / count}


def _csv(rows: list[dict[str, float]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
