"""What a reproduction is: a table or figure of the paper as an experiment at three scales, and how its claim is judged.

`ddu.experiments.reproductions` has them all, by name.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

from ddu import data
from ddu.data.registry import Root
from ddu.errors import NotMeasuredError
from ddu.experiments.experiment import ROWS, Experiment, Say, silent
from ddu.experiments.pretrained import HeadSpec
from ddu.experiments.smaller import stand_ins, summarise_reductions
from ddu.experiments.trained import split_severity
from ddu.files import FilePath, write_bytes
from ddu.provenance import fingerprint
from ddu.results import Row, RowFile, Table, latest, tabulate
from ddu.runs import RunSpec
from ddu.runs.spec import PAPER_SETUPS

T = TypeVar("T")

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[Scale, ...] = ("paper", "cpu", "smoke")
"""`paper` is the paper's set-up, `cpu` takes smaller networks and less data, `smoke` shows that the code runs."""

JUDGED: tuple[Scale, ...] = ("paper", "cpu")
"""The scales whose rows say something about the paper's claims."""
NOT_JUDGED = "This scale only shows that the code runs: the claim is not judged."

PAGE, FIGURES = "page.md", ".png"

_THROUGHPUT = Path(__file__).with_name("throughput.json")


# What a forward pass costs, as a share of a training step on the same inputs
_FORWARD = 1 / 3


class Work(NamedTuple):
    """Networks of one kind to be trained for a seed.

    Attributes:
        spec: How one of them is trained; of a pretrained backbone only the head is.
        samples: What it is trained on.
        networks: How many there are, per seed.
        ood: The sets that they are tested against.
        scored: The inputs that each of them is shown afterwards.
        side: The side that images are scaled to; None leaves them as they are.
        shared: Whether other experiments find these networks, see `network_job`.
    """

    spec: RunSpec | HeadSpec
    samples: int
    networks: int = 1
    ood: tuple[str, ...] = ()
    scored: int = 0
    side: int | None = None
    shared: bool = True

    @property
    def epochs(self) -> int:
        """Passes over the samples; one extracts the features for a head."""
        return 1 if isinstance(self.spec, HeadSpec) else self.spec.recipe.epochs

    @property
    def against(self) -> tuple[str, ...]:
        """The sets that they are tested against, once each; all corruptions of one set are one."""
        return tuple(dict.fromkeys(name.partition(":")[0] if split_severity(name)[1] else name for name in self.ood))

    @property
    def key(self) -> tuple[str, str]:
        """Where its throughput stands in throughput.json: the data, and the network."""
        pixels = "" if self.side is None else f", {self.side} pixels"
        head = "linear" if isinstance(self.spec, HeadSpec) else self.spec.head
        return f"{self.spec.data}{pixels}", self.spec.label if head == "linear" else f"{self.spec.label}, {head}"

    @property
    def hours(self) -> float | None:
        """How long one CPU core takes per seed, by the throughput that was measured; None where it was not.

        The recipe's held-out share is not trained on.
        """
        of_data, network = self.key
        speed = throughput().get(of_data, {}).get(network)
        if speed is None:
            return None
        if isinstance(self.spec, HeadSpec):
            seen = self.samples + self.scored
        else:
            recipe = self.spec.recipe
            per_epoch = recipe.samples_per_epoch or self.samples * (1 - recipe.validation_share)
            seen = recipe.epochs * per_epoch + _FORWARD * self.scored
        return seen * self.networks / speed / 3600


@cache
def throughput() -> dict[str, dict[str, float]]:
    """Samples per second in training on one CPU core, by data and network: `python scripts/throughput.py`."""
    return json.loads(_THROUGHPUT.read_text(encoding="utf-8"))["samples_per_second"]


