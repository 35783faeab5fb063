"""`ddu data` as a user meets it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def command(command, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Runs `ddu data` with arguments: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("DDU_DATA", raising=False)
    return lambda *arguments: command("data", *map(str, arguments))


@pytest.fixture
def root(tmp_path) -> Path:
    """A root with the test images of CIFAR-10, four of them, and a set of another name."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), np.arange(4)
    for name in ("cifar10", "letters"):
        np.savez_compressed(tmp_path / f"{name}.npz", x_test=images, y_test=labels)
    return tmp_path


def row(printed: str, name: str) -> str:
    """The row of a table that begins with a name, with single spaces."""
    (line,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
    return " ".join(line.split())


def test_the_list_says_what_is_there_and_where(command, root):
    code, printed, _ = command("list", "--data-root", root)
    assert code == 0
    assert row(printed, "cifar10") == (
        f"cifar10 Small photographs of ten kinds of animals and vehicles. 3 x 32 x 32 {root}/cifar10.npz (test)"
    )
    assert row(printed, "letters") == f"letters 3 x 32 x 32 {root}/letters.npz (test)"
    assert row(printed, "mnist") == "mnist Handwritten digits. 1 x 28 x 28 not there"
    assert row(printed, "two_moons").endswith("deviation 0.1. 2 generated")
    assert "cifar10_c:fog:3" in printed
    assert printed.endswith(f"The root is {root}.\n")


def test_the_list_names_what_is_damaged(command, root):
    path = root / "cifar10.npz"
    path.write_bytes(path.read_bytes()[:-100])
    code, printed, _ = command("list", "--data-root", root)
    assert code == 0
    assert f"damaged: {path} is corrupt" in row(printed, "cifar10")


def test_the_root_may_come_from_the_environment(command, root, monkeypatch):
    monkeypatch.setenv("DDU_DATA", str(root))
    code, printed, complaint = command("list")
    assert (code, complaint) == (0, "")
    assert f"{root}/cifar10.npz (test)" in printed


def test_a_set_is_described(command, root):
    code, printed, _ = command("info", "cifar10", "--data-root", root)
    assert code == 0
    assert row(printed, "shape") == "shape 3 x 32 x 32"
    assert row(printed, "where") == f"where {root}/cifar10.npz (test)"
    assert row(printed, "test") == "test 4 samples"
    assert row(printed, "classes") == ("classes airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck")
    assert row(printed, "mean") == "mean 0.4914, 0.4822, 0.4465"


def test_a_set_that_is_not_there_is_described_with_the_way_to_get_it(command, root):
    code, printed, _ = command("info", "tiny_imagenet", "--data-root", root)
    assert code == 0
    assert row(printed, "test") == "test not there"
    assert printed.endswith("Get it with `ddu data fetch tiny_imagenet`.\n")


def test_a_path_is_described(command, root):
    code, printed, _ = command("info", f"npz:{root}/letters.npz")
    assert code == 0
    assert row(printed, "classes") == "classes 0, 1, 2, 3"


def test_what_is_there_is_not_fetched(command, root):
    assert command("fetch", "cifar10", "--data-root", root) == (
        0,
        f"cifar10 is already there: {root}/cifar10.npz (test).\n",
        "",
    )
    assert command("fetch", "two_moons") == (0, "two_moons is already there: generated.\n", "")


def test_an_unknown_set_is_one_line_and_no_traceback(command, root):
    code, _, complaint = command("fetch", "fashion-mnist", "--data-root", root)
    assert code == 1
    assert complaint == (
        "There is no data set 'fashion-mnist'. The closest names are 'fashion_mnist'; `ddu data list` and "
        "ddu.data.list_data() give them all.\n"
    )


def test_help_names_the_commands(command):
    code, printed, _ = command("--help")
    assert code == 0
    for name in ("list", "info", "fetch", "make"):
        assert f"{name} " in printed


def test_corruptions_are_made_where_they_are_read(command, root):
    arguments = ("make", "corruptions", "--only", "fog", "--only", "contrast", "--workers", "1", "--data-root", root)
    code, printed, complaint = command(*arguments)
    assert (code, complaint) == (0, "")
    assert printed == (f"Written to {root}/CIFAR-10-C.\nRead one with `ddu data info cifar10_c:fog:3`.\n")
    code, printed, _ = command("info", "cifar10_c:fog:3", "--data-root", root)
    assert code == 0
    assert row(printed, "test") == "test 4 samples"
