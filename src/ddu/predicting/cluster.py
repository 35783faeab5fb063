"""The same job on a cluster: shards of the inputs in, one Parquet file for each out, driven by Ray Data.

OUTPUT is a folder that pandas, pyarrow, Spark and DuckDB read as one table:

_job.json            what the rows are rows of
part-00000.parquet   the rows of a shard, written whole or not at all

A worker that is killed is replaced and its shard judged again; the same command resumes with the shards that have no
file yet. Since a shard is one file with a fixed name, no row is lost and none is doubled.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddu._version import __version__
from ddu.engines import RETRIES, RayTasks, connect_to_ray
from ddu.errors import DataError, DDUError, InputError
from ddu.files import FilePath
from ddu.messages import require
from ddu.predicting.inputs import Inputs
from ddu.predicting.job import predict_rows
from ddu.predicting.tables import write_rows
from ddu.progress import track
from ddu.resume import keep_settings, one_at_a_time
from ddu.sources import Source, open_source

JOB = "_job.json"  # readers of Parquet folders pass over names that begin so

_KEPT = "Finished shards are kept: the same command resumes."


@dataclass(frozen=True)
class _Job:
    """What every worker knows."""

    source: str
    detector: str | None
    false_alarm_rate: float | None
    classes: tuple[str, ...]
    output: Path
    working_folder: str
    batch_size: int
    threads: int


def predict_to_folder(
    source: Source,
    inputs: Inputs,
    output: FilePath,
    *,
    detector: FilePath | None = None,
    shard_rows: int = 10_000,
    batch_size: int = 64,
    workers: int | None = None,
    probabilities: bool = False,
    engine: RayTasks | None = None,
    progress: bool | None = None,
) -> Counter[str]:
    """Judges inputs with the workers of a Ray cluster; the same call resumes a job that was stopped, however that was.

    Every worker opens the source by its name and reads the inputs itself, so that both, and the output, lie on a disk
    that all hosts have under the same name.

    Args:
        source: What judges them, as `open_source` gave it.
        inputs: What to judge.
        output: A folder, new or that of the same job.
        detector: As of `open_source`, for a network that is named as `module:function`.
        shard_rows: Rows per file of the output, where a file of the inputs can be divided: image files and `.npy`
            arrays. A table or `.npz` file is one shard.
        batch_size: As of `predict_rows`.
        workers: Threads that decode images, for each worker.
        probabilities: As of `predict_rows`; the source must know the names of its classes.
        engine: The cores and graphics cards of each worker.
        progress: `True` shows a bar, `False` none, None if it takes long.

    Returns:
        How many inputs have each verdict, those of earlier calls included.
    """
    engine = engine or RayTasks()
    if probabilities and source.class_names is None:
        raise InputError("Probabilities become columns, and the classes have no names: judge without them.")
    folder = Path(output).absolute()
    shards = inputs.shards(shard_rows)
    job = _Job(
        source.name,
        None if detector is None else str(detector),
        source.false_alarm_rate,
        source.class_names or () if probabilities else (),
        folder,
        os.getcwd(),
        batch_size,
        workers or int(max(1, engine.cpus)),
    )
    with one_at_a_time(folder):
        settings = {
            "source": source.fingerprint,
            "false_alarm_rate": source.false_alarm_rate,
            "inputs": inputs.digest(),
            "shard_rows": shard_rows,
            "probabilities": probabilities,
            "ddu": __version__,
        }
        keep_settings(folder / JOB, "job", settings)
        for number in range(len(shards)):
            _tries(folder, number).unlink(missing_ok=True)
        missing = [(number, shard) for number, shard in enumerate(shards) if not _file(folder, number).is_file()]
        for row in track(_Judged(job, missing, engine), "shards", show=progress):
            if row["problem"]:
                raise DDUError(f"Shard {row['number']} of {len(shards)} failed: {row['problem']} {_KEPT}")
        return _counted([_file(folder, number) for number in range(len(shards))])


class _Judged:
    """The shards that are missing, as they are judged; it knows how many there are."""

    def __init__(self, job: _Job, missing: list[tuple[int, Inputs]], engine: RayTasks):
        self.job, self.missing, self.engine = job, missing, engine

    def __length_hint__(self) -> int:
        return len(self.missing)

    def __iter__(self) -> Iterator[Any]:
        if not self.missing:
            return
        ray = connect_to_ray()
        from ray.data import ActorPoolStrategy, DataContext

        DataContext.get_current().enable_progress_bars = False
        items = [{"number": number, "shard": shard} for number, shard in self.missing]
        most = max(1, min(len(items), self.engine.slots()))
        judged = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _Judge,
            fn_constructor_args=(self.job,),
            batch_size=1,
            compute=ActorPoolStrategy(min_size=1, max_size=most),
            num_cpus=self.engine.cpus,
            num_gpus=self.engine.gpus,
        )
        try:
            yield from judged.iter_rows()
        except ray.exceptions.RayError as error:
            raise DDUError(f"A worker failed: {str(error).strip().splitlines()[-1]} {_KEPT}") from error


class _Judge:
    """A worker: opens the source once, and judges shard after shard."""

    def __init__(self, job: _Job):
        os.chdir(job.working_folder)  # names are as the command was given them
        self.job = job
        self.source = open_source(job.source, detector=job.detector)
        if job.false_alarm_rate is not None:
            self.source.set_false_alarm_rate(job.false_alarm_rate)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Judges shards; what goes wrong comes back as words, which Ray Data would not keep of an error."""
        problems = [self._problem(*one) for one in zip(batch["number"], batch["shard"], strict=True)]
        return {"number": batch["number"], "problem": problems}

    def _problem(self, number: int, shard: Inputs) -> str:
        """Why a shard cannot be judged; empty if it was."""
        job, tries = self.job, _count_try(self.job.output, number)
        if tries > RETRIES + 1:
            return f"it has killed its worker {tries - 1} times. Is there memory for it?"
        options: dict[str, Any] = {"batch_size": job.batch_size, "workers": job.threads}
        try:
            found = predict_rows(self.source, shard, probabilities=bool(job.classes), **options)
            write_rows(_file(job.output, number), (row for rows in found for row in rows), job.classes)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        _tries(job.output, number).unlink()
        return ""


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}.parquet"


def _tries(folder: Path, number: int) -> Path:
    return folder / f".part-{number:05}.tries"


def _count_try(folder: Path, number: int) -> int:
    """How often a shard has been begun. Ray Data would begin one that kills every worker again and again."""
    with _tries(folder, number).open("ab") as file:
        file.write(b".")
        return file.tell()


def _counted(files: list[Path]) -> Counter[str]:
    parquet = require("pyarrow.parquet", extra="ray", purpose="--engine ray")
    counts = Counter[str]()
    for file in files:
        try:
            counts.update(parquet.read_table(file, columns=["verdict"])["verdict"].to_pylist())
        except (OSError, ValueError) as error:
            raise DataError(f"{file} is damaged ({error}): delete it, and start the same command again.") from error
    return counts
