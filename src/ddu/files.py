"""Files that are written whole or not at all, and folders that can be written to."""

import errno
import json
import os
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from ddu.errors import InputError

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

FilePath = str | os.PathLike[str]
"""The name of a file or folder, as people give it."""

LOCK = ".lock"
"""The file in a folder that the command that works there holds a lock on."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")

# What a disk answers that cannot lock a file or flush a folder
_UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that appears under its name in one step, once all is written and safely on disk.

    An exception, Ctrl-C among them, leaves what was there before. Threads, processes and hosts may write the same file
    at the same time: each writes a temporary file of its own, and the last to finish wins. Temporary files of writers
    that were killed are removed by the next one, except where files cannot be locked.
    """
    _remove_abandoned(path)
    with _own_temporary(path) as temporary:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    _sync_folder(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder that appears under its name in one step, once all files in it are written and safely on disk.

    An exception, Ctrl-C among them, leaves nothing. There must be no files under that name before.
    """
    refuse_existing(path)
    check_writable(path.absolute().parent)
    temporary = path.absolute().with_name(f".{path.absolute().name}.{secrets.token_hex(8)}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            with file.open("rb") if file.is_file() else nullcontext() as opened:
                if opened is not None:
                    os.fsync(opened.fileno())
        _sync_folder(temporary)
        if path.exists():
            path.rmdir()  # empty, and Windows does not rename over it
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync_folder(path.absolute().parent)


@contextmanager
def locked(file: IO[bytes], *, exclusive: bool = True, wait: bool = True) -> Iterator[bool]:
    """Holds a lock on an open file against other threads, processes and, on a shared disk, hosts that ask for one.

    The lock goes with the process, however that ends. An exclusive lock on a shared disk needs a file that is open for
    writing.

    Args:
        file: The file.
        exclusive: Whether nobody else may hold a lock; otherwise others may hold shared ones.
        wait: Whether to wait for the others; otherwise a BlockingIOError says that somebody holds a lock.

    Yields:
        Whether it is locked: Windows and some shared disks have no such locks.
    """
    held = _lock(file, exclusive=exclusive, wait=wait)
    try:
        yield held
    finally:
        if held and fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_UN)


def holds_files(folder: Path) -> bool:
    """Whether there is anything in a folder, but for locks and what `whole_file` left when its process was killed."""
    return folder.is_dir() and any(
        path.name != LOCK and not _TEMPORARY.fullmatch(path.name) for path in folder.iterdir()
    )


def refuse_existing(path: Path) -> None:
    """Refuses a file, and a folder that holds some."""
    if path.is_file():
        raise InputError(f"{path} is a file: choose a folder.")
    if holds_files(path):
        raise InputError(f"{path} holds files already: choose another folder.")


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file in one step."""
    with whole_file(path) as file:
        file.write(data)


def write_json(path: Path, content: Any) -> None:
    """Writes readable JSON in one step."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a compressed `.npz` file in one step; none of them may need a pickle."""
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():  # numpy before 2.1 has no np.savez_compressed(..., allow_pickle=False)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def check_writable(folder: Path) -> None:
    """Makes a folder, or says why it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{folder} is a file, or inside one: choose a folder.") from error
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}. Choose another folder.") from error


def _lock(file: IO[bytes], *, exclusive: bool, wait: bool) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


@contextmanager
def _own_temporary(path: Path) -> Iterator[Path]:
    """A new file beside `path`, locked for as long as this writer lives; what is left of it at the end is removed."""
    with ExitStack() as stack:
        while True:
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
            stack.callback(temporary.unlink, missing_ok=True)
            holder = temporary.open("xb")
            if fcntl is None:
                holder.close()  # Windows does not rename an open file
                break
            stack.enter_context(holder)
            stack.enter_context(locked(holder))
            # Before it was locked, another writer may have taken it for abandoned
            if temporary.exists():
                break
        yield temporary


def _remove_abandoned(path: Path) -> None:
    """Removes the temporary files of writers of `path` that were killed: those that nobody holds a lock on."""
    for entry in path.parent.iterdir():
        match = _TEMPORARY.fullmatch(entry.name)
        if match is None or match["name"] != path.name:
            continue
        # An OSError says that it is locked, or gone, or not ours to remove
        with suppress(OSError), entry.open("r+b") as file, locked(file, wait=False) as held:
            if held:
                entry.unlink()


def _sync_folder(folder: Path) -> None:
    """Flushes the names of a folder's files to disk: a renamed file could have its old name after a power cut."""
    if os.name == "nt":
        return  # which opens no folders
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
