"""The comparison: detectors x OoD sets x seeds, from training to a table. What is missing is trained and measured.

comparison.json   what is compared
networks/         a run for each network, seed and member
rows.csv          the results
scores/           what each detector says of each input
"""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddu import data
from ddu.data import ArrayDataset, DataInfo
from ddu.data.registry import Root
from ddu.detectors import BaseDetector, find_method
from ddu.errors import DDUError, FeatureError, InputError, LabelError
from ddu.experiments.detector_page import write_report
from ddu.experiments.experiment import ROWS, Say, silent
from ddu.experiments.measure import SCORES, Maker, Recorder, Subject
from ddu.experiments.reproduction import Work, training_samples
from ddu.experiments.trained import Members, Sets, TrainedNetwork, limited, load_ood
from ddu.experiments.training_pool import Job, network_job, train_networks
from ddu.files import FilePath, write_json
from ddu.messages import check_name
from ddu.provenance import fingerprint
from ddu.results import Row, RowFile, latest
from ddu.resume import one_at_a_time, read_settings, refuse_changes
from ddu.runs import Run, RunSpec, data_digest, load_run, split_rows
from ddu.runs.spec import PAPER_SETUPS
from ddu.training import Recipe

COMPARISON = "comparison.json"

# Inputs that detectors are tried out on
_TRIAL = 16

# Seeds of an ensemble's members lie so far apart: 0, 1000, 2000, ... for the seed 0
_MEMBER_STRIDE = 1000

# Inputs of a test set whose size is not known before it is read
_USUAL_SET = 10_000


@dataclass(frozen=True)
class NetworkSetup:
    """A network of a comparison.

    Attributes:
        model: Its architecture, a name of `ddu.list_models()`.
        recipe: How it is trained.
        options: For `create_model`.
        label: What rows call it; by default as `ddu.runs.network_label` does.
    """

    model: str
    recipe: Recipe
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None


@dataclass(frozen=True)
class Contender:
    """A detector of a comparison.

    Attributes:
        method: The name of its method, such as "ddu".
        network: The name of the network that it is put around.
        options: Of the detector.
        members: How many networks it takes, trained alike from different seeds.
        name: What rows call it.
    """

    method: str
    network: str
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1
    name: str = ""

    def make(self, model: nn.Module | Sequence[nn.Module]) -> BaseDetector:
        """The detector around a network, or around members."""
        return find_method(self.method).make(model, **self.options)

    def check_network(self, known: Iterable[str]) -> None:
        """Refuses a network that the comparison does not have."""
        check_name(self.network, known, f"{self.name} asks for a network {{name!r}}, and there is none")