class Reproducible(Experiment, Protocol):
    """An experiment that says what it would train, and is repeated with seeds."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        ...

    def work(self) -> list[Work]:
        """The networks of one seed."""
        ...


class Judgement(NamedTuple):
    """Whether a claim of the paper holds, and the numbers that say so.

    Attributes:
        parts: The parts of the claim, each in words, what was measured before what is asked, and whether it holds.
        missing: What has not been measured, so that the claim cannot be judged.

    >>> Judgement.of({"a 3, b 2; asked: a above b": True, "c 1, d 2; asked: c above d": False}).words
    'a 3, b 2; asked: a above b: yes. c 1, d 2; asked: c above d: no.'
    """

    parts: Mapping[str, bool]
    missing: str = ""

    @classmethod
    def of(cls, parts: Mapping[str, bool]) -> Self:
        """The judgement of a claim by its parts."""
        return cls(parts)

    @property
    def verdict(self) -> Literal["holds", "holds in part", "does not hold", "cannot be judged yet"]:
        """Of all parts together."""
        if self.missing:
            return "cannot be judged yet"
        held = sum(self.parts.values())
        return "holds" if held == len(self.parts) else "holds in part" if held else "does not hold"

    @property
    def tally(self) -> str:
        """The verdict, with how many parts hold where only some do."""
        some = f": {sum(self.parts.values())} of {len(self.parts)} parts"
        return self.verdict + some * (self.verdict == "holds in part")

    @property
    def words(self) -> str:
        """The parts in one line, or what is missing."""
        answers = (f"{words}: {'yes' if part else 'no'}." for words, part in self.parts.items())
        return self.missing or " ".join(answers)

    def to_markdown(self) -> str:
        """The parts as a list, or what is missing."""
        answers = (f"- {'yes' if part else '**no**'}: {words}." for words, part in self.parts.items())
        return self.missing or "\n".join(answers)


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper.

    Attributes:
        name: As the command line knows it.
        shows: What of the paper.
        claim: What the paper says about it.
        judged_by: How the claim is put to the test.
        judge: Does so, with the rows.
        scales: The experiment at each scale.
        note: What differs from the paper, and what else a reader should know.
        seen: What the rows at the scale `cpu` say beyond the verdict, and the likely reason where the claim fails.
        tables: The tables of the page, from the rows.
        beside: The paper's architecture whose figures stand beside those of a smaller one of ours, by the name of ours.
    """

    name: str
    shows: str
    claim: str
    judged_by: str
    judge: Callable[[Sequence[Row]], Judgement]
    scales: Mapping[Scale, Reproducible]
    note: str = ""
    seen: str = ""
    tables: Callable[[Sequence[Row]], Sequence[Table]] = tabulate
    beside: Mapping[str, str] = field(default_factory=dict)

    def experiment(self, scale: Scale, seeds: int | None = None) -> Any:
        """The experiment at a scale, with seeds 0, 1, ..., or those of the registry."""
        found = self.scales[scale]
        return found if seeds is None else with_seeds(found, tuple(range(seeds)))

    def make_tables(self, rows: Sequence[Row]) -> list[Table]:
        """The tables of the page, with the paper's figures."""
        return [table.beside(self.beside) for table in self.tables(rows)]

    def judgement(self, rows: Sequence[Row]) -> Judgement:
        """Whether the claim holds; where rows that decide it are missing, or failed, it says which."""
        try:
            return self.judge(rows)
        except NotMeasuredError as error:
            return Judgement({}, f"{error}")

    def smaller(self, scale: Scale, rows: Sequence[Row]) -> str:
        """How the rows are smaller than the paper's, and what stands in for its networks and data; "" if nothing is."""
        works = [self.scales[one].work() for one in (scale, "paper")]
        words = [*stand_ins(*works), *summarise_reductions(row.reductions for row in rows if row.reductions)]
        return f"Smaller than the paper's: {'; '.join(words)}." if words else ""

    def write_page(self, scale: Scale, folder: FilePath) -> list[Path]:
        """Writes the figures and page.md from the rows in a folder; nothing is measured."""
        folder = Path(folder)
        parts = read_parts(folder)
        written = self.experiment(scale, max(map(count_seeds, parts.values()), default=0)).write_page(folder)
        figures = [path.relative_to(folder) for path in written]
        write_bytes(folder / PAGE, self.page(scale, parts, figures).encode())
        return [folder / PAGE, *written]

    def page(
        self, scale: Scale, parts: Mapping[str, Sequence[Row]], files: Sequence[Path], to: str = "", level: int = 1
    ) -> str:
        """The claim, the verdict, the tables with the paper's numbers and the figures, in Markdown.

        Args:
            scale: The scale of the rows.
            parts: What was measured, as of `read_parts`.
            files: What lies in the folder of the rows, as seen from there; pictures are shown.
            to: The way from the page to that folder, if the page lies elsewhere.
            level: Of the heading.
        """
        rows = [row for part in parts.values() for row in part]
        smaller = self.smaller(scale, rows)
        blocks = [
            f"{level * '#'} {self.name}: {self.shows}",
            f"**The paper's claim:** {self.claim}",
            *(self._verdict(scale, rows) if scale in JUDGED else [f"**{NOT_JUDGED}**"]),
            *([smaller] if smaller else []),
            *([self.note] if self.note else []),
            *([f"Seen at this scale: {self.seen}"] if self.seen and scale == "cpu" else []),
            *(table.to_markdown().strip() for table in self.make_tables(rows)),
            *(f"![{self.name}: {path.stem}]({to}{path.as_posix()})" for path in files if path.suffix == FIGURES),
            self._sources(scale, parts, to),
        ]
        return "\n\n".join(blocks) + "\n"

    def _sources(self, scale: Scale, parts: Mapping[str, Sequence[Row]], to: str) -> str:
        """The files of rows, and the command that measured them."""
        seeds = {f"`{to}{Path(name, ROWS).as_posix()}`": count_seeds(rows) for name, rows in parts.items()}
        command = f"ddu reproduce {self.name} --scale {scale} --seeds"
        if len(set(seeds.values())) == 1:
            return f"Rows: {', '.join(seeds)}, measured by `{command} {max(seeds.values())}`."
        told = (f"{file} ({count} seed{'s' * (count > 1)})" for file, count in seeds.items())
        return f"Rows: {', '.join(told)}, measured by `{command} N` with as many seeds."

    def _verdict(self, scale: Scale, rows: Sequence[Row]) -> list[str]:
        """Whether the claim holds, its parts, and how it is judged, in Markdown."""
        judgement = self.judgement(rows)
        return [
            f"**At the scale `{scale}` it {judgement.tally}.**",
            judgement.to_markdown(),
            f"How it is judged: {self.judged_by}",
        ]


