"""Fetching, from a server of our own: what the network cannot be trusted with."""

import contextlib
import gzip
import hashlib
import io
import multiprocessing
import struct
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torchvision

from ddu.data import fetch, load
from ddu.data.downloads import Download, download, verify
from ddu.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
LABELS = np.arange(5, dtype=np.uint8)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word on standard error; a file called slow.* never ends."""

    def log_message(self, format, *args):
        pass

    def copyfile(self, source, outputfile):
        if "slow" in self.path:
            with contextlib.suppress(OSError):
                outputfile.write(source.read()[:-1])
                outputfile.flush()
                time.sleep(60)
        else:
            super().copyfile(source, outputfile)


@pytest.fixture
def home(tmp_path) -> Iterator[tuple[Path, str]]:
    """A folder that is served, and its address."""
    folder = tmp_path / "home"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mnist_at_home(home, monkeypatch) -> Path:
    """A tiny MNIST at a home of its own, published with its checksums."""
    folder, address = home
    resources = []
    for prefix in ("train", "t10k"):
        for kind, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            content = gzip.compress(header + array.tobytes())
            name = f"{prefix}-{kind}-ubyte.gz"
            (folder / name).write_bytes(content)
            resources.append((name, md5(content)))
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"{address}moved/", address])
    return folder


def test_a_set_is_fetched_from_the_next_mirror_and_read(mnist_at_home, tmp_path):
    root = tmp_path / "deep" / "root"
    assert fetch("mnist", root=root)
    np.testing.assert_array_equal(load("mnist", "test", root=root).inputs[..., 0], IMAGES)
    assert [path.name for path in root.iterdir()] == ["MNIST"]
    # torchvision finds it there, too
    assert len(torchvision.datasets.MNIST(root, train=False)) == 5


def test_what_is_there_is_not_fetched_again(mnist_at_home, tmp_path):
    fetch("mnist", root=tmp_path)
    for path in mnist_at_home.iterdir():
        path.unlink()
    assert not fetch("mnist", root=tmp_path)


def test_a_file_with_another_checksum_is_not_taken_for_the_set(mnist_at_home, tmp_path, home):
    path = mnist_at_home / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError) as caught:
        fetch("mnist", root=tmp_path)
    assert str(caught.value) == (
        f"mnist could not be fetched from {home[1]}moved/{path.name} (HTTP Error 404: File not found), nor from "
        f"{home[1]}{path.name} (File not found or corrupted.). Try again, or put its files into place by hand: "
        "docs/data.md says where."
    )
    assert not (tmp_path / "MNIST").exists()
    with pytest.raises(DataError, match=r"^mnist is not in"):
        load("mnist", root=tmp_path)


def test_a_second_attempt_ends_what_the_first_began(mnist_at_home, tmp_path):
    path = mnist_at_home / "t10k-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(DataError, match=r"^mnist could not be fetched"):
        fetch("mnist", root=tmp_path)
    path.write_bytes(content)
    assert fetch("mnist", root=tmp_path)
    assert len(load("mnist", root=tmp_path)) == 5
    assert not list(tmp_path.glob(".*"))


def tar_gz(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_an_archive_replaces_what_was_there(home, tmp_path):
    folder, address = home
    (folder / "set.tar.gz").write_bytes(tar_gz(data__new=b"whole"))
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "data" / "old").write_bytes(b"half")
    download("set", root, [Download((f"{address}set.tar.gz",), md5((folder / "set.tar.gz").read_bytes()))])
    assert {path.name: path.read_bytes() for path in (root / "data").iterdir()} == {"new": b"whole"}
    assert [path.name for path in root.iterdir()] == ["data"]


def test_an_archive_cannot_write_outside_of_its_folder(home, tmp_path):
    folder, address = home
    content = tar_gz(**{"..__..__escaped": b"gotcha"})
    (folder / "set.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"^set could not be fetched from .* would be extracted to"):
        download("set", tmp_path / "root", [Download((f"{address}set.tar.gz",), md5(content))])
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # the server's thread
def test_a_killed_download_is_never_mistaken_for_a_whole_one(home, tmp_path):
    folder, address = home
    content = bytes(100_000)
    (folder / "slow.bin").write_bytes(content)
    root = tmp_path / "root"
    file = Download((f"{address}slow.bin",), md5(content), packed=False)
    process = multiprocessing.get_context("fork").Process(target=download, args=("set", root, [file]))
    process.start()
    partial = root / ".set.partial" / "slow.bin"
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert 0 < partial.stat().st_size < len(content)
    assert [path.name for path in root.iterdir()] == [".set.partial"]


def test_a_root_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    # Whoever runs the tests as root may write everywhere
    monkeypatch.setattr(torchvision.datasets.utils, "download_url", refuse)
    with pytest.raises(DataError) as caught:
        fetch("svhn", root=tmp_path)
    assert str(caught.value) == f"svhn cannot be written to {tmp_path}: Permission denied."


def test_a_verified_file_has_the_checksum_that_is_published(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    verify(path, "9a0364b9e99bb480dd25e1f0284c8555")
    path.write_bytes(b"conten")
    with pytest.raises(DataError) as caught:
        verify(path, "9a0364b9e99bb480dd25e1f0284c8555")
    assert str(caught.value) == (
        f"{path} is corrupt or not whole: its MD5 checksum is 057e4f308a3d48cab0e3123ddfe8395d, and "
        "9a0364b9e99bb480dd25e1f0284c8555 is published. Delete it and fetch it again."
    )
