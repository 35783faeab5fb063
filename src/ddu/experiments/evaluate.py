"""The evaluation of one run: the detectors that can be put around its network, on its test set and on OoD sets."""

from dataclasses import dataclass
from pathlib import Path

from ddu.data.registry import Root
from ddu.detectors import find_method, method_for_head
from ddu.errors import InputError
from ddu.experiments.detector_page import folder_of, write_report
from ddu.experiments.experiment import ROWS, Say, silent
from ddu.experiments.measure import SCORES, Recorder, Subject
from ddu.experiments.trained import TrainedNetwork, expand, load_ood
from ddu.files import FilePath
from ddu.results import Row, RowFile, latest
from ddu.resume import one_at_a_time
from ddu.runs import Run

# For a network that was trained for ddu or softmax
_DEFAULT = ("ddu", "softmax", "energy", "mahalanobis")


@dataclass(frozen=True)
class Evaluation:
    """Detectors around the network of a run.

    Attributes:
        run: The run.
        ood: The out-of-distribution sets by name; cifar10_c:fog stands for all severities of a corruption.
        detectors: Names of methods; by default that of the run or, if it is ddu or softmax, these and energy and
            mahalanobis.
        skip_bad: Leave out images of the OoD sets that cannot be read; for the data of the run its own setting counts.
    """

    run: Run
    ood: tuple[str, ...]
    detectors: tuple[str, ...] = ()
    skip_bad: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """The detectors that are measured."""
        own = self.run.spec.method or method_for_head(self.run.spec.head).name
        return tuple(dict.fromkeys(self.detectors or (_DEFAULT if own in ("ddu", "softmax") else (own,))))

    def measure(
        self,
        output: FilePath | None = None,
        *,
        data_root: Root = None,
        command: str = "",
        say: Say = silent,
    ) -> list[Row]:
        """Measures what is missing in the file of rows.

        Args:
            output: The file for rows, CSV or JSON lines; by default `rows.csv` in the folder of the run. Scores of each
                input go to the folder `scores` beside it or, of a file of another name, in a folder of that name.
            data_root: Where the data is; see `ddu.data.load`.
            command: The command to record with the rows.
            say: Is told what is being done.

        Returns:
            The rows of these detectors, one per key.
        """
        run, path = self.run, self.rows_file(output)
        model = run.load_model()
        for name in self.methods:
            method = find_method(name)
            if method.members > 1:
                raise InputError(f"{name} needs several networks, and a run has one: `ddu compare` trains them.")
            method.make(model)
        rows, ood = RowFile(path), expand(self.ood)
        unknown = load_ood(ood, run.spec.data, data_root, skip_bad=self.skip_bad)
        recorder = Recorder(rows, folder_of(path) / SCORES, ood, run.spec.false_alarm_rate, command)
        makers = {self._subject(name): find_method(name).make for name in self.methods}
        with one_at_a_time(run.folder):
            missing = recorder.missing(makers)
            if missing:
                say(f"Measure {', '.join(subject.detector for subject in missing)}")
                network = TrainedNetwork(run, {**run.load_data(root=data_root)._asdict(), **unknown})
                recorder.record(network, makers, say, reductions=run.reductions)
        return [row for row in latest(rows.read()) if self._has(row)]

    def write_page(self, output: FilePath | None = None) -> list[Path]:
        """Writes tables and figures of the rows of this run."""
        path = self.rows_file(output)
        return write_report(path, [row for row in latest(RowFile(path).read()) if self._has(row)])

    def rows_file(self, output: FilePath | None = None) -> Path:
        """The file for rows."""
        return self.run.folder / ROWS if output is None else Path(output)

    def _has(self, row: Row) -> bool:
        return (row.run, row.seed) == (self.run.fingerprint, self.run.spec.seed) and row.detector in self.methods

    def _subject(self, name: str) -> Subject:
        spec = self.run.spec
        return Subject(name, spec.label, spec.data, spec.seed, self.run.fingerprint)
