"""`fit`: a network, data and a recipe in; a trained network out."""

import csv
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddu.data import ArrayDataset, collated
from ddu.data.dataset import read_samples
from ddu.distributed import is_main_process, other_ranks_watched
from ddu.errors import InputError
from ddu.files import check_writable
from ddu.messages import require
from ddu.models import Classifier
from ddu.training._stack import StackedSamples
from ddu.training.objectives import Objective, objective_for
from ddu.training.recipes import Precision, Recipe, find_recipe

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

HISTORY = "history.csv"


@dataclass(frozen=True)
class Training:
    """The result of a training.

    Attributes:
        model: The network that was given, with its trained weights, in evaluation mode.
        history: One dictionary per epoch: epoch, lr, loss and accuracy in training and validation, seconds. An
            objective without class scores has no accuracies.
        epoch: The epoch that the weights are from, counted from 1.
        is_main: Whether this process, out of several, reports and writes.
    """

    model: nn.Module
    history: list[dict[str, float]]
    epoch: int
    is_main: bool = True

    @property
    def seconds(self) -> float:
        """The time of all epochs, those before an interruption included."""
        return sum(row["seconds"] for row in self.history)


def read_history(folder: str | os.PathLike[str]) -> list[dict[str, float]]:
    """The `history` of the training that wrote to a folder; empty if there is none."""
    path = Path(folder, HISTORY)
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


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
    on_progress: Callable[[float, str], None] | None = None,
    **changes: Any,
) -> Training:
    """Trains a network.

    With an `output` folder it writes checkpoints, `history.csv` and TensorBoard logs there, and an interrupted training
    resumes after the last finished epoch. On a CPU it ends with the same weights as without the interruption. SIGTERM
    exits with code 143. In a thread other than the main one SIGTERM ends the process at once, since Python allows no
    handler there.

    On a CPU the weights of a `ddu.models.Classifier` are in the channels_last layout while it trains, where the
    objective is faster in it, and contiguous afterwards.

    Args:
        model: The network; it is trained in place.
        train: Samples (input, label). A data set whose `__getitems__` returns whole batches, like those of `ddu.data`,
            is read one batch at a time. "crop_flip" pads with black if the data set is a `ddu.data.ArrayDataset`, whose
            normalisation is known, and with zeros otherwise.
        validation: Held-out samples, evaluated after every epoch.
        recipe: A `Recipe`, or the name of one of `RECIPES`.
        output: The folder of the run; None keeps no files.
        seed: Decides the order of the samples, the augmentation and dropout; the initial weights are the caller's.
        objective: What to minimise. By default DUQ's loss for a network with a `ddu.layers.RBFHead`, and the
            cross-entropy for any other.
        devices: The number of processes to train with. More than one starts this program once for each of them. By
            default one, or as many as `torchrun` has started.
        accelerator: "cpu", "gpu" or "auto".
        workers: Processes that prepare batches, for data that must be decoded.
        progress: `True` shows a bar, `False` nothing; by default a bar on a terminal, and elsewhere a line per epoch on
            standard error, at most one every few seconds.
        on_progress: Called after every epoch, and about every second in between, with the share of all steps that is
            done, from 0 to 1, and a note such as "epoch 2 of 4, loss 0.123, accuracy 95.1%". Nothing is printed then.
        **changes: Fields of the recipe to change, such as `epochs=3`.

    Raises:
        InputError: An unknown recipe or field, a folder that cannot be written, batches that cannot be shared evenly,
            an accelerator that is not available, or a checkpoint that was made with another recipe or seed.
        ArtifactError: There are checkpoints to resume from, but none can be read.
        TrainingError: The loss became infinite or not a number, or the disk is full.
        RankError: Another of several processes has died.
    """
    require("lightning", extra="train", purpose="ddu.training.fit")
    recipe = (find_recipe(recipe) if isinstance(recipe, str) else recipe).with_changes(**changes)
    recipe = recipe.with_changes(precision=settled_precision(recipe.precision, accelerator))
    devices = devices or int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if devices > 1 and output is None:
        raise InputError(f"Training on {devices} devices needs an output folder, through which they share the weights.")
    for what, dataset in (("training", train), ("validation", validation)):
        if isinstance(dataset, Sized) and len(dataset) == 0:
            raise InputError(f"The {what} set is empty.")
    black = _black(train)
    train = repeated(train, recipe.samples_per_epoch)

    from ddu.training._callbacks import find_checkpoint, interruptible, load_best, show_progress
    from ddu.training._module import TrainingModule

    if objective is None:
        objective = objective_for(model, label_smoothing=recipe.label_smoothing, penalty=recipe.gradient_penalty)
    with _folder(output) as folder, _quiet():
        history_file = folder / HISTORY if output else None
        module = TrainingModule(model, recipe, objective, seed, black=black, history_file=history_file)
        shown = show_progress(progress, on_progress) if is_main_process() else []
        trainer = _trainer(recipe, folder, output is not None, devices, accelerator, shown)
        selects_best = recipe.select == "best" and validation is not None
        checkpoint, done = find_checkpoint(folder, is_main=trainer.is_global_zero, needs_best=selects_best)
        sampler = _StackedSampler if isinstance(train, StackedSamples) else _EpochSampler
        order = sampler(train, trainer.world_size, trainer.global_rank, seed=seed, drop_last=recipe.drop_last)
        order.set_epoch(done)  # workers begin to read before Lightning announces the epoch
        loaders = _loaders(train, validation, recipe, order, workers)
        is_faster = objective.channels_last and trainer.strategy.root_device.type == "cpu"
        with _channels_last(model) if is_faster else nullcontext():
            with interruptible(module, folder if output else None), other_ranks_watched(trainer.world_size):
                trainer.fit(module, *loaders, ckpt_path=checkpoint, weights_only=True)
            epoch = load_best(module, folder) if selects_best else len(module.history)
    return Training(model.eval(), module.history, epoch, trainer.is_global_zero)


