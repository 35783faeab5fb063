"""A corrupted copy of a whole set on disk, in the layout of CIFAR-10-C: in chunks, over several processes."""

import hashlib
import io
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ddu._version import __version__
from ddu.data.corruptions.catalogue import (
    CORRUPTIONS,
    SEVERITIES,
    Corruption,
    check_seed,
    check_set,
    check_severity,
    corrupt,
    find_corruption,
)
from ddu.errors import InputError, LabelError
from ddu.files import FilePath, whole_file, write_json
from ddu.messages import require
from ddu.progress import track
from ddu.resume import one_at_a_time, refuse_changes

T = TypeVar("T")

CHUNK = 500  # images in one piece of work

FORMAT = "ddu-corruptions"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LABELS = "labels.npy"


class Step(NamedTuple):
    """One chunk under one corruption at one severity."""

    name: str
    severity: int
    start: int  # index of the chunk's first image


def checked_workers(workers: int | None) -> int:
    """How many processes to work with; by default one for each core."""
    if workers is None:
        return os.cpu_count() or 1
    if workers < 1:
        raise InputError(f"The number of workers must be at least 1. Got {workers}.")
    return workers


def over_chunks(
    function: Callable[[np.ndarray, Step, int], T],
    images: np.ndarray,
    names: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int,
    workers: int,
    description: str,
    progress: bool | None,
) -> Generator[tuple[Step, T], None, None]:
    """Calls function(chunk, step, seed) for every corruption, severity and chunk, behind a progress bar.

    Args:
        function: A module's function, so that a fresh process can import it.
        images: Bytes, (image, height, width, 3).
        names: Corruptions, in the order wanted.
        severities: Severities, in the order wanted.
        seed: Decides all randomness.
        workers: How many processes; with one, the work is done in this process.
        description: The words in front of the bar.
        progress: Whether to draw it; by default on a terminal.

    Yields:
        Each step and its result: corruption by corruption, severity by severity, chunk by chunk.
    """
    starts = range(0, len(images), CHUNK)
    steps = [Step(name, severity, start) for name in names for severity in severities for start in starts]
    pieces = ((images[step.start : step.start + CHUNK], step, seed) for step in steps)
    with closing(_run_in_order(function, pieces, workers)) as results:
        yield from zip(track(steps, description, show=progress if steps else False), results, strict=True)