@dataclass(frozen=True)
class Together:
    """Several experiments that are one reproduction.

    Attributes:
        parts: The experiments, and the folder of each in that of all; "" is that folder itself, and comes first.
        seeds: Of all of them.
    """

    parts: Mapping[str, Reproducible]
    seeds: tuple[int, ...] = (0,)

    def work(self) -> list[Work]:
        """The networks of one seed."""
        return [work for part in self._parts().values() for work in part.work()]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Measures one part after the other; see `Experiment.measure`."""
        options: dict[str, Any] = {"data_root": data_root, "command": command, "say": say}
        measured = [part.measure(Path(folder, name), **options) for name, part in self._parts().items()]
        return [row for rows in measured for row in rows]

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes the figures of the parts that have rows."""
        parts = {Path(folder, name): part for name, part in self._parts().items()}
        return [path for own, part in parts.items() if (own / ROWS).is_file() for path in part.write_page(own)]

    def _parts(self) -> dict[str, Reproducible]:
        return {name: with_seeds(part, self.seeds) for name, part in self.parts.items()}


def with_seeds(experiment: Any, seeds: tuple[int, ...]) -> Any:
    """The same experiment with other seeds."""
    return replace(experiment, seeds=seeds)


def read_parts(folder: FilePath) -> dict[str, list[Row]]:
    """The rows of a reproduction, one per key: those in its folder, as the part "", and those in folders below."""
    folder = Path(folder)
    files = [path for path in (folder / ROWS, *sorted(folder.glob(f"*/{ROWS}"))) if path.is_file()]
    parts = {path.parent.name if path.parent != folder else "": latest(RowFile(path).read()) for path in files}
    return {name: rows for name, rows in parts.items() if rows}


