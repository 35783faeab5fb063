"""The loop: train on the labelled samples, find the samples that are worth a label, have them labelled.

Everything that happens in a round is a function of the seed, the round and the labels so far. So a learner that was
killed and is taught the same labels again has the same future as one that was not.
"""

import hashlib
import json
import operator
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.utils.data import Dataset

from ddu.active.acquisition import Acquisition, few_samples_expected, find_acquisition
from ddu.active.candidates import AnyDetector, Candidates, LabelledSamples, extract_features, read_inputs
from ddu.data import loader
from ddu.detectors import DDU
from ddu.errors import ArtifactError, InputError, LabelError
from ddu.features import LogitsTap
from ddu.files import FilePath, write_json
from ddu.resume import read_settings, refuse_changes
from ddu.training import Objective, Recipe, find_recipe, fit, fit_members
from ddu.training.members import train_together

STATE = "learner.json"
_FORMAT, _VERSION = "ddu-active-learner", 1

Integers = ArrayLike | torch.Tensor
Oracle = Callable[[np.ndarray], Integers]
"""Gives the labels of the samples at some indices of the pool."""

# Streams of random numbers that must not depend on each other
_NETWORK, _CANDIDATES, _CHOICE = range(3)


class Trainer(Protocol):
    """Trains a network in place."""

    def __call__(self, model: nn.Module, train: Dataset[Any], validation: Dataset[Any] | None, *, seed: int) -> object:
        """Trains; all randomness comes from the seed, or from torch's random state, which is seeded before."""
        ...


@dataclass(frozen=True)
class RecipeTrainer(Trainer):
    """Training by a recipe of `ddu.training`; `by_recipe` makes one, and explains the attributes."""

    recipe: Recipe
    objective: Callable[[], Objective] | None = None
    together: bool | None = None
    progress: bool | None = False

    def __call__(self, model: nn.Module, train: Dataset[Any], validation: Dataset[Any] | None, *, seed: int) -> object:
        """Trains a network."""
        objective = self.objective and self.objective()
        return fit(model, train, validation, recipe=self.recipe, seed=seed, objective=objective, progress=self.progress)

    def trains_together(self, models: Sequence[nn.Module]) -> bool:
        """Whether these networks are members that `train_members` trains together."""
        return self.objective is None and train_together(models, self.recipe, together=self.together)

    def train_members(
        self, models: Sequence[nn.Module], train: Dataset[Any], validation: Dataset[Any] | None, *, seeds: Sequence[int]
    ) -> list[nn.Module]:
        """Trains members together."""
        options: dict[str, Any] = {"recipe": self.recipe, "progress": self.progress}
        return fit_members(models, train, validation, seeds=seeds, together=True, **options)


def by_recipe(
    recipe: Recipe | str = "active_learning",
    *,
    objective: Callable[[], Objective] | None = None,
    together: bool | None = None,
    progress: bool | None = False,
    **changes: Any,
) -> RecipeTrainer:
    """Training by a recipe of `ddu.training`.

    Args:
        recipe: A recipe, or the name of one.
        objective: Makes the objective; by default that of the network's head.
        together: Whether the members of an ensemble are trained together, by default where it pays; see
            `ddu.training.fit_members`. With an objective of your own they never are.
        progress: As in `ddu.training.fit`.
        **changes: Fields of the recipe to change, such as `epochs=3`.
    """
    if together and objective is not None:
        raise InputError("Members are trained together by cross-entropy: leave out objective= or together=True.")
    chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
    return RecipeTrainer(chosen.with_changes(**changes), objective, together, progress)


@dataclass(frozen=True)
class Proposal:
    """Samples that are worth a label, the best first; each attribute is (sample,).

    Attributes:
        indices: Their places in the pool.
        scores: The scores by which they were chosen.
        epistemic: How unlike the labelled samples they are, by the detector.
        aleatoric: The entropy of their predicted classes, in nats.
        predicted: Their likeliest classes.
    """

    indices: np.ndarray
    scores: np.ndarray
    epistemic: np.ndarray
    aleatoric: np.ndarray
    predicted: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Record:
    """A round: the accuracy with some number of labels, and the samples that were labelled next.

    Attributes:
        round: From 0.
        labels: How many labels the networks were trained with.
        accuracy: On the test set; None without one.
        indices: The samples of the pool that were then acquired; empty in the last round.
        seconds: How long the round took.
    """

    round: int
    labels: int
    accuracy: float | None
    indices: tuple[int, ...]
    seconds: float


