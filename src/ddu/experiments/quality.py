"""The protocol that the default detector is chosen and judged by: pairs of a network and training data.

PAIR.csv      the rows of a pair
networks/     a run, or a new head on a pretrained backbone, for each pair and seed
scores/       what each detector says of each input
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ddu import data
from ddu.data import ArrayDataset, DataInfo
from ddu.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from ddu.data.registry import Root
from ddu.errors import DataError
from ddu.experiments.experiment import Say, silent
from ddu.experiments.measure import SCORES, Maker, Recorder, Subject, row_key
from ddu.experiments.pretrained import HeadSpec, TrainedHead, train_head
from ddu.experiments.quality_page import QualityPage
from ddu.experiments.quality_pairs import DEFAULT, OURS, PAIRS, UNCORRUPTED, Candidate, Pair, theirs
from ddu.experiments.trained import TrainedNetwork, expand, limited
from ddu.experiments.training_pool import Job, train_networks
from ddu.files import FilePath, write_bytes
from ddu.messages import check_name
from ddu.provenance import fingerprint
from ddu.report import as_png
from ddu.results import Row, RowFile, RowKey, latest, source
from ddu.resume import one_at_a_time
from ddu.runs import Run, RunSpec, data_digest, load_run

_IN_METRICS = ("accuracy", "false_alarm_rate")
_OOD_METRICS = ("auroc", "auroc_error", "fpr95", "fpr95_error", "detection_rate")
_CORRUPTED = (DEFAULT, "softmax", "energy")


@dataclass(frozen=True)
class Quality:
    """Detectors on pairs of a network and training data.

    Attributes:
        pairs: The pairs.
        candidates: The detectors; None for `OURS` and those of `theirs`.
        false_alarm_rate: The rate that detectors are calibrated for.
    """

    pairs: tuple[Pair, ...] = PAIRS
    candidates: tuple[Candidate, ...] | None = None
    false_alarm_rate: float = 0.01

    @property
    def detectors(self) -> tuple[Candidate, ...]:
        """The detectors that are measured."""
        return (*OURS, *theirs()[0]) if self.candidates is None else self.candidates

    def only(self, names: Collection[str]) -> "Quality":
        """The protocol with some of its pairs; all if none is named."""
        for name in names:
            check_name(name, [pair.name for pair in self.pairs], "There is no pair {name!r}")
        return replace(self, pairs=tuple(pair for pair in self.pairs if not names or pair.name in names))

    def train(
        self,
        folder: FilePath,
        *,
        data_root: Root = None,
        workers: int = 1,
        command: str = "",
        progress: bool | None = None,
        say: Say = silent,
    ) -> dict[Path, Exception]:
        """Trains the networks that are not trained yet; an interrupted training is resumed.

        Args:
            folder: Where everything is kept.
            data_root: Where the data is; see `ddu.data.load`.
            workers: Networks that are trained at the same time; heads are trained after them, one by one.
            command: The command to record.
            progress: As in `ddu.training.fit`.
            say: Is told what is being done.

        Returns:
            What went wrong, by the folder of the network.
        """
        wanted = [(pair.spec(seed), pair.folder(Path(folder), seed)) for pair in self.pairs for seed in pair.seeds]
        jobs = [Job(path, spec) for spec, path in wanted if isinstance(spec, RunSpec)]
        options = {"data_root": data_root, "command": command}
        failures = train_networks(jobs, workers=workers, say=say, progress=progress, **options)
        for spec, path in wanted:
            if isinstance(spec, HeadSpec):
                say(f"Train the head of {path.name}")
                try:
                    train_head(spec, path, **options)
                except Exception as error:
                    failures[path] = error
        for path, error in failures.items():
            say(f"Failed: {path.name}: {type(error).__name__}: {error}")
        return failures

    def measure(
        self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent, **options: Any
    ) -> list[Row]:
        """Trains, with the options of `train`, and measures what has no rows.

        Pairs whose training failed are left out until the next time.
        """
        folder = Path(folder)
        missing = self._unmeasured(folder, data_root)
        failures = missing.train(folder, data_root=data_root, command=command, say=say, **options)
        for pair in missing.pairs:
            with one_at_a_time(folder / SCORES / pair.name):
                for seed in pair.seeds:
                    if pair.folder(folder, seed) not in failures:
                        self._measure_network(pair, seed, folder, data_root, command, say)
        return self.rows(folder)

    def rows(self, folder: FilePath) -> list[Row]:
        """What has been measured of the pairs and the detectors, one row per key."""
        names = {candidate.name for candidate in self.detectors}
        found = [row for pair in self.pairs for row in RowFile(self._file(folder, pair)).read()]
        return latest(row for row in found if row.detector in names)

    def write_page(self, folder: FilePath, page: FilePath | None = None, *, command: str = "") -> list[Path]:
        """Writes the page of the rows in a folder; nothing is measured.

        Args:
            folder: Where the rows are.
            page: The file, with its figures in `images/` beside it; by default `page.md` in the folder.
            command: The command that gives the page again, to be printed in it.
        """
        path = Path(folder) / "page.md" if page is None else Path(page)
        left_out = theirs()[1] if self.candidates is None else {}
        content = QualityPage(self.pairs, self.detectors, self.rows(folder), left_out, self.false_alarm_rate)
        images = f"images/{path.stem}-"
        files = {path: content.to_markdown(command, images).encode()}
        files |= {path.parent / f"{images}{name}": as_png(figure) for name, figure in content.figures().items()}
        for file, written in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, written)
        return list(files)

    def forget(self, folder: FilePath, detectors: Collection[str]) -> None:
        """Drops the rows of some detectors, such as a default that was changed, so that they are measured again."""
        for name in detectors:
            check_name(name, [one.name for one in self.detectors], "There is no detector {name!r}")
        for pair in self.pairs:
            path = self._file(folder, pair)
            if path.is_file():
                shorter = path.with_name(f"{pair.name}.shorter.csv")
                RowFile(shorter).append(row for row in RowFile(path).read() if row.detector not in detectors)
                shorter.replace(path)

    def _unmeasured(self, folder: Path, data_root: Root) -> "Quality":
        """The protocol with the networks alone that lack rows."""
        digests = dict[str, str]()

        def lacks_rows(pair: Pair, seed: int) -> bool:
            if pair.data not in digests:
                digests[pair.data] = data_digest(*data.load_parts(pair.data, root=data_root))
            return self._plan(pair, seed, pair.spec(seed).fingerprint(digests[pair.data]), folder).lacks_rows

        def of(pair: Pair) -> Pair:
            try:
                return replace(pair, seeds=tuple(seed for seed in pair.seeds if lacks_rows(pair, seed)))
            except DataError:  # the training names it, and leaves the other pairs
                return pair

        return replace(self, pairs=tuple(pair for pair in map(of, self.pairs) if pair.seeds))

    def _plan(self, pair: Pair, seed: int, run: str, folder: Path, command: str = "") -> "_Plan":
        """What is measured of a network with this fingerprint."""
        rows, scores = RowFile(self._file(folder, pair)), folder / SCORES / pair.name
        # What predictions cost is measured by benchmarks, in turn with the plain network
        recorder = Recorder(
            rows, scores, list(pair.kinds), self.false_alarm_rate, command, _IN_METRICS, _OOD_METRICS, timed=False
        )
        subjects = (
            Subject(
                *(one.name, pair.spec(seed).label, pair.data, seed),
                fingerprint(run, pair.limit, one.method, one.options),
            )
            for one in self.detectors
        )
        return _Plan(recorder, dict(zip(subjects, (one.make for one in self.detectors), strict=True)), pair.corrupted)

    def _measure_network(
        self,
        pair: Pair,
        seed: int,
        folder: Path,
        data_root: Root,
        command: str,
        say: Say,
    ) -> None:
        trained = _load(pair, seed, folder, data_root)
        plan = self._plan(pair, seed, trained.fingerprint, folder, command)
        say(f"Measure {pair.name}, seed {seed}")
        info, known = data.info(pair.data, root=data_root), trained.load_data(root=data_root)._asdict()
        known["test"] = limited(known["test"], pair.limit)
        unknown = {name: limited(data.load_ood(name, info, root=data_root), pair.limit) for name in pair.kinds}
        plan.recorder.record(TrainedNetwork(trained, {**known, **unknown}), plan.makers, say)
        if pair.corrupted:
            clean = data.load(pair.data, "test", root=data_root).subset(range(pair.corrupted))
            network = TrainedNetwork(trained, {**known, UNCORRUPTED: clean, **_corruptions(clean, info)})
            plan.under_corruption.record(network, plan.shown_corruptions, say)
            # The same for all detectors, and kept with each
            shares = {name: _accuracy(network, name) for name in (UNCORRUPTED, *plan.under_corruption.ood)}
            facts: dict[str, Any] = source(command)
            plan.recorder.rows.append(
                Row(**asdict(key), value=shares[name], **facts) for key, name in plan.accuracies.items()
            )

    def _file(self, folder: FilePath, pair: Pair) -> Path:
        return Path(folder) / f"{pair.name}.csv"


@dataclass(frozen=True)
class _Plan:
    """What is measured of one network.

    Attributes:
        recorder: Of all detectors, on all OoD sets.
        makers: The detectors.
        corrupted: How many test images are shown under every corruption.
    """

    recorder: Recorder
    makers: Mapping[Subject, Maker]
    corrupted: int

    @property
    def under_corruption(self) -> Recorder:
        """The same for corrupted images."""
        return replace(self.recorder, ood=expand(["cifar10_c"]) if self.corrupted else ())

    @property
    def shown_corruptions(self) -> dict[Subject, Maker]:
        """The detectors that are shown corrupted images, if any are."""
        return {one: make for one, make in self.makers.items() if self.corrupted and one.detector in _CORRUPTED}

    @property
    def accuracies(self) -> dict[RowKey, str]:
        """The rows of the network's accuracy under corruptions, and the set of each."""
        sets = [UNCORRUPTED, *self.under_corruption.ood]
        return {row_key(one, name, "accuracy"): name for name in sets for one in self.shown_corruptions}

    @property
    def lacks_rows(self) -> bool:
        """Whether anything is missing."""
        return (
            bool(self.recorder.missing(self.makers) or self.under_corruption.missing(self.shown_corruptions))
            or self.recorder.rows.done(self.accuracies) < self.accuracies.keys()
        )


def _load(pair: Pair, seed: int, folder: Path, data_root: Root) -> Run | TrainedHead:
    """A network that has been trained."""
    spec, path = pair.spec(seed), pair.folder(folder, seed)
    return train_head(spec, path, data_root=data_root) if isinstance(spec, HeadSpec) else load_run(path)


def _corruptions(clean: ArrayDataset, info: DataInfo) -> dict[str, ArrayDataset]:
    """Test images under every corruption at every severity, by the names of CIFAR-10-C."""
    return {
        f"cifar10_c:{name}:{severity}": ArrayDataset(corrupt(clean.inputs, name, severity), clean.labels, info)
        for name in CORRUPTIONS
        for severity in SEVERITIES
    }


def _accuracy(network: TrainedNetwork, name: str) -> float:
    """How often the network is right about a set."""
    right = [batch.logits.argmax(1) == batch.labels for batch in network.logits(name)]
    return float(torch.cat(right).double().mean())
