"""Files that are whole or not there at all, and locks on them."""

import errno
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddu import files
from ddu.files import holds_files, locked, whole_file, write_bytes, write_json

LEFTOVER = ".file.0123456789abcdef.tmp"

needs_locks = pytest.mark.skipif(files.fcntl is None, reason="needs locks on files")


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_file_leaves_the_old_one_and_nothing_else(tmp_path, interruption):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half():
        with whole_file(path) as file:
            file.write(b"ne")
            raise interruption

    with pytest.raises(interruption):
        write_half()
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_what_a_killed_process_leaves_behind_is_nobodys_file(tmp_path):
    assert not holds_files(tmp_path / "nowhere")
    with whole_file(tmp_path / "config.json") as file:
        file.write(b"half")
        assert len(list(tmp_path.iterdir())) == 1
        assert not holds_files(tmp_path)
    assert holds_files(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows flushes no folders")
def test_a_file_is_flushed_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    seen = []
    fsync = os.fsync

    def note(descriptor):
        seen.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "file").exists()))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    write_bytes(tmp_path / "file", b"new")
    assert seen == [(False, False), (True, True)]


def test_writers_of_the_same_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([number]) * 10_000 for number in range(40)]
    path.write_bytes(contents[0])

    def write_and_read(content):
        write_bytes(path, content)
        assert path.read_bytes() in contents

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write_and_read, contents))
    assert names(tmp_path) == ["file"]


@needs_locks
def test_a_writer_removes_what_killed_ones_left_and_nothing_that_is_in_use(tmp_path):
    (tmp_path / LEFTOVER).write_bytes(b"half")
    others = [".other.0123456789abcdef.tmp", ".file.notes.tmp", "file.0123456789abcdef.tmp"]
    for name in others:
        (tmp_path / name).write_bytes(b"theirs")
    with whole_file(tmp_path / "file") as slow:
        slow.write(b"slow")
        (in_use,) = set(names(tmp_path)) - set(others)
        write_bytes(tmp_path / "file", b"quick")
        assert names(tmp_path) == sorted([*others, in_use, "file"])
    assert names(tmp_path) == sorted([*others, "file"])
    assert (tmp_path / "file").read_bytes() == b"slow"


@needs_locks
def test_a_temporary_file_is_in_use_until_it_is_renamed(tmp_path, monkeypatch):
    replace = type(tmp_path).replace

    def write_another_first(self, target):
        with monkeypatch.context() as context:
            context.setattr(type(tmp_path), "replace", replace)
            write_bytes(tmp_path / "file", b"quick")
        return replace(self, target)

    monkeypatch.setattr(type(tmp_path), "replace", write_another_first)
    write_bytes(tmp_path / "file", b"slow")
    assert (tmp_path / "file").read_bytes() == b"slow"


@needs_locks
def test_a_temporary_file_that_was_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """The other writer came between opening and locking, and took it for abandoned."""
    lock, made = files._lock, []

    def too_late(file, **options):
        made.append(file.name)
        if len(made) == 1:
            os.unlink(file.name)
        return lock(file, **options)

    monkeypatch.setattr(files, "_lock", too_late)
    write_bytes(tmp_path / "file", b"new")
    assert len(set(made)) == 2
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@needs_locks
def test_a_lock_excludes_others_and_a_shared_one_only_writers(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with path.open("r+b") as mine, path.open("r+b") as theirs:
        with locked(mine, exclusive=False) as held, locked(theirs, exclusive=False) as held_too:
            assert held
            assert held_too
        with locked(mine), pytest.raises(BlockingIOError), locked(theirs, wait=False):
            pass
        with locked(theirs, wait=False) as held:
            assert held


@pytest.mark.parametrize("why", ["Windows", "the disk"])
def test_without_locks_files_are_whole_and_leftovers_stay(tmp_path, monkeypatch, why):
    def no_locks(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    if why == "Windows":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr("fcntl.flock", no_locks)
    (tmp_path / LEFTOVER).write_bytes(b"of somebody who may be alive")
    write_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == [LEFTOVER, "file"]
    with (tmp_path / "file").open("rb") as file, locked(file) as held:
        assert not held


@needs_locks
def test_a_broken_disk_is_not_a_disk_without_locks(tmp_path, monkeypatch):
    def broken(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.flock", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_bytes(tmp_path / "file", b"new")
    assert names(tmp_path) == []


def test_json_is_readable_and_ends_with_a_line(tmp_path):
    write_json(tmp_path / "content.json", {"a": [1, None]})
    text = (tmp_path / "content.json").read_text()
    assert json.loads(text) == {"a": [1, None]}
    assert text.endswith("}\n")