class ActiveLearner:
    """Learns from few labels by asking for those that matter.

    Args:
        model_factory: Makes an untrained network. A fresh one is trained in every round, with weights that depend on
            the seed and the round alone.
        detector: Makes a detector of a trained network, for example `ddu.DDU`; of a list of networks if there are
            several `members`, for example `ddu.detectors.Ensemble`.
        pool: Unlabelled inputs: an array or tensor (sample, ...), or a data set of inputs, or of (input, label) whose
            labels are not looked at. It is streamed.
        labelled: A data set of (input, label) to begin with. A density needs at least two of every class.
        oracle: Gives the labels of the samples at some indices of the pool; without one, use `propose` and `teach`.
        acquisition: The rule for choosing: an `Acquisition`, or "epistemic", "aleatoric", "random", "power", "diverse".
        members: How many networks are trained.
        validation: Held-out samples, for a trainer that chooses its epoch by them.
        test: Samples to measure the accuracy on.
        trainer: How a network is trained; by default the recipe "active_learning", which keeps the best epoch by
            validation accuracy, or without `validation` the last.
        per_round: How many labels `step` asks for.
        retrain_every: Train fresh networks only every so many rounds; in between, what was taught only updates the
            detector, and of a density only the moments.
        candidates: Consider so many samples of the pool in a round, drawn at random; None considers all.
        batch_size: How many samples are scored at a time.
        workers: Processes that read the pool.
        seed: Decides everything that is random.
        progress: `True` shows bars, `False` none; by default they appear on a terminal if something takes long.
        on_stage: Is told what is being done.
        settings: What else decides the networks, such as the recipe of the trainer, as JSON has it: `resume` refuses a
            learner with other settings.

    Attributes:
        records: What `step` and `run` have done so far.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> x = torch.randn(300, 2)
        >>> y = (x[:, 0] > 0).long()
        >>> def train(model, samples, validation, *, seed):
        ...     inputs, labels = samples.__getitems__(range(len(samples)))
        ...     optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
        ...     for _ in range(20):
        ...         optimiser.zero_grad()
        ...         torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        ...         optimiser.step()
        >>> learner = ActiveLearner(
        ...     model_factory=lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)),
        ...     detector=DDU,
        ...     pool=x[:200],
        ...     labelled=TensorDataset(x[200:210], y[200:210]),
        ...     oracle=lambda indices: y[indices],
        ...     trainer=train,
        ... )
        >>> proposal = learner.propose(3)
        >>> learner.teach(proposal.indices, y[proposal.indices])
        >>> [record.labels for record in learner.run(until=20)]
        [13, 18, 20]
    """

    def __init__(
        self,
        model_factory: Callable[[], nn.Module],
        detector: Callable[[Any], AnyDetector],
        pool: Any,
        labelled: Any = None,
        oracle: Oracle | None = None,
        acquisition: Acquisition | str = "epistemic",
        *,
        members: int = 1,
        validation: Dataset[Any] | None = None,
        test: Dataset[Any] | None = None,
        trainer: Trainer | None = None,
        per_round: int = 5,
        retrain_every: int = 1,
        candidates: int | None = None,
        batch_size: int = 512,
        workers: int = 0,
        seed: int = 0,
        progress: bool | None = None,
        on_stage: Callable[[str], None] = lambda stage: None,
        settings: Mapping[str, Any] | None = None,
    ):
        self.model_factory = model_factory
        self.make_detector = detector
        self.pool = pool
        self.labelled = labelled
        self.oracle = oracle
        self.acquisition = find_acquisition(acquisition)
        self.members = members
        self.validation = validation
        self.test = test
        # Off a terminal training prints lines, and here there are many trainings
        bars = os.isatty(2) if progress is None else progress
        self.trainer = by_recipe(progress=bars) if trainer is None else trainer
        self.per_round = per_round
        self.retrain_every = retrain_every
        self.candidates = candidates
        self.batch_size = batch_size
        self.workers = workers
        self.seed = seed
        self.progress = progress
        self.on_stage = on_stage
        self.settings = settings or {}
        self.records: list[Record] = []
        self._rounds: list[_Taught] = []
        self._detector: AnyDetector | None
        self._trained_at: int
        self._fitted_at: int
        self._accuracy: float | None
        self._forget()
        _check_parameters(self)

    @property
    def round(self) -> int:
        """The number of rounds so far: how often it has been taught."""
        return len(self._rounds)

    @property
    def num_labels(self) -> int:
        """How many samples are labelled."""
        return len(self._samples(self.round))

    @cached_property
    def num_classes(self) -> int:
        """How many classes the networks tell apart."""
        with torch.random.fork_rng(devices=[]):
            return LogitsTap(self.model_factory())(read_inputs(self.pool, [0])).logits.shape[1]

    @cached_property
    def trains_together(self) -> bool:
        """Whether the members of an ensemble are trained together; see `ddu.training.fit_members`."""
        if self.members == 1 or not isinstance(self.trainer, RecipeTrainer):
            return False
        with torch.random.fork_rng(devices=[]):
            return self.trainer.trains_together([self.model_factory() for _ in range(self.members)])

    @property
    def network_settings(self) -> dict[str, Any]:
        """What decides the networks: `settings`, and whether members are trained together."""
        # They are then the same members but for rounding, which grows from round to round
        return {**self.settings, "trains_together": True} if self.trains_together else dict(self.settings)

    @property
    def detector(self) -> AnyDetector:
        """The detector around this round's networks; they are trained when it is first asked for."""
        self._train()
        assert self._detector is not None
        return self._detector

    def unlabelled(self) -> np.ndarray:
        """The indices of the pool that have no label, in ascending order."""
        free = np.ones(len(self.pool), dtype=bool)
        for taught in self._rounds:
            free[taught.indices] = False
        return np.flatnonzero(free)

    def propose(self, k: int | None = None) -> Proposal:
        """The samples that are most worth a label; the same again until something is taught.

        Args:
            k: How many, by default `per_round`; fewer if the pool has no more.
        """
        wanted = _integer(self.per_round if k is None else k, 1, "The number of samples to propose")
        detector, indices = self.detector, self.unlabelled()
        if not len(indices):
            raise InputError(f"All {len(self.pool)} samples of the pool are labelled: there is nothing to propose.")
        if self.candidates is not None and self.candidates < len(indices):
            drawn = self._random(_CANDIDATES).choice(indices, self.candidates, replace=False)
            indices = np.sort(drawn)
        self.on_stage(f"scoring {len(indices):,} candidates")
        candidates = Candidates(
            detector, self.pool, indices, batch_size=self.batch_size, workers=self.workers, progress=self.progress
        )
        positions, scores = self.acquisition.choose(candidates, min(wanted, len(indices)), self._random(_CHOICE))
        return Proposal(indices[positions], scores, *candidates.judge(positions))

    def teach(self, indices: Integers, labels: Integers) -> None:
        """Adds labels and begins the next round.

        Args:
            indices: Which samples of the pool, (sample,).
            labels: Their classes, (sample,).
        """
        taught = _checked(self, indices, labels)
        known = np.concatenate([taught.indices, *(earlier.indices for earlier in self._rounds)])
        values, counts = np.unique(known, return_counts=True)
        if counts.max() > 1:
            twice = values[counts.argmax()]
            raise LabelError(f"Index {twice} would be taught twice: it has a label already, which `correct` changes.")
        self._rounds.append(taught)

    def correct(self, indices: Integers, labels: Integers) -> None:
        """Replaces labels that were taught by mistake; networks are trained again with the right ones.

        Args:
            indices: Which samples of the pool, (sample,).
            labels: Their right classes, (sample,).
        """
        right = _checked(self, indices, labels)
        missing = np.intersect1d(right.indices, self.unlabelled())
        if len(missing):
            raise LabelError(f"Index {missing[0]} has no label to correct: teach it.")
        for taught in self._rounds:
            for index, label in zip(right.indices, right.labels, strict=True):
                taught.labels[taught.indices == index] = label
        self._forget()

    def measure(self) -> float | None:
        """The accuracy of this round's networks on the test set; None without one."""
        detector = self.detector
        if self.test is None or self._accuracy is not None:
            return self._accuracy
        self.on_stage("testing")
        right = count = 0
        with torch.random.fork_rng(devices=[]):
            for inputs, labels in loader(self.test, self.batch_size, workers=self.workers):
                right += int((detector.predict(inputs).label.cpu() == labels).sum())
                count += len(labels)
        self._accuracy = right / count
        return self._accuracy

    def step(self) -> Record:
        """One round: trains, measures, and asks the oracle for `per_round` labels."""
        return self._step(self.per_round)

    def run(self, until: int) -> Iterator[Record]:
        """Runs rounds until so many samples are labelled, and a last one that only trains and measures.

        Args:
            until: The number of labels to stop at; the run ends earlier if the pool runs out.
        """
        while self.num_labels < until and len(self.unlabelled()):
            yield self._step(min(self.per_round, until - self.num_labels))
        yield self._step(0)

    def save(self, folder: FilePath) -> None:
        """Writes the labels that it was taught, and its records, in one step."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "made_with": self._settings(),
            "rounds": [{"indices": t.indices.tolist(), "labels": t.labels.tolist()} for t in self._rounds],
            "records": [asdict(record) for record in self.records],
        }
        write_json(path / STATE, content)

    def resume(self, folder: FilePath) -> Self:
        """Resumes from what `save` wrote: on one machine, to the same future.

        The networks of the round are trained again when they are needed. Where nothing was saved yet the learner stays
        as it is, so that the same program can be started again and again.
        """
        path = Path(folder) / STATE
        content = read_settings(path, "learner")
        if content is None:
            return self
        try:
            if content["format"] != _FORMAT or content["version"] > _VERSION:
                raise ArtifactError(f"{path} is not the state of an active learner that this ddu can read.")
            refuse_changes(f"The learner in {folder}", content["made_with"], self._settings())
            rounds = [(one["indices"], one["labels"]) for one in content["rounds"]]
            self.records = [Record(**{**one, "indices": tuple(one["indices"])}) for one in content["records"]]
        except (KeyError, TypeError) as error:
            raise ArtifactError(f"{path} is damaged ({error!r}): choose another folder for this learner.") from error
        self._rounds = []
        self._forget()
        for indices, labels in rounds:
            self.teach(indices, labels)
        return self

    def _forget(self) -> None:
        """Forgets the networks, so that they are trained when they are next needed."""
        self._detector, self._trained_at, self._fitted_at, self._accuracy = None, -1, -1, None

    def _step(self, k: int) -> Record:
        started = time.monotonic()
        if k and self.oracle is None:
            raise InputError("There is no oracle to ask: give oracle=, or use propose and teach.")
        now, labels, accuracy = self.round, self.num_labels, self.measure()
        indices: np.ndarray = np.empty(0, dtype=np.int64)
        if k:
            assert self.oracle is not None
            indices = self.propose(k).indices
            self.teach(indices, self.oracle(indices))
        record = Record(now, labels, accuracy, tuple(indices.tolist()), time.monotonic() - started)
        if self.records and self.records[-1].round == now:
            self.records.pop()  # an earlier run ended there, and this one continues it
        self.records.append(record)
        return record

    def _train(self) -> None:
        """Brings networks and detector to this round: fresh networks where they are due, an update where not."""
        due = self.round - self.round % self.retrain_every
        if due == self._trained_at and self.round == self._fitted_at:
            return
        with torch.random.fork_rng(devices=[]), few_samples_expected():
            if due != self._trained_at:
                self._start_over(due)
            # Round by round, also after a resume: sums in another order would differ in their last digits
            while self._fitted_at < self.round:
                self._update(self._rounds[self._fitted_at])
                self._fitted_at += 1

    def _start_over(self, due: int) -> None:
        samples = self._samples(due)
        if not len(samples):
            raise InputError("There are no labels to learn from: give labelled=, or teach some samples first.")
        models = self._train_networks(due, samples)
        self._detector = self.make_detector(models if self.members > 1 else models[0])
        self._detector.fit(loader(samples, self.batch_size))
        self._trained_at = self._fitted_at = due
        self._accuracy = None

    def _train_networks(self, due: int, samples: LabelledSamples) -> list[nn.Module]:
        streams = [np.random.SeedSequence([self.seed, due, _NETWORK, member]) for member in range(self.members)]
        seeds = [stream.generate_state(2).tolist() for stream in streams]  # of weights and training
        if self.trains_together:
            assert isinstance(self.trainer, RecipeTrainer)
            self.on_stage(f"training {self.members} networks on {len(samples):,} labels")
            models = [self._make_network(weights) for weights, _ in seeds]
            return self.trainer.train_members(models, samples, self.validation, seeds=[last for _, last in seeds])
        models = []
        for member, (weights, training) in enumerate(seeds, start=1):
            named = f"network {member} of {self.members}" if self.members > 1 else "the network"
            self.on_stage(f"training {named} on {len(samples):,} labels")
            model = self._make_network(weights)
            torch.manual_seed(training)
            self.trainer(model, samples, self.validation, seed=training)
            models.append(model.eval())
        return models

    def _make_network(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.model_factory()

    def _update(self, taught: "_Taught") -> None:
        """Has the detector learn what was taught, around networks that have not changed."""
        assert self._detector is not None
        if isinstance(self._detector, DDU):
            batch = extract_features(self._detector, self.pool, taught.indices, self.batch_size)
            self._detector.update(batch._replace(labels=torch.from_numpy(taught.labels)))
        else:
            self._detector.fit(loader(self._samples(self._fitted_at + 1), self.batch_size))

    def _samples(self, rounds: int) -> LabelledSamples:
        """What was labelled before a round."""
        empty = np.empty(0, dtype=np.int64)
        indices = np.concatenate([empty, *(taught.indices for taught in self._rounds[:rounds])])
        labels = np.concatenate([empty, *(taught.labels for taught in self._rounds[:rounds])])
        return LabelledSamples(self.labelled, self.pool, indices, labels)

    def _random(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.round, purpose])

    def _settings(self) -> dict[str, Any]:
        """What `resume` compares, as JSON has it."""
        settings = {
            "pool": _described(self.pool),
            "labelled": 0 if self.labelled is None else len(self.labelled),
            "acquisition": re.sub(r" at 0x[0-9a-f]+", "", repr(self.acquisition)),
            "members": self.members,
            "retrain_every": self.retrain_every,
            "candidates": self.candidates,
            "seed": self.seed,
            **self.network_settings,
        }
        return json.loads(json.dumps(settings))


@dataclass(frozen=True)
class _Taught:
    """What was taught at the end of a round."""

    indices: np.ndarray
    labels: np.ndarray


def _described(pool: Any) -> str:
    """The size of a pool and, of one in memory, what tells it from another: labels belong to places in it."""
    size = f"{len(pool)} samples"
    if not isinstance(pool, torch.Tensor | np.ndarray) or not len(pool):
        return size
    some = read_inputs(pool, [0, len(pool) // 2, len(pool) - 1]).cpu().contiguous().numpy()
    return f"{size} ({hashlib.sha256(some.tobytes()).hexdigest()[:12]})"


def _check_parameters(learner: ActiveLearner) -> None:
    for name in ("members", "per_round", "retrain_every", "candidates", "batch_size", "seed"):
        value, least = getattr(learner, name), 0 if name == "seed" else 1
        if value is not None:
            setattr(learner, name, _integer(value, least, f"The '{name}' parameter of ActiveLearner"))


def _integer(value: Any, least: int, what: str) -> int:
    """A whole number, of Python's or NumPy's."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{what} must be an integer of at least {least}. Got {value!r} instead.")
    return number


def _checked(learner: ActiveLearner, *given: Integers) -> _Taught:
    """Indices of the pool and their classes, as arrays."""
    indices, labels = (one.cpu().numpy() if isinstance(one, torch.Tensor) else np.asarray(one) for one in given)
    if indices.ndim != 1 or labels.shape != indices.shape or not len(indices):
        raise LabelError(
            f"teach takes one label for each index, at least one. Got indices of shape {indices.shape} and labels of "
            f"shape {labels.shape}."
        )
    for name, values in (("indices", indices), ("labels", labels)):
        if values.dtype.kind not in "iu" or values.min() < 0:
            raise LabelError(f"The {name} must be integers from 0. Got {values[:5].tolist()} ({values.dtype}).")
    if indices.max() >= len(learner.pool):
        raise LabelError(f"There is no index {indices.max()} in a pool of {len(learner.pool)} samples.")
    if labels.max() >= learner.num_classes:
        raise LabelError(f"There is no class {labels.max()}: the network has {learner.num_classes}, from 0.")
    return _Taught(indices.astype(np.int64), labels.astype(np.int64))
