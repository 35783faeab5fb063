"""Files of data sets: verified where a checksum is published, and downloaded whole or not at all."""

import gzip
import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddu.errors import DataError
from ddu.messages import require
from ddu.progress import track

_CHUNK = 2**24  # bytes read at a time


@dataclass(frozen=True)
class Download:
    """A file that a data set is downloaded from.

    Attributes:
        urls: Addresses; the next one is tried if one fails.
        md5: The published checksum.
        folder: Where it, or what it packs, belongs below the root.
        packed: Whether it is an archive, or compressed.
    """

    urls: tuple[str, ...]
    md5: str
    folder: str = "."
    packed: bool = True


def verify(path: Path, md5: str) -> None:
    """Refuses a file that is not the published one."""
    found = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        for _ in track(range(0, path.stat().st_size, _CHUNK), f"Verifying {path.name}"):
            found.update(file.read(_CHUNK))
    if found.hexdigest() != md5:
        raise DataError(
            f"{path} is corrupt or not whole: its MD5 checksum is {found.hexdigest()}, and {md5} is published. "
            "Delete it and fetch it again."
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks an archive, or a single compressed file, into a folder."""
    description = f"Unpacking {archive.name}"
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as members:
            for member in track(members.infolist(), description):
                members.extract(member, folder)
    elif ".tar" in archive.suffixes:
        with tarfile.open(archive) as members:
            for member in track(members, description):
                members.extract(member, folder, filter="data")  # refuses what would land outside of the folder
    else:
        with gzip.open(archive) as packed, (folder / archive.stem).open("wb") as file:
            shutil.copyfileobj(packed, file)


def download(name: str, root: Path, files: Iterable[Download]) -> None:
    """Fetches the files of a set with torchvision's downloader.

    All of them are verified and unpacked in a folder of their own, and moved to their places at the very end: whatever
    happens before, nothing that looks like the set is there. A second attempt resumes after the last whole file.
    """
    partial = root / f".{name}.partial"
    try:
        for file in files:
            _download(name, file, partial / file.folder)
        for entry in partial.iterdir():
            _replace(entry, root / entry.name)
        shutil.rmtree(partial)
    except PermissionError as error:
        raise DataError(f"{name} cannot be written to {root}: {error.strerror}.") from error


def _download(name: str, file: Download, folder: Path) -> None:
    utils = require("torchvision.datasets.utils", extra="data", purpose="Fetching data")
    failures = []
    for url in file.urls:
        archive = folder / Path(url).name
        try:
            utils.download_url(url, folder, archive.name, file.md5)
            if file.packed:
                unpack(archive, folder)
                archive.unlink()
            return
        except PermissionError:
            raise
        except (OSError, RuntimeError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
            failures.append(f"{url} ({error})")
    raise DataError(
        f"{name} could not be fetched from {', nor from '.join(failures)}. Try again, or put its files into place by "
        "hand: docs/data.md says where."
    )


def _replace(new: Path, old: Path) -> None:
    """Moves a file or a whole folder to its place; what was there before goes."""
    if old.is_dir():
        aside = new.with_name(f"{old.name}.old")
        shutil.rmtree(aside, ignore_errors=True)
        old.rename(aside)
        new.rename(old)
        shutil.rmtree(aside)
    else:
        new.replace(old)
