import numpy as np
import pytest
import torch

from ddu import data
from ddu.data import dirty_mnist_format as artifact
from ddu.data import load
from ddu.errors import DataError

from ..conftest import noise


@pytest.fixture
def root(tmp_path):
    """Three ambiguous images with two labels each, and four images of MNIST, as the generator would leave them."""
    folder = tmp_path / "dirty_mnist"
    folder.mkdir()
    manifest = {"format": artifact.FORMAT, "format_version": artifact.FORMAT_VERSION, "seed": 0, "splits": {}}
    for split in ("train", "test"):
        arrays = {
            "images": noise(3, 28, 28, 1),
            "labels": np.array([[1, 7], [3, 8], [4, 4]], dtype=np.uint8),
            "soft_labels": np.full((3, 10), 0.1, dtype=np.float32),
        }
        manifest["splits"][split] = {"sha256": artifact.write_arrays(folder, split, arrays)}
    artifact.write_manifest(folder, manifest)
    np.savez(tmp_path / "mnist.npz", x_train=noise(4, 28, 28, seed=1), y_train=np.arange(4))
    return tmp_path


def test_ambiguous_images_come_as_often_as_they_have_labels(root):
    dataset = load("ambiguous_mnist", "test", root=root)
    assert dataset.labels.tolist() == [1, 7, 3, 8, 4, 4]
    x, _ = dataset.__getitems__(range(6))
    clean = (torch.from_numpy(noise(3, 28, 28, 1)[..., 0] / 255).float() - 0.1307) / 0.3081
    # With noise of deviation 0.05, in which the copies of an image differ
    torch.testing.assert_close(x[::2, 0], clean, atol=0.3, rtol=0)
    assert not torch.equal(x[0], x[1])


def test_dirty_mnist_is_mnist_and_the_ambiguous_images(root):
    dataset = load("dirty_mnist", root=root)
    assert dataset.labels.tolist() == [0, 1, 2, 3, 1, 7, 3, 8, 4, 4]
    assert dataset[0][0].shape == (1, 28, 28)


def test_copies_of_an_image_are_a_group_that_no_split_divides(root):
    np.testing.assert_array_equal(load("ambiguous_mnist", root=root).groups, [0, 0, 1, 1, 2, 2])
    dataset = load("dirty_mnist", root=root)
    groups = dataset.groups
    assert groups is not None
    assert groups.tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6]
    for seed in range(10):
        large, small = data.split(dataset, 0.5, seed=seed)
        assert not set(groups[large]) & set(groups[small])


@pytest.mark.parametrize("name", ["ambiguous_mnist", "dirty_mnist"])
def test_what_has_not_been_made_says_how_to_make_it(tmp_path, name):
    with pytest.raises(DataError) as caught:
        load(name, root=tmp_path)
    assert str(caught.value) == (
        f"{name} is not in {tmp_path}: there is no dirty_mnist/manifest.json, no dirty_mnist/ambiguous_train.npz, and "
        f"no {name}.npz. Make it with `ddu data make dirty-mnist`. If it is elsewhere, say where with --data-root or "
        "DDU_DATA."
    )
