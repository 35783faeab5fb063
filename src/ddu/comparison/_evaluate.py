"""One run, and the detectors that can be put around its network."""

import os
from collections.abc import Sequence
from pathlib import Path

from ddu.comparison._catalogue import find_kind
from ddu.comparison._config import Entry, network_label
from ddu.comparison._networks import TrainedNetwork, by_name
from ddu.comparison._ood import expand, load_ood
from ddu.comparison._record import ROWS, SCORES, Recorder, Subject, folder_of
from ddu.comparison._training import Say
from ddu.errors import InputError
from ddu.evaluation import Row, RowFile, latest
from ddu.runs import Run, make_detector

# What is asked of any network with a linear head
_DEFAULT = ("ddu", "softmax", "energy", "mahalanobis")


def evaluate(
    run: Run,
    ood: Sequence[str],
    detectors: Sequence[str] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    skip_bad: bool = False,
    command: str = "",
    say: Say = lambda words: None,
) -> list[Row]:
    """Puts detectors around the network of a run, and measures them on its test set and on OoD sets.

    Rows that are in the file already are not measured again.

    Args:
        run: The run.
        ood: The out-of-distribution sets, by name; as in `Comparison`, cifar10_c:fog stands for its severities.
        detectors: Names of `KINDS`, or of pytorch-ood; by default ddu, softmax, energy and mahalanobis or, of a network
            that was trained for another detector, that one.
        output: The file for rows, CSV or JSON lines; by default `rows.csv` in the folder of the run. What detectors say
            of each input goes to the folder `scores` beside it or, of a file of another name, in a folder of that name.
        data_root: Where the data is; see `ddu.data.load`.
        skip_bad: Leave out images of the OoD sets that cannot be read; for the data of the run its own setting counts.
        command: What to write down as the command that gives the rows again.
        say: Is told what is being done.

    Returns:
        The rows of these detectors, one a key.
    """
    model = run.load_model()
    own = make_detector(model).name
    names = detectors or (_DEFAULT if own == "ddu" else (own,))
    for name in names:
        if find_kind(name).members > 1:
            raise InputError(f"{name} needs several networks, and a run has one: `ddu compare` trains them.")
    entries = [Entry.parse(name) for name in dict.fromkeys(names)]
    for entry in entries:
        entry.make(model)
    path, config, ood = rows_file(run, output), run.config, expand(ood)
    recorder = Recorder(RowFile(path), folder_of(path) / SCORES, ood, config.false_alarm_rate, command=command)
    label = network_label(config)
    subjects = [Subject(entry.name, label, config.data, config.seed, run=config.fingerprint) for entry in entries]
    for whose in subjects:
        recorder.check_run(whose)
    unknown = load_ood(ood, config.data, data_root, skip_bad=skip_bad)
    network = TrainedNetwork(run, by_name(run.load_data(root=data_root), unknown))
    for entry, whose in zip(entries, subjects, strict=True):
        if not recorder.is_done(whose):
            say(f"Measure {entry.name}")
            for row in recorder.record(whose, network, entry.make):
                say(f"Failed: {row.run}: {row.error}")
    asked = {(entry.name, label, config.data) for entry in entries}
    return [row for row in latest(recorder.rows.read()) if (row.detector, row.network, row.data) in asked]


def rows_file(run: Run, output: str | os.PathLike[str] | None = None) -> Path:
    """Where the rows of a run go."""
    return run.folder / ROWS if output is None else Path(output)
