"""Resume or refuse: work that began with the same settings is resumed, work with other settings is refused.

One command at a time works in a folder. A second one waits, and then finds what the first one finished.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ddu.errors import ArtifactError, InputError
from ddu.files import LOCK, check_writable, holds_files, locked, write_json


def refuse_changes(where: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises an error that names the first setting that differs, with both values.

    >>> refuse_changes("The run in runs/mnist", {"seed": 0}, {"seed": 1})
    Traceback (most recent call last):
    ddu.errors.InputError: The run in runs/mnist has seed=0, and this one has seed=1: use the same, or another folder.
    """
    for name, was, now in _differences(there, here):
        raise InputError(f"{where} has {name}={was}, and this one has {name}={now}: use the same, or another folder.")


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Holds a folder against other commands; where one of them holds it, waits until it is done.

    The folder is made if it is missing, and removed again if nothing was written to it.
    """
    check_writable(folder)
    with _held(folder):
        try:
            yield
        finally:
            with suppress(OSError):  # a folder that is not empty stays
                (folder / LOCK).unlink()
                folder.rmdir()


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder."""
    with ExitStack() as stack:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(
                FileNotFoundError
            ):  # the one before removes the lock, and perhaps the folder, when it is done
                file = stack.enter_context((folder / LOCK).open("a+b"))
                try:
                    stack.enter_context(locked(file, wait=False))
                except BlockingIOError:
                    print(
                        f"Another command is working in {folder}. Waiting for it to finish.",
                        file=sys.stderr,
                        flush=True,
                    )
                    stack.enter_context(locked(file))
                if os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat()):
                    break
        yield


def read_settings(path: Path, what: str) -> dict[str, Any] | None:
    """The content of the file that describes the work in its folder; None if there is no work in it yet.

    Args:
        path: The file, JSON.
        what: What the folder is for, such as "run".
    """
    if path.is_file():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ArtifactError(f"{path} is damaged ({error}): choose another folder for this {what}.") from error
        if not isinstance(content, dict):
            raise ArtifactError(f"{path} does not describe a {what}: choose another folder.")
        return content
    if holds_files(path.parent):
        raise InputError(f"{path.parent} holds files that do not belong to a {what}: choose another folder.")
    return None


def keep_settings(path: Path, what: str, settings: Mapping[str, Any]) -> None:
    """Writes down what the work in a folder is done with; work that began with other settings is refused.

    Args:
        path: The file, as of `read_settings`.
        what: What the folder is for.
        settings: Everything that decides the result, as JSON has it.
    """
    begun = read_settings(path, what)
    if begun is not None:
        refuse_changes(f"The {what} in {path.parent}", begun, settings)
    write_json(path, settings)


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name and both values of what differs, in nested mappings too."""
    for name in {**there, **here}:
        was, now = there.get(name), here.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _differences(was, now)
        elif was != now:
            yield name, was, now
