"""A table of detectors on pretrained backbones with a new head: what can be said of ImageNet's networks on a CPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddu import data
from ddu.data.registry import Root
from ddu.detectors import find_method
from ddu.experiments.experiment import ROWS, Say, silent
from ddu.experiments.measure import SCORES, Recorder, Subject
from ddu.experiments.pretrained import HeadSpec, train_head
from ddu.experiments.reproduction import Work
from ddu.experiments.trained import TrainedNetwork, limited, load_ood
from ddu.experiments.training_pool import NETWORKS
from ddu.files import FilePath
from ddu.provenance import fingerprint
from ddu.results import Row, RowFile, latest
from ddu.resume import one_at_a_time
from ddu.runs import data_digest


@dataclass(frozen=True)
class PretrainedTable:
    """Detectors x OoD sets x seeds, on backbones with a new head.

    Attributes:
        data: The data of the new head.
        ood: The out-of-distribution sets.
        backbones: Names of `ddu.experiments.pretrained.BACKBONES`.
        detectors: Names of methods.
        limit: Use only so many training samples.
        inputs: Show at most so many inputs of the test set and of each OoD set.
        size: Pixels per side that images are scaled to.
        seeds: Every head is trained once per seed; it decides the samples.
        false_alarm_rate: The rate that detectors are calibrated for.
    """

    data: str
    ood: tuple[str, ...]
    backbones: tuple[str, ...]
    detectors: tuple[str, ...]
    limit: int
    inputs: int
    size: int = 128
    seeds: tuple[int, ...] = (0,)
    false_alarm_rate: float = 0.01

    def work(self) -> list[Work]:
        """The heads of one seed."""
        scored = self.limit + (1 + len(self.ood)) * self.inputs
        return [Work(self._spec(name, 0), self.limit, 1, self.ood, scored, shared=False) for name in self.backbones]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains and measures what is missing; see `Experiment.measure`."""
        folder = Path(folder)
        rows, ood = RowFile(folder / ROWS), load_ood(self.ood, self.data, data_root)
        recorder = Recorder(rows, folder / SCORES, self.ood, self.false_alarm_rate, command)
        digest = data_digest(*data.load_parts(self.data, root=data_root))
        with one_at_a_time(folder):
            for seed in self.seeds:
                for backbone in self.backbones:
                    self._measure_backbone(backbone, seed, folder, digest, ood, recorder, data_root, command, say)
        return [row for row in latest(rows.read()) if row.seed in self.seeds]

    def write_page(self, folder: FilePath) -> list[Path]:
        """No figures: the paper has a table."""
        return []

    def _measure_backbone(
        self,
        backbone: str,
        seed: int,
        folder: Path,
        digest: str,
        ood: Any,
        recorder: Recorder,
        data_root: Root,
        command: str,
        say: Say,
    ) -> None:
        spec, path = self._spec(backbone, seed), folder / NETWORKS / f"{backbone}-seed{seed}"
        run = fingerprint(spec.fingerprint(digest), self.inputs)
        makers = {Subject(one, spec.label, self.data, seed, run): find_method(one).make for one in self.detectors}
        if recorder.missing(makers):
            say(f"Seed {seed}: {spec.label}")
            head = train_head(spec, path, data_root=data_root, command=command)
            known = head.load_data(root=data_root)._asdict()
            sets = {name: limited(dataset, self.inputs) for name, dataset in {"test": known["test"], **ood}.items()}
            recorder.record(TrainedNetwork(head, {**known, **sets}), makers, say, reductions="pretrained backbone")

    def _spec(self, backbone: str, seed: int) -> HeadSpec:
        return HeadSpec(backbone, self.data, self.size, self.limit, seed=seed)
