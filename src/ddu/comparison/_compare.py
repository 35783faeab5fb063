"""The comparison: whatever is missing is trained and measured.

comparison.json   what is compared
networks/         a run for each network, seed and member
rows.csv          the results
scores/           what each detector says of each input
"""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch

from ddu import data
from ddu.comparison._config import Comparison, Entry
from ddu.comparison._networks import Members, Sets, TrainedNetwork, by_name
from ddu.comparison._ood import load_ood
from ddu.comparison._record import ROWS, SCORES, Recorder, Subject
from ddu.comparison._training import Job, Say, train_networks
from ddu.data import DataInfo
from ddu.errors import DDUError, FeatureError, InputError, LabelError
from ddu.evaluation import Row, RowFile, latest
from ddu.files import holds_files, write_json
from ddu.runs import differences, input_options, load_run
from ddu.training import check_writable

CONFIG, NETWORKS = "comparison.json", "networks"

# Inputs that detectors are tried out on
_TRIAL = 16


def compare(
    comparison: Comparison,
    output: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    workers: int = 1,
    command: str = "",
    progress: bool | None = None,
    say: Say = lambda words: None,
) -> list[Row]:
    """Trains the networks of a comparison and measures its detectors, as far as that has not been done yet.

    One that was interrupted, or killed, goes on where it was. Detectors, OoD sets and seeds may be added to it. What
    fails is a row that says so, and is tried again the next time.

    Args:
        comparison: What to compare.
        output: The folder: a new or empty one, or that of the same comparison.
        data_root: Where the data is; see `ddu.data.load`.
        workers: Networks that are trained at the same time. More than one slow each other down, which the training
            times then include.
        command: What to write down as the command that gives the rows again.
        progress: As in `ddu.training.fit`.
        say: Is told what is being done.

    Returns:
        The rows of the comparison, one a key.
    """
    folder = Path(output)
    ood = load_ood(comparison.ood, comparison.data, data_root)
    _try_out(comparison, data.info(comparison.data, root=data_root))
    _write_down(comparison, folder)
    recorder = Recorder(
        RowFile(folder / ROWS), folder / SCORES, comparison.ood, comparison.false_alarm_rate, command=command
    )
    missing = [
        (seed, entry)
        for seed in comparison.seeds
        for entry in comparison.detectors
        if not recorder.is_done(_subject(comparison, entry, seed))
    ]
    jobs = {job.folder: job for seed, entry in missing for job in _jobs(comparison, entry, seed, folder)}
    failures = train_networks(
        list(jobs.values()), workers=workers, say=say, progress=progress, data_root=data_root, command=command
    )
    shelf = _Shelf(ood, data_root)
    for seed, entry in missing:
        whose = _subject(comparison, entry, seed)
        needed = [job.folder for job in _jobs(comparison, entry, seed, folder)]
        error = next((failures[one] for one in needed if one in failures), None)
        if error is not None:
            failed = recorder.record_failures(whose, {None: error})
        else:
            say(f"Measure {entry.name} on {whose.network}, seed {seed}")
            failed = recorder.record(whose, shelf.take(needed, seed), entry.make)
        for row in failed:
            say(f"Failed: {row.run}: {row.error}")
    return latest(recorder.rows.read())


def _subject(comparison: Comparison, entry: Entry, seed: int) -> Subject:
    """Whose rows those of a detector are."""
    run = comparison.run_config(entry.network, seed).fingerprint
    return Subject(entry.name, comparison.label(entry), comparison.data, seed, entry.members, run)


class _Shelf:
    """Trained networks of one seed at a time, each loaded once."""

    def __init__(self, ood: Sets, data_root: str | os.PathLike[str] | None):
        self._ood, self._data_root = ood, data_root
        self._seed: int | None = None

    def take(self, folders: list[Path], seed: int) -> TrainedNetwork | Members:
        """The network in a folder, or the members in several."""
        if seed != self._seed:
            self._seed, self._networks = seed, dict[Path, TrainedNetwork]()
            # The split is that of the seed, and the same for all networks
            self._sets = by_name(load_run(folders[0]).load_data(root=self._data_root), self._ood)
        for folder in folders:
            if folder not in self._networks:
                self._networks[folder] = TrainedNetwork(load_run(folder), self._sets)
        found = [self._networks[folder] for folder in folders]
        return Members(found) if len(found) > 1 else found[0]


def _try_out(comparison: Comparison, info: DataInfo) -> None:
    """Puts every detector around an untrained network and shows it noise.

    So what is wrong with its options is said before anything is trained. What noise can be blamed for, such as too few
    samples, is left to the real data.
    """
    inputs = torch.randn(_TRIAL, *info.shape, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(_TRIAL) % info.num_classes
    models = {name: comparison.run_config(name, 0).make_model(input_options(info)) for name in comparison.networks}
    for entry in comparison.detectors:
        model = models[entry.network]
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                detector = entry.make([model] * entry.members if entry.members > 1 else model)
                detector.fit([(inputs, labels)], progress=False).evidence(inputs)
        except TypeError as error:
            raise InputError(f"{entry.name} cannot be made of these options: {error}.") from error
        except Exception as error:
            if isinstance(error, DDUError) and not isinstance(error, FeatureError | LabelError):
                raise


def _write_down(comparison: Comparison, folder: Path) -> None:
    """Keeps the comparison in its folder; one that contradicts what is there is refused."""
    check_writable(folder)
    path, here = folder / CONFIG, comparison.to_json()
    if path.is_file():
        there = json.loads(path.read_text())
        for name, was, now in differences(_common(there, here), _common(here, there)):
            raise InputError(
                f"The comparison in {folder} has {name}={was}, and this one {name}={now}: choose another folder."
            )
    elif holds_files(folder):
        raise InputError(f"{folder} holds files that are not a comparison's: choose another folder.")
    write_json(path, here)


def _common(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What may not change: everything but what the other comparison does not have, or has more of."""
    own, others = ({(e["name"], e["network"]): e for e in c["detectors"]} for c in (one, other))
    return {
        **{name: value for name, value in one.items() if name not in ("ood", "seeds")},
        "networks": {name: network for name, network in one["networks"].items() if name in other["networks"]},
        "detectors": {" on ".join(key): entry for key, entry in own.items() if key in others},
    }


def _jobs(comparison: Comparison, entry: Entry, seed: int, folder: Path) -> list[Job]:
    """The networks that a detector needs."""
    stem = f"{entry.network}-seed{seed}"
    names = [stem, *(f"{stem}-member{member}" for member in range(1, entry.members))]
    return [
        Job(folder / NETWORKS / name, comparison.run_config(entry.network, seed, member))
        for member, name in enumerate(names)
    ]
