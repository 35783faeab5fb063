"""`fit`: a network, data and a recipe in; a trained network out."""

import errno
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddu.data import ArrayDataset, collated
from ddu.errors import InputError, TrainingError
from ddu.extras import require
from ddu.files import check_writable
from ddu.training._recipes import Recipe, find_recipe
from ddu.training.objectives import Objective, objective_for

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from ddu.training._module import TrainingModule

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Training:
    """What came of a training.

    Attributes:
        model: The network that was given, with its trained weights, in evaluation mode.
        history: One dictionary an epoch: epoch, lr, train and validation loss and accuracy, seconds.
        epoch: The epoch whose weights they are, from 1.
        is_main: Whether this is the process that reports and writes, out of several.
    """

    model: nn.Module
    history: list[dict[str, float]]
    epoch: int
    is_main: bool = True

    @property
    def seconds(self) -> float:
        """Time in epochs; of a training that was interrupted, all of them."""
        return sum(row["seconds"] for row in self.history)


def fit(
    model: nn.Module,
    train: Dataset[Any],
    validation: Dataset[Any] | None = None,
    *,
    recipe: Recipe | str = "quick",
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
    objective: Objective | None = None,
    devices: int | None = None,
    accelerator: str = "auto",
    workers: int = 0,
    progress: bool | None = None,
    **changes: Any,
) -> Training:
    """Trains a network.

    With an `output` folder it leaves checkpoints, `history.csv` and TensorBoard logs there, and goes on from the last
    finished epoch if it was interrupted: on a CPU, to the same weights as without the interruption. SIGTERM exits with
    code 143; from a thread other than the main one it ends the process at once, as Python allows no more there.

    Args:
        model: The network; it is trained in place.
        train: Samples (input, label). A set whose `__getitems__` returns whole batches, like those of `ddu.data`, is
            read a batch at a time. "crop_flip" pads with black, which it knows from the normalisation of a
            `ddu.data.ArrayDataset`; inputs of any other set are padded with zeros.
        validation: Held-out samples, judged after every epoch.
        recipe: A `Recipe`, or the name of one of `RECIPES`.
        output: The folder of the run; None leaves nothing.
        seed: Decides the order of the samples, the augmentation and dropout; the initial weights are the caller's.
        objective: What to minimise; by default what the head is made for: DUQ's loss for a `ddu.layers.RBFHead`, the
            cross-entropy for any other.
        devices: Processes to train with. More than one starts this program again for each of them. By default one, or
            as many as `torchrun` has started.
        accelerator: "cpu", "gpu" or "auto".
        workers: Processes that prepare batches, for data that has to be decoded.
        progress: `True` shows a bar, `False` nothing; by default a bar on a terminal, and elsewhere a line per epoch on
            standard error, at most one every few seconds.
        **changes: Fields of the recipe to change, such as `epochs=3`.

    Raises:
        InputError: An unknown recipe or field, a folder that cannot be written, batches that cannot be shared evenly,
            an accelerator that is not there, or a checkpoint that was made with another recipe or seed.
        ArtifactError: There are checkpoints to resume from, and none can be read.
        TrainingError: The loss became infinite or not a number, or the disk is full.
    """
    require("lightning", extra="train", purpose="ddu.training.fit")
    recipe = (find_recipe(recipe) if isinstance(recipe, str) else recipe).with_changes(**changes)
    devices = devices or int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if devices > 1 and output is None:
        raise InputError(f"Training on {devices} devices needs an output folder, through which they share the weights.")
    for what, dataset in (("training", train), ("validation", validation)):
        if isinstance(dataset, Sized) and len(dataset) == 0:
            raise InputError(f"The {what} set is empty.")
    black = _black(train)
    if recipe.samples_per_epoch is not None:
        train = _Repeated(train, recipe.samples_per_epoch)

    from ddu.training._checkpoints import BEST, find_checkpoint
    from ddu.training._module import TrainingModule

    if objective is None:
        objective = objective_for(model, label_smoothing=recipe.label_smoothing, penalty=recipe.gradient_penalty)
    with _folder(output) as folder, _quiet():
        history_file = folder / "history.csv" if output else None
        module = TrainingModule(model, recipe, objective, seed, black=black, history_file=history_file)
        trainer = _trainer(recipe, folder, output is not None, devices, accelerator, progress)
        selects_best = recipe.select == "best" and validation is not None
        checkpoint, done = find_checkpoint(folder, is_main=trainer.is_global_zero, needs_best=selects_best)
        order = _EpochSampler(train, trainer.world_size, trainer.global_rank, seed=seed, drop_last=recipe.drop_last)
        order.set_epoch(done)  # workers begin to read before Lightning announces the epoch
        loaders = _loaders(train, validation, recipe, order, workers)
        _run(trainer, module, loaders, checkpoint, folder if output else None)
        epoch = _load_best(module, folder / BEST) if selects_best else len(module.history)
    return Training(model.eval(), module.history, epoch, trainer.is_global_zero)


