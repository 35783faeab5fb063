import pickle
from pathlib import Path

import numpy as np
import pytest
import torchvision

from ddu.data import load
from ddu.data.sources.cifar import ArrayUnpickler, read_pickle
from ddu.errors import DataError

from ..conftest import md5, noise

# What Python 2 wrote, as the official files are: protocol 2, the values in a string, the array by numpy.core.multiarray
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x03K\x01eU\x04dataq\x04cnumpy.core.multiarray\n_reconstruct\nq\x05"
    b"cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\tRq\n(K\x01K\x02M\x00\x0c\x86q\x0bcnumpy\ndtype\nq\x0c"
    b"U\x02u1q\rK\x00K\x01\x87q\x0eRq\x0f(K\x03U\x01|q\x10NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x11b\x89"
    b"T\x00\x18\x00\x00" + bytes(range(256)) * 24 + b"q\x12tq\x13bu."
)


def batch(count: int, key: str = "labels", seed: int = 0) -> dict:
    return {"data": noise(count, 3072, seed=seed), key: (np.arange(count) % 10).tolist(), "batch_label": "a batch"}


def as_images(data: np.ndarray) -> np.ndarray:
    """Planes of red, green and blue, each row by row, to (sample, height, width, channel)."""
    return np.stack([data[:, 1024 * c : 1024 * (c + 1)].reshape(-1, 32, 32) for c in range(3)], axis=-1)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("key", ["labels", "fine_labels"])
def test_a_batch_is_read_whatever_protocol_wrote_it(tmp_path, protocol, key):
    path, content = tmp_path / "batch", batch(4, key)
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    images, labels = read_pickle(path, key)
    np.testing.assert_array_equal(images, as_images(content["data"]))
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(labels, content[key])
    assert labels.dtype == np.int64


def test_a_batch_of_python_2_is_read(tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(PYTHON_2)
    images, labels = read_pickle(path, "labels")
    expected = np.tile(np.arange(256, dtype=np.uint8), 24).reshape(2, 3072)
    np.testing.assert_array_equal(images, as_images(expected))
    assert labels.tolist() == [3, 1]


class Malicious:
    """Pickled, it is a call: unpickled the ordinary way, it writes a file."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_runs_nothing(tmp_path, protocol):
    trap = tmp_path / "trap"
    for function, arguments in ((Path.touch, (trap,)), (eval, (f"open({str(trap)!r}, 'w')",)), (getattr, (trap, "x"))):
        path = tmp_path / "batch"
        path.write_bytes(pickle.dumps({"data": Malicious(function, *arguments), "labels": []}, protocol=protocol))
        with pytest.raises(DataError, match=r"cannot be read as a batch of CIFAR: it asks for .*, and only arrays are"):
            read_pickle(path, "labels")
        assert not trap.exists()


def test_the_trap_would_have_worked(tmp_path):
    trap = tmp_path / "trap"
    pickle.loads(pickle.dumps(Malicious(Path.touch, trap)))
    assert trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\nexec\n(S'1'\ntR.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nscalar\n.",
        b"c_codecs\ndecode\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.view\x93.",
        b"(ios\nsystem\n.",
        b"\x82\x01.",
        b"P1\n.",
    ],
)
def test_every_way_to_name_something_else_is_refused(tmp_path, content):
    path = tmp_path / "pickle"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises((pickle.UnpicklingError, ValueError)):
        ArrayUnpickler(file).load()


@pytest.mark.parametrize(
    "content", [b"", PYTHON_2[:-20], PYTHON_2[:100], b"not a pickle", pickle.dumps({}), pickle.dumps([1])]
)
def test_a_damaged_batch_is_named(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_pickle(path, "labels")
    assert str(caught.value).startswith(f"{path} cannot be read as a batch of CIFAR: ")


def test_the_whole_set_is_its_batches_one_after_another(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    published = []
    for number in range(1, 6):
        path = folder / f"data_batch_{number}"
        path.write_bytes(pickle.dumps(batch(4, seed=number)))
        published.append([path.name, md5(path)])
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "train_list", published)
    dataset = load("cifar10", root=tmp_path)
    expected = np.concatenate([as_images(batch(4, seed=number)["data"]) for number in range(1, 6)])
    np.testing.assert_array_equal(dataset.inputs, expected)
    assert dataset.labels.tolist() == 5 * [0, 1, 2, 3]
    assert dataset.info.shape == (3, 32, 32)


def test_cifar100_has_the_fine_labels(tmp_path, monkeypatch):
    path = tmp_path / "cifar-100-python" / "test"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({**batch(4, "fine_labels"), "coarse_labels": [0] * 4}))
    monkeypatch.setattr(torchvision.datasets.CIFAR100, "test_list", [["test", md5(path)]])
    assert load("cifar100", "test", root=tmp_path).labels.tolist() == [0, 1, 2, 3]
    assert len(set(load("cifar100", "test", root=tmp_path).info.classes)) == 100


def test_a_batch_must_be_the_published_one(tmp_path):
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(batch(4)))
    with pytest.raises(DataError) as caught:
        load("cifar10", "test", root=tmp_path)
    assert str(caught.value) == (
        f"{path} is corrupt or not whole: its MD5 checksum is {md5(path)}, and 40351d587109b95175f43aff81a1287e is "
        "published. Delete it and fetch it again."
    )


def test_the_class_names_are_those_of_the_real_set(real_data):
    for name in ("cifar10", "cifar100"):
        path = real_data / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"no {path}")
        with np.load(path) as arrays:
            assert load(name, "test", root=real_data).info.classes == tuple(arrays["classes"])
