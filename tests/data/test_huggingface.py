import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from ddu.data import HuggingFaceDataset, from_huggingface, info, loader
from ddu.errors import InputError, LabelError

ARRAYS = np.random.default_rng(0).integers(0, 256, (4, 9, 9, 3), dtype=np.uint8)
IMAGES = [Image.fromarray(array) for array in ARRAYS]
PETS = datasets.ClassLabel(names=["cat", "dog", "eel"])


def pets(**columns) -> datasets.Dataset:
    features = datasets.Features({"image": datasets.Image(), "label": PETS})
    return datasets.Dataset.from_dict({"image": IMAGES, "label": [0, 2, 1, 2]} | columns, features=features)


def test_images_and_labels_are_those_of_the_data_set():
    dataset = from_huggingface(pets())
    assert isinstance(dataset, HuggingFaceDataset)
    assert dataset.info.classes == ("cat", "dog", "eel")
    assert dataset.info.shape == (3, 9, 9)
    assert dataset.labels.tolist() == [0, 2, 1, 2]
    x, y = dataset.__getitems__([3, 1])
    expected = ((ARRAYS[[3, 1]] / 255 - dataset.info.mean) / dataset.info.std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert y.tolist() == [2, 2]


def test_columns_may_have_other_names_and_labels_any_values():
    source = datasets.Dataset.from_dict({"picture": IMAGES, "kind": ["dog", "cat", "dog", "cat"]})
    dataset = from_huggingface(source, image="picture", label="kind")
    assert dataset.info.classes == ("cat", "dog")
    assert dataset.labels.tolist() == [1, 0, 1, 0]


def test_arrays_are_images_too():
    source = datasets.Dataset.from_dict({"image": ARRAYS[..., 0], "label": [7, 5, 7, 5]})
    dataset = from_huggingface(source)
    assert dataset.info.shape == (1, 9, 9)
    assert dataset.info.classes == ("5", "7")
    x, _ = dataset[2]
    np.testing.assert_allclose(
        x[0].numpy(), (ARRAYS[2, ..., 0] / 255 - dataset.info.mean[0]) / dataset.info.std[0], rtol=1e-5, atol=1e-5
    )


def test_a_subset_of_selected_rows_like_another_set_is_read_in_batches():
    dataset = from_huggingface(pets().select([3, 2, 1])).subset([2, 0]).like(info("mnist"))
    ((x, y),) = list(loader(dataset, 8))
    assert x.shape == (2, 1, 28, 28)
    assert y.tolist() == [2, 2]
    direct = from_huggingface(pets()).like(info("mnist")).__getitems__([1, 3])[0]
    assert torch.equal(x, direct)


def test_a_split_without_labels_is_refused():
    with pytest.raises(LabelError) as caught:
        from_huggingface(pets(label=[-1, -1, -1, 0]))
    assert str(caught.value) == "3 of the 4 labels are -1, so this split has none."


def test_a_dictionary_of_splits_is_refused():
    with pytest.raises(InputError) as caught:
        from_huggingface(datasets.DatasetDict({"train": pets(), "test": pets()}))
    assert str(caught.value) == "This is a dictionary of the splits 'train', 'test': give one of them."


def test_a_stream_is_refused():
    with pytest.raises(InputError) as caught:
        from_huggingface(pets().to_iterable_dataset())
    assert str(caught.value) == "A data set that is streamed has no length and no order: load it with streaming=False."


def test_a_column_that_does_not_exist_is_named():
    with pytest.raises(InputError) as caught:
        from_huggingface(pets(), image="img")
    assert str(caught.value) == "There is no column 'img', only 'image', 'label'."


def test_a_column_may_say_which_samples_belong_together():
    source = datasets.Dataset.from_dict({"image": IMAGES, "label": [0, 1, 0, 1], "patient": ["B", "A", "B", "C"]})
    np.testing.assert_array_equal(from_huggingface(source, group="patient").groups, [1, 0, 1, 2])
    assert from_huggingface(source).groups is None
    with pytest.raises(InputError, match=r"^There is no column 'owner', only 'image', 'label', 'patient'\.$"):
        from_huggingface(source, group="owner")


def test_the_digest_is_that_of_the_data_set_and_the_rows():
    dataset = from_huggingface(pets())
    assert dataset.digest() == from_huggingface(pets()).digest() == dataset.subset([0, 1, 2, 3]).digest()
    others = [dataset.subset([0, 1]), dataset.subset([1, 0]), from_huggingface(pets(label=[0, 2, 1, 1]))]
    assert len({dataset.digest(), *(other.digest() for other in others)}) == 4
