"""Where a result comes from."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddu import provenance
from ddu.provenance import command, commit, fingerprint, versions

SETTINGS = {"epochs": 3, "recipe": {"lr": 0.1, "milestones": [1, 2]}, "options": None}


def test_a_fingerprint_does_not_depend_on_the_order_of_keys():
    turned = {"options": None, "recipe": {"milestones": [1, 2], "lr": 0.1}, "epochs": 3}
    assert fingerprint(SETTINGS, "digest") == fingerprint(turned, "digest")
    assert re.fullmatch(r"[0-9a-f]{12}", fingerprint(SETTINGS))


@pytest.mark.parametrize(
    "other",
    [
        SETTINGS | {"epochs": 4},
        SETTINGS | {"epochs": "3"},
        SETTINGS | {"recipe": {"lr": 0.1000001, "milestones": [1, 2]}},
        SETTINGS | {"recipe": {"lr": 0.1, "milestones": [2, 1]}},
        SETTINGS | {"options": {}},
        SETTINGS | {"more": None},
        {"epochs": 3},
    ],
)
def test_a_fingerprint_differs_where_anything_does(other):
    assert fingerprint(other) != fingerprint(SETTINGS)
    assert fingerprint(SETTINGS, other) != fingerprint(other, SETTINGS)
    assert fingerprint("a", "b") != fingerprint("ab")


def test_versions_are_those_installed_and_leave_out_what_is_not():
    found = versions("pytest", "no-such-package")
    assert found["pytest"] == importlib.metadata.version("pytest")
    assert list(found) == ["ddu", "python", "torch", "numpy", "pytest"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/usr/local/bin/ddu", "train", "--data", "mnist"], "ddu train --data mnist"),
        (["ddu", "train", "--data", "folder:my photos"], "ddu train --data 'folder:my photos'"),
    ],
)
def test_the_command_can_be_typed_again(monkeypatch, arguments, expected):
    monkeypatch.setattr(sys, "argv", arguments)
    assert command() == expected


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder with this file of the source, which `commit` then takes itself to be in."""
    package = tmp_path / "src" / "ddu"
    package.mkdir(parents=True)
    shutil.copy(provenance.__file__, package)
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # wherever temporary folders are
    commit.cache_clear()
    yield tmp_path
    commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_checkout_has_a_commit_and_says_when_files_differ(tree):
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "First")
    head = git(tree, "rev-parse", "HEAD")
    assert commit() == head[:12]
    (tree / "notes.txt").write_text("mine")  # no file of the checkout
    commit.cache_clear()
    assert commit() == head[:12]
    with (tree / "src" / "ddu" / "provenance.py").open("a") as file:
        file.write("# changed\n")
    assert commit() == head[:12]  # asked for once per process
    commit.cache_clear()
    assert commit() == f"{head[:12]}+changes"


def test_an_installed_package_has_none(tree):
    assert commit() is None


def test_a_package_installed_inside_of_somebody_elses_checkout_has_none(tree):
    """As in an environment in the folder of a project."""
    (tree / "theirs.py").touch()
    git(tree, "init", "--quiet")
    git(tree, "add", "theirs.py")
    git(tree, "commit", "--quiet", "--message", "Theirs")
    assert commit() is None


def test_without_git_there_is_none(tree, monkeypatch):
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "First")
    monkeypatch.setenv("PATH", "")
    assert commit() is None