def _run_in_order(
    function: Callable[..., T], pieces: Iterable[tuple[Any, ...]], workers: int
) -> Generator[T, None, None]:
    """Yields function(*piece) for each piece, in order; pieces are taken only a little ahead of the results."""
    if workers == 1:
        for piece in pieces:
            yield function(*piece)
        return
    # Spawned rather than forked: this process may have threads, which a fork would not carry over
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
    under_way: deque[Future[T]] = deque()
    try:
        for piece in pieces:
            under_way.append(pool.submit(function, *piece))
            if len(under_way) > 2 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal: the first one decides what becomes of the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed; otherwise it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def write_array(path: Path, shape: tuple[int, ...], parts: Iterable[np.ndarray]) -> str:
    """Writes an array of bytes in NumPy's format, part by part along its first axis.

    Returns:
        The file's SHA-256.
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    digest = hashlib.sha256()
    with whole_file(path) as file:
        for piece in chain([header.getvalue()], (np.ascontiguousarray(part, np.uint8).data for part in parts)):
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def generate(
    images: np.ndarray,
    labels: np.ndarray,
    folder: FilePath,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    workers: int | None = None,
    progress: bool | None = None,
) -> Path:
    """Writes corrupted copies of a set in the layout of CIFAR-10-C.

    `<corruption>.npy` holds all images at the first severity, then all at the second, and so on; `labels.npy` holds
    their labels, likewise repeated; `manifest.json` says what they were made of and how. A file appears once it is
    whole. Called again after an interruption of any kind, this resumes after the last whole file, and the result is the
    same to the byte. A folder that holds another set, or the official archive, is refused.

    With more than one worker a script must call this under `if __name__ == "__main__":`, as for all multiprocessing.

    Args:
        images: Bytes, (image, height, width, 3); may be memory-mapped.
        labels: Classes from 0 to 255, (image,).
        folder: Where to write.
        corruptions: Which of `CORRUPTIONS`; others may be added later.
        severities: Which of 1 to 5, in the order in which they are written.
        seed: Decides all randomness.
        workers: How many processes; by default one for each core.
        progress: Whether to draw a bar; by default on a terminal.

    Returns:
        The folder.
    """
    check_set(images)
    check_seed(seed)
    labels = _checked_labels(labels, len(images))
    chosen = [find_corruption(name) for name in dict.fromkeys(corruptions)]
    for severity in severities:
        check_severity(severity)
    workers = checked_workers(workers)
    folder = Path(folder)
    identity = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "seed": int(seed),
        "severities": [int(severity) for severity in severities],
        "shape": list(images.shape),
        "images_sha256": _digest(images),
        "labels_sha256": _digest(labels),
    }
    made_with = {corruption.name: _made_with(corruption) for corruption in chosen}
    with one_at_a_time(folder):
        files = _finished_files(folder, identity)
        _write_manifest(folder, identity, files)
        write_array(folder / LABELS, (len(severities) * len(labels),), [labels] * len(severities))

        missing = [
            name
            for name in track(list(made_with), "Checking", show=progress if files else False)
            if not _is_whole(folder / f"{name}.npy", files.get(name), made_with[name])
        ]
        chunks = over_chunks(
            _corrupt_chunk,
            images,
            missing,
            severities,
            seed=seed,
            workers=workers,
            description="Corrupting",
            progress=progress,
        )
        shape = (len(severities) * len(images), *images.shape[1:])
        with closing(chunks):
            for name, of_name in groupby(chunks, key=lambda chunk: chunk[0].name):
                path = folder / f"{name}.npy"
                digest = write_array(path, shape, (corrupted for _, corrupted in of_name))
                files[name] = {"sha256": digest, "bytes": path.stat().st_size, **made_with[name]}
                _write_manifest(folder, identity, files)
    return folder


def _corrupt_chunk(images: np.ndarray, step: Step, seed: int) -> np.ndarray:
    return corrupt(images, step.name, step.severity, seed=seed, start=step.start)


def _checked_labels(labels: np.ndarray, count: int) -> np.ndarray:
    """Labels as bytes, as in the official archive."""
    labels = np.asarray(labels)
    if labels.shape != (count,):
        raise LabelError(f"There are {count} images, so labels must have the shape ({count},). Got {labels.shape}.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise LabelError(f"Labels must be whole numbers. Got {labels.dtype}.")
    if not 0 <= labels.min() <= labels.max() <= 255:
        raise LabelError(f"Labels are stored as bytes, from 0 to 255. Got {labels.min()} to {labels.max()}.")
    return labels.astype(np.uint8)


def _digest(array: np.ndarray) -> str:
    """SHA-256 of an array's content, read in parts."""
    digest = hashlib.sha256()
    for start in range(0, len(array), CHUNK):
        digest.update(np.ascontiguousarray(array[start : start + CHUNK]).data)
    return digest.hexdigest()


def _made_with(corruption: Corruption) -> dict[str, Any]:
    """What else decides the bytes of a file: constants, and whose random numbers, filters and JPEG they are."""
    scipy, pillow = (require(name, extra="data", purpose="ddu.data.corruptions") for name in ("scipy", "PIL"))
    return {
        "constants": {name: list(values) for name, values in corruption.constants.items()},
        "versions": {
            "ddu": __version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "pillow": pillow.__version__,
        },
    }


def _finished_files(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """What the folder's manifest says of its files, by corruption; refuses a folder that holds another set."""
    path = folder / MANIFEST
    if not path.exists():
        strangers = [name for name in (LABELS, *(f"{name}.npy" for name in CORRUPTIONS)) if (folder / name).exists()]
        if strangers:
            raise InputError(
                f"{folder} holds {strangers[0]}, and no {MANIFEST} that says how it was made: give another folder."
            )
        return {}
    try:
        manifest = json.loads(path.read_text())
        found, files = {key: manifest[key] for key in identity}, manifest["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not describe corrupted images: give another folder.") from error
    refuse_changes(f"The corrupted set in {folder}", found, identity)
    return files


def _is_whole(path: Path, entry: dict[str, Any] | None, made_with: dict[str, Any]) -> bool:
    """Whether a file is there, made as it would be made now, and unchanged since."""
    return (
        entry is not None
        and all(entry.get(key) == value for key, value in made_with.items())
        and path.is_file()
        and path.stat().st_size == entry["bytes"]
        and file_digest(path) == entry["sha256"]
    )


def _write_manifest(folder: Path, identity: dict[str, Any], files: dict[str, Any]) -> None:
    write_json(folder / MANIFEST, {**identity, "files": files})