@dataclass(frozen=True)
class Comparison:
    """Detectors x OoD sets x seeds.

    Attributes:
        data: The training data, a name of `ddu.data.list_data()`.
        ood: The out-of-distribution sets.
        networks: The networks that detectors ask for, by name.
        detectors: The detectors, in the order of the table.
        seeds: Every network is trained once per seed.
        limit: Use only so many training samples; None uses all.
        false_alarm_rate: The rate that detectors are calibrated for.
        inputs: Show at most so many inputs of the test set and of each OoD set; None shows all.
    """

    data: str
    ood: tuple[str, ...]
    networks: Mapping[str, NetworkSetup]
    detectors: tuple[Contender, ...]
    seeds: tuple[int, ...] = (0,)
    limit: int | None = None
    false_alarm_rate: float = 0.01
    inputs: int | None = None

    def __post_init__(self) -> None:
        for contender in self.detectors:
            contender.check_network(self.networks)
        called = Counter((contender.name, self.label(contender)) for contender in self.detectors)
        (name, network), times = called.most_common(1)[0]
        if times > 1:
            raise InputError(
                f"Two detectors are called {name} on {network}: give one of them a name, or its network a label."
            )
        shares = sorted({network.recipe.validation_share for network in self.networks.values()})
        if len(shares) > 1:
            raise InputError(
                f"All networks hold out the same data, and these recipes have {' and '.join(map(str, shares))} as "
                "validation_share: set it in the recipe of the whole comparison."
            )

    def work(self) -> list[Work]:
        """The networks of one seed: as many of each as the largest ensemble of them needs."""
        samples = training_samples(self.data, self.limit)
        scored = samples + (1 + len(self.ood)) * (self.inputs or _USUAL_SET)
        members = {name: [one.members for one in self.detectors if one.network == name] for name in self.networks}
        return [
            Work(self.spec(name, 0), samples, max(many), self.ood, scored) for name, many in members.items() if many
        ]

    def spec(self, network: str, seed: int, member: int = 0) -> RunSpec:
        """How a network is trained for a seed; members after the first have seeds of their own, and its split."""
        setup = self.networks[network]
        return RunSpec(
            model=setup.model,
            data=self.data,
            recipe=setup.recipe,
            method=None,
            seed=seed + _MEMBER_STRIDE * member,
            limit=self.limit,
            false_alarm_rate=self.false_alarm_rate,
            options=setup.options,
            split_seed=seed if member else None,
        )

    def label(self, contender: Contender) -> str:
        """What rows call the network of a detector."""
        return self.networks[contender.network].label or self.spec(contender.network, 0).label

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        content = json.loads(json.dumps(asdict(self)))
        return {name: value for name, value in content.items() if (name, value) != ("inputs", None)}

    def measure(
        self,
        folder: FilePath,
        *,
        data_root: Root = None,
        workers: int = 1,
        command: str = "",
        progress: bool | None = None,
        say: Say = silent,
    ) -> list[Row]:
        """Trains the networks and measures the detectors, as far as that has not been done yet.

        A comparison that was interrupted, or killed, is resumed. Detectors, OoD sets and seeds may be added to it. What
        fails is a row that says so, and is tried again the next time.

        Args:
            folder: A new or empty folder, or that of the same comparison.
            data_root: Where the data is; see `ddu.data.load`.
            workers: Networks that are trained at the same time; their training times include the contention.
            command: The command to record with the rows.
            progress: As in `ddu.training.fit`.
            say: Is told what is being done.

        Returns:
            The rows of the comparison, one per key.
        """
        folder = Path(folder)
        ood = self.load_ood(data_root)
        everything, test = data.load_parts(self.data, root=data_root)
        held_out = split_rows(self.spec(next(iter(self.networks)), self.seeds[0]), everything)["validation"]
        self._try_out(everything.info, len(held_out))
        with one_at_a_time(folder):
            self._write_down(folder)
            rows, digest = RowFile(folder / ROWS), data_digest(everything, test)
            recorder = Recorder(rows, folder / SCORES, self.ood, self.false_alarm_rate, command)
            asked = {self._subject(one, seed, digest): (seed, one) for seed in self.seeds for one in self.detectors}
            missing = [asked[subject] for subject in recorder.missing(asked)]
            jobs = {job.folder: job for seed, one in missing for job in self._jobs(one, seed, folder)}
            failures = train_networks(
                list(jobs.values()), workers=workers, say=say, progress=progress, data_root=data_root, command=command
            )
            for seed in dict.fromkeys(seed for seed, _ in missing):
                contenders = [one for its_seed, one in missing if its_seed == seed]
                for contender in list(contenders):
                    needed = [job.folder for job in self._jobs(contender, seed, folder)]
                    error = next((failures[path] for path in needed if path in failures), None)
                    if error is not None:
                        recorder.fail(self._subject(contender, seed, digest), error, say)
                        contenders.remove(contender)
                self._measure_seed(seed, contenders, folder, ood, data_root, recorder, say)
        return self._own(rows)

    def load_ood(self, data_root: Root = None) -> dict[str, ArrayDataset]:
        """The OoD sets as the networks are shown them, by name."""
        found = load_ood(self.ood, self.data, data_root)
        return {name: limited(dataset, self.inputs) for name, dataset in found.items()}

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes tables and figures of the rows of this comparison beside them."""
        path = Path(folder) / ROWS
        return write_report(path, self._own(RowFile(path)))

    def _measure_seed(
        self,
        seed: int,
        contenders: Iterable[Contender],
        folder: Path,
        ood: Sets,
        data_root: Root,
        recorder: Recorder,
        say: Say,
    ) -> None:
        """Measures detectors of one seed: those around the same networks together, ensembles last."""
        groups: dict[tuple[str, int], list[Contender]] = {}
        for contender in sorted(contenders, key=lambda one: one.members):
            groups.setdefault((contender.network, contender.members), []).append(contender)
        networks, sets = dict[Path, TrainedNetwork](), None
        for group in groups.values():
            runs = [load_run(job.folder) for job in self._jobs(group[0], seed, folder)]
            # The split is that of the seed, and the same for all networks
            sets = sets or {**self._known(runs[0], data_root), **ood}
            for run in runs:
                networks.setdefault(run.folder, TrainedNetwork(run, sets))
            say(f"Measure {', '.join(one.name for one in group)} on {self.label(group[0])}, seed {seed}")
            found = [networks[run.folder] for run in runs]
            makers: dict[Subject, Maker] = {self._subject(one, seed, runs[0].digest): one.make for one in group}
            network = Members(found) if len(found) > 1 else found[0]
            recorder.record(network, makers, say, reductions=self._reductions(runs[0]))

    def _known(self, run: Run, data_root: Root) -> dict[str, ArrayDataset]:
        """The training, validation and test sets of a run."""
        known = run.load_data(root=data_root)._asdict()
        return {**known, "test": limited(known["test"], self.inputs)}

    def _reductions(self, run: Run) -> str | None:
        """How the run of a network and what it is shown are smaller than the paper's."""
        if self.inputs is None or self.data not in PAPER_SETUPS:
            return run.reductions
        return "; ".join(filter(None, [run.reductions, f"at most {self.inputs:,} inputs per test set"]))

    def _jobs(self, contender: Contender, seed: int, folder: Path) -> list[Job]:
        """The networks that a detector needs."""
        stem = f"{contender.network}-seed{seed}"
        names = [stem, *(f"{stem}-member{member}" for member in range(1, contender.members))]
        return [
            network_job(folder, name, self.spec(contender.network, seed, member)) for member, name in enumerate(names)
        ]

    def _subject(self, contender: Contender, seed: int, digest: str) -> Subject:
        run = self.spec(contender.network, seed).fingerprint(digest)
        if contender.options:
            run = fingerprint(run, contender.method, contender.options)
        if self.inputs is not None:
            run = fingerprint(run, self.inputs)
        return Subject(contender.name, self.label(contender), self.data, seed, run, contender.members)

    def _own(self, rows: RowFile) -> list[Row]:
        """The rows of this comparison, in the order of its detectors; the file may have more detectors or seeds."""
        order = {(one.name, self.label(one), one.members): place for place, one in enumerate(self.detectors)}
        places = [(order.get((row.detector, row.network, row.members)), row) for row in latest(rows.read())]
        own = [(place, row) for place, row in places if place is not None and row.seed in self.seeds]
        return [row for _, row in sorted(own, key=itemgetter(0))]

    def _try_out(self, info: DataInfo, held_out: int) -> None:
        """Puts every detector around an untrained network and shows it noise.

        So wrong options, and too few held-out samples, are found before anything is trained. What noise can be blamed
        for, such as too few training samples, is left to the real data.
        """
        inputs = torch.randn(_TRIAL, *info.shape, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(_TRIAL) % info.num_classes
        models = {name: self.spec(name, 0).make_model(info) for name in self.networks}
        for contender in self.detectors:
            model = models[contender.network]
            try:
                with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                    detector = contender.make([model] * contender.members if contender.members > 1 else model)
                    detector.check_held_out(held_out, self.false_alarm_rate)
                    detector.fit([(inputs, labels)], progress=False).evidence(inputs)
            except TypeError as error:
                raise InputError(f"{contender.name} cannot be made of these options: {error}.") from error
            except Exception as error:
                if isinstance(error, DDUError) and not isinstance(error, FeatureError | LabelError):
                    raise

    def _write_down(self, folder: Path) -> None:
        """Keeps the comparison in its folder; one that contradicts what is there is refused."""
        path, here = folder / COMPARISON, self.to_json()
        there = read_settings(path, "comparison")
        if there is not None:
            refuse_changes(f"The comparison in {folder}", _common(there, here), _common(here, there))
            here = _union(there, here)  # what was measured once may not change, even if it is left out for a while
        if there != here:
            write_json(path, here)


def _union(there: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """A comparison with the networks and detectors that it had before."""
    names = {(one["name"], one["network"]) for one in here["detectors"]}
    dropped = [one for one in there["detectors"] if (one["name"], one["network"]) not in names]
    return {**here, "networks": there["networks"] | here["networks"], "detectors": [*here["detectors"], *dropped]}


def _common(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What may not change: everything but what the other comparison does not have, or has more of."""
    own, others = ({(e["name"], e["network"]): e for e in c["detectors"]} for c in (one, other))
    return {
        **{name: value for name, value in one.items() if name not in ("ood", "seeds")},
        "networks": {name: network for name, network in one["networks"].items() if name in other["networks"]},
        "detectors": {" on ".join(key): entry for key, entry in own.items() if key in others},
    }
