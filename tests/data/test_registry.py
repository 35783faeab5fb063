from pathlib import Path

import pytest
import torch

from ddu.data import data_root, fetch, info, list_data, list_splits, load, load_ood
from ddu.data.registry import find
from ddu.errors import DataError, InputError


def test_every_set_of_the_paper_has_a_name(tmp_path):
    assert list_data(root=tmp_path) == [
        "ambiguous_mnist",
        "ambiguous_mnist_5k",
        "cifar10",
        "cifar100",
        "cifar10_c",
        "clinc150",
        "clinc150_oos",
        "digits",
        "dirty_mnist",
        "dirty_mnist_5k",
        "fashion_mnist",
        "imagenet",
        "imagenet_o",
        "kmnist",
        "mnist",
        "mnist_5k",
        "one_d",
        "photo_patches",
        "svhn",
        "svhn_6k",
        "three_gaussians",
        "tiny_imagenet",
        "two_moons",
    ]


def test_the_root_is_the_one_given_else_the_variable_else_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DDU_DATA", raising=False)
    assert data_root() == tmp_path / ".cache" / "ddu"
    monkeypatch.setenv("DDU_DATA", "~/sets")
    assert data_root() == tmp_path / "sets"
    assert data_root("elsewhere").name == "elsewhere"


@pytest.mark.parametrize(
    "name",
    [name for name in list_data(root="nowhere") if not find(name, Path("nowhere")).is_generated],
)
def test_what_is_missing_says_where_it_was_looked_for_and_how_to_get_it(name, tmp_path):
    with pytest.raises(DataError) as caught:
        load(name, list_splits(name, root=tmp_path)[0], root=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{name} is not in {tmp_path}: there is no ")
    assert f", and no {name}.npz. " in message
    assert "`ddu data make dirty-mnist`" in message if "dirty" in name or "ambiguous" in name else True
    assert "`ddu data " in message
    assert message.endswith(" If it is elsewhere, say where with --data-root or DDU_DATA.")


def test_a_missing_file_is_named_alone(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "t10k-images-idx3-ubyte").touch()
    with pytest.raises(DataError) as caught:
        load("mnist", "test", root=tmp_path)
    assert str(caught.value) == (
        f"mnist is not in {tmp_path}: there is no MNIST/raw/t10k-labels-idx1-ubyte, and no mnist.npz. Get it with `ddu "
        "data fetch mnist`. If it is elsewhere, say where with --data-root or DDU_DATA."
    )


def test_an_unknown_name_is_answered_with_the_closest(tmp_path):
    with pytest.raises(InputError) as caught:
        load("fashion-mnist", root=tmp_path)
    assert str(caught.value) == (
        "There is no data set 'fashion-mnist'. The closest names are 'fashion_mnist'; `ddu data list` and "
        "ddu.data.list_data() give them all."
    )
    with pytest.raises(InputError) as caught:
        info("qqq", root=tmp_path)
    assert str(caught.value) == ("There is no data set 'qqq'. `ddu data list` and ddu.data.list_data() give them all.")


def test_a_bare_path_is_answered_with_how_to_write_it(tmp_path):
    (tmp_path / "own.npz").touch()
    for path, name in ((tmp_path, f"folder:{tmp_path}"), (tmp_path / "own.npz", f"npz:{tmp_path}/own.npz")):
        with pytest.raises(InputError) as caught:
            load(str(path), root=tmp_path)
        assert str(caught.value) == f"There is no data set '{path}'. For what is at that path write '{name}'."


def test_an_unknown_split_is_answered_with_those_there_are():
    with pytest.raises(InputError) as caught:
        load("two_moons", "validation")
    assert str(caught.value) == "two_moons has no split 'validation', only 'train', 'test'."


def test_a_generated_set_is_there_already_and_dirty_mnist_cannot_be_fetched(tmp_path):
    assert not fetch("two_moons", root=tmp_path)
    with pytest.raises(InputError) as caught:
        fetch("dirty_mnist", root=tmp_path)
    assert str(caught.value) == "dirty_mnist cannot be fetched. Make it with `ddu data make dirty-mnist`."


def test_what_is_out_of_distribution_looks_like_the_set_that_was_trained_on():
    known = info("cifar10")
    dataset = load_ood("digits", known)
    assert len(dataset) == len(load("digits", "test"))
    x, _ = dataset[0]
    assert x.shape == (3, 32, 32)
    assert (dataset.info.mean, dataset.info.std) == (known.mean, known.std)
    assert torch.equal(x, load("digits", "test").like(known)[0][0])


def test_a_set_without_splits_is_out_of_distribution_as_a_whole(tmp_path, write_images):
    write_images(tmp_path / "things" / "only", 4)
    assert len(load_ood(f"folder:{tmp_path}/things", info("mnist"))) == 4


def test_real_svhn_is_shown_as_cifar(real_data):
    if not (real_data / "tiny_imagenet.npz").is_file():
        pytest.skip(f"no tiny_imagenet.npz in {real_data}")
    shown = load_ood("tiny_imagenet", info("cifar10"), root=real_data)
    x, _ = shown.__getitems__(range(500))
    assert x.shape == (500, 3, 32, 32)
    # Photographs seen with the normalisation of other photographs: about centred, about unit deviation
    assert x.mean().abs() < 0.3
    assert 0.9 < x.std() < 1.5