def settled_precision(precision: Precision | Literal["auto"], accelerator: str = "auto") -> Precision:
    """The precision itself or, of "auto", the one that trains fastest here.

    A CPU that only emulates products of bfloat16 is slower with them.
    """
    if precision != "auto":
        return precision
    on_cpu = accelerator == "cpu" or not torch.accelerator.is_available()
    # Versions of PyTorch that cannot tell train in single precision
    flags = getattr(torch.cpu, "get_capabilities", dict)()
    return "bf16-mixed" if on_cpu and (flags.get("avx512_bf16") or flags.get("amx_bf16")) else "32-true"


@contextmanager
def _channels_last(model: nn.Module) -> Iterator[None]:
    """Keeps the weights of one of our networks in the layout that CPUs convolve fastest; afterwards as they were.

    The images need not be converted: a convolution answers in the layout of its weight. Networks that are not ours stay
    as they are, since one that flattens its maps with `view` fails in this layout.
    """
    if not isinstance(model, Classifier):
        yield
        return
    model.to(memory_format=torch.channels_last)
    try:
        yield
    finally:
        model.to(memory_format=torch.contiguous_format)


@contextmanager
def _folder(output: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder for checkpoints, checked to be writable; a temporary one if there is no `output`."""
    if output is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    folder = Path(output)
    check_writable(folder)
    yield folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Lightning's remarks on hardware and workers."""
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
    recipe: Recipe, folder: Path, keeps: bool, devices: int, accelerator: str, shown: "list[Callback]"
) -> "Trainer":
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    from ddu.training._callbacks import Checkpoints, Termination, WholeFiles

    assert recipe.precision != "auto", "it is settled"
    saves = keeps or recipe.select == "best"
    callbacks = [Termination(), *([Checkpoints(folder, resumable=keeps)] if saves else []), *shown]
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
            enable_checkpointing=saves,
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
    """The value of a black pixel per channel after normalisation; zero if the normalisation is not known."""
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
            f"{count} training samples do not fill a batch of {recipe.batch_size}, and drop_last skips other batches. "
            "Lower batch_size, or set drop_last=False."
        )
    batch_size = recipe.batch_size // world_size
    # A loader draws seeds for its workers. Its own generator leaves torch's random state alone.
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
    """An order that depends on seed and epoch alone. Each new epoch seeds torch's random state in the same way.

    Lightning announces an epoch before it draws the first batch, in a resumed training as in one that was never
    interrupted. So the random numbers of data set, augmentation and dropout are the same in both.
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


class _StackedSampler(_EpochSampler):
    """The orders that all members would have alone, side by side: tuples of one index per member."""

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        assert isinstance(self.dataset, StackedSamples)
        orders = [
            DistributedSampler(self.dataset, self.num_replicas, self.rank, seed=seed, drop_last=self.drop_last)
            for seed in self.dataset.seeds
        ]
        for order in orders:
            order.set_epoch(self.epoch)
        return zip(*orders, strict=True)


def repeated(dataset: Dataset[Any], count: int | None) -> Dataset[Any]:
    """A data set with so many samples, repeated or cut; None leaves it as it is."""
    return dataset if count is None else _Repeated(dataset, count)


class _Repeated(Dataset[Any]):
    """`count` samples in all: every sample of the data set equally often, to within one."""

    def __init__(self, dataset: Any, count: int) -> None:
        self.dataset, self.count = dataset, count

    def __len__(self) -> int:
        return self.count if len(self.dataset) else 0

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index % len(self.dataset)]

    def __getitems__(self, indices: list[int]) -> Any:
        return read_samples(self.dataset, [index % len(self.dataset) for index in indices])