@contextmanager
def _folder(output: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder for checkpoints, writable; a temporary one where nothing is to be left."""
    if output is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    folder = Path(output)
    check_writable(folder)
    yield folder


def is_main_process() -> bool:
    """Whether this is the process that writes, out of those that train together."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's remarks on hardware and workers; what matters is said by us."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _trainer(
    recipe: Recipe, folder: Path, keeps: bool, devices: int, accelerator: str, progress: bool | None
) -> "Trainer":
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    from ddu.training._checkpoints import Checkpoints, WholeFiles
    from ddu.training._progress import ProgressBar, ProgressLines
    from ddu.training._termination import Termination

    callbacks: list[Callback] = [Termination()]
    if keeps or recipe.select == "best":
        callbacks.append(Checkpoints(folder, resumable=keeps))
    if progress is not False and is_main_process():
        callbacks.append(ProgressBar() if progress or os.isatty(2) else ProgressLines())
    try:
        return Trainer(
            accelerator=accelerator,
            devices=devices,
            num_nodes=int(os.environ.get("WORLD_SIZE", devices)) // devices,
            strategy="ddp" if devices > 1 else "auto",
            precision=recipe.precision,
            max_epochs=recipe.epochs,
            callbacks=callbacks,
            plugins=[WholeFiles()],
            logger=TensorBoardLogger(folder, name="", version="tensorboard") if keeps else False,
            enable_checkpointing=keeps or recipe.select == "best",
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,  # ours depend on the seed and the epoch alone
        )
    except (MisconfigurationException, ValueError) as error:
        raise InputError(
            f"Cannot train with accelerator={accelerator!r} and devices={devices}: {error} Set accelerator to 'cpu' or "
            "'auto'."
        ) from error


def _black(dataset: Dataset[Any]) -> Tensor:
    """A black pixel, per channel, as the data set gives it; zero where its normalisation is not known."""
    if not isinstance(dataset, ArrayDataset) or not dataset.info.is_image:
        return torch.zeros(1)
    mean, std = torch.tensor(dataset.info.mean), torch.tensor(dataset.info.std)
    return -mean / std


def _loaders(
    train: Dataset[Any], validation: Dataset[Any] | None, recipe: Recipe, order: "_EpochSampler", workers: int
) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    """Batches for this rank."""
    world_size, rank, count = order.num_replicas, order.rank, len(train)  # type: ignore[arg-type]
    if recipe.batch_size % world_size:
        raise InputError(f"A batch of {recipe.batch_size} cannot be shared evenly by {world_size} devices.")
    if recipe.drop_last and count < recipe.batch_size:
        raise InputError(
            f"{count} training samples do not fill a batch of {recipe.batch_size}, and drop_last leaves out others: "
            "lower batch_size, or set drop_last=False."
        )
    batch_size = recipe.batch_size // world_size
    # A loader draws seeds for its workers; from a generator of its own, so that torch's random state is not moved
    options: dict[str, Any] = {"num_workers": workers, "collate_fn": collated, "generator": torch.Generator()}
    loader = DataLoader(
        train, batch_size, sampler=order, drop_last=recipe.drop_last, worker_init_fn=order.seed_worker, **options
    )
    if validation is None:
        return loader, None
    # Every sample once, over all ranks together
    part = range(rank, len(validation), world_size)  # type: ignore[arg-type]
    return loader, DataLoader(validation, max(batch_size, 256), sampler=part, **options)


class _EpochSampler(DistributedSampler[Any]):
    """An order that depends on seed and epoch alone; with each new epoch it seeds torch's random state likewise.

    Lightning announces an epoch before it draws the first batch, in a run that goes on as in one that was never
    interrupted. So whatever the data set, the augmentation and dropout draw in an epoch is the same in both.
    """

    _announced = -1

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if epoch != self._announced:
            self._announced = epoch
            self._seed(0)

    def seed_worker(self, worker: int) -> None:
        self._seed(1 + worker)

    def _seed(self, process: int) -> None:
        mixed = np.random.SeedSequence([self.seed, self.epoch, self.rank, process])
        torch.manual_seed(int(mixed.generate_state(1)[0]))


class _Repeated(Dataset[Any]):
    """`count` samples in all: every sample of a set equally often, to within one."""

    def __init__(self, dataset: Any, count: int) -> None:
        self.dataset, self.count = dataset, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index % len(self.dataset)]

    def __getitems__(self, indices: list[int]) -> Any:
        wrapped = [index % len(self.dataset) for index in indices]
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(wrapped)
        return [self.dataset[index] for index in wrapped]


def _run(
    trainer: "Trainer",
    module: "TrainingModule",
    loaders: tuple[DataLoader[Any], DataLoader[Any] | None],
    checkpoint: Path | None,
    output: Path | None,
) -> None:
    """Trains, from a checkpoint if there is one; Ctrl-C stays a KeyboardInterrupt, SIGTERM exits with its own code."""
    from ddu.training._termination import EXIT_CODE, Terminated

    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, *loaders, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as end:  # what Lightning makes of a KeyboardInterrupt
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, on_interrupt)
        if not isinstance(end.__context__, Terminated):
            raise KeyboardInterrupt from end
        if trainer.is_global_zero:
            way_out = " Run the same again to resume." if output else ""
            print(f"Terminated in epoch {len(module.history) + 1} of {module.recipe.epochs}.{way_out}", file=sys.stderr)
        raise SystemExit(EXIT_CODE) from end
    except OSError as error:
        if error.errno not in _FULL:
            raise
        way_out = "The last checkpoint is kept: free some space and run the same again to resume."
        raise TrainingError(
            f"Cannot write to {output or tempfile.gettempdir()}: {error.strerror}. "
            + (way_out if output else "Free some space and run the same again.")
        ) from error


def _load_best(module: "TrainingModule", best: Path) -> int:
    """Loads the weights of the best epoch, and returns which it is."""
    checkpoint = torch.load(best, map_location=module.device, weights_only=True)
    module.load_state_dict(checkpoint["state_dict"])
    return checkpoint["epoch"] + 1