def read_rows(folder: FilePath) -> list[Row]:
    """The rows of all parts of a reproduction."""
    return [row for rows in read_parts(folder).values() for row in rows]


def count_seeds(rows: Iterable[Row]) -> int:
    """How many seeds have rows."""
    return len({row.seed for row in rows})


def training_samples(name: str, limit: int | None = None) -> int:
    """How many samples there are to train on, or as many of them as the limit allows; the paper's sets are not read."""
    paper = PAPER_SETUPS.get(name)
    whole = len(data.load(name)) if paper is None else paper.samples
    return min(limit or whole, whole)


def mean_value(rows: Sequence[Row], metric: str, **key: Any) -> float:
    """The mean over all seeds of one measured value.

    Args:
        rows: What was measured.
        metric: What to look for.
        **key: Attributes of its rows, such as `detector` and `ood`.
    """
    found = [
        row.value
        for row in rows
        if row.metric == metric and row.value is not None and all(getattr(row, a) == b for a, b in key.items())
    ]
    if not found:
        of = ", ".join(f"{name}={value}" for name, value in key.items())
        raise NotMeasuredError(f"No row has {metric}{' of ' * bool(of)}{of}.")
    return sum(found) / len(found)


def only_one(found: Iterable[T], what: str) -> T:
    """What a judgement needs; it may not have been measured yet.

    Args:
        found: What there is.
        what: It, in words.
    """
    items = list(found)
    if len(items) != 1:
        raise NotMeasuredError(f"The rows should have one {what}. They have {len(items)}.")
    return items[0]


def count_new(work: Work, seeds: int, planned: dict[str, tuple[int, int]]) -> int:
    """How many networks have to be trained for all seeds, where those of earlier work are shared.

    Args:
        work: The networks of one seed.
        seeds: How many seeds there are.
        planned: The networks per seed, and the seeds, of earlier work of each kind; this work is added.
    """
    if not work.shared:
        return work.networks * seeds
    kind = fingerprint(asdict(work.spec))
    networks, before = planned.get(kind, (0, 0))
    planned[kind] = max(networks, work.networks), max(before, seeds)
    return work.networks * seeds - min(networks, work.networks) * min(before, seeds)


class Planned(NamedTuple):
    """Networks that are trained alike, as a plan shows them.

    Attributes:
        network: What they are called.
        data: What they are trained on.
        against: As of `Work`.
        samples: What each is trained on, at most.
        epochs: Passes over the samples.
        networks: How many there are per seed.
        new: How many have to be trained for all seeds; the others were planned before.
        hours: How long one CPU core takes for the new ones; None where it was not measured.
    """

    network: str
    data: str
    against: tuple[str, ...]
    samples: int
    epochs: int
    networks: int
    new: int
    hours: float | None


def plan(experiment: Reproducible, planned: dict[str, tuple[int, int]]) -> list[Planned]:
    """What an experiment trains; networks that are called and trained alike are one entry.

    Args:
        experiment: The experiment.
        planned: As for `count_new`.
    """
    found = dict[tuple[Any, ...], Planned]()
    for work in experiment.work():
        new = count_new(work, len(experiment.seeds), planned)
        hours = None if work.hours is None else new * work.hours / work.networks
        one = Planned(work.key[1], work.spec.data, work.against, work.samples, work.epochs, work.networks, new, hours)
        before = found.get(one[:5], one._replace(networks=0, new=0, hours=0.0))
        found[one[:5]] = one._replace(
            networks=before.networks + one.networks,
            new=before.new + one.new,
            hours=None if before.hours is None or hours is None else before.hours + hours,
        )
    return list(found.values())
