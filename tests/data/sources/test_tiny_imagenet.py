import pytest

from ddu.data import FolderDataset, info, load
from ddu.errors import DataError


@pytest.fixture
def root(tmp_path, write_images):
    """Three classes, not in the order of their numbers, with two images to train and four to validate."""
    folder = tmp_path / "tiny-imagenet-200"
    for wnid in ("n03", "n01", "n02"):
        write_images(folder / "train" / wnid / "images", 2, size=(64, 64), end=".JPEG")
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("image_0.JPEG\t0\t0\t9\t9\n")
    write_images(folder / "val" / "images", 4, size=(64, 64), end=".JPEG")
    rows = [f"image_{index}.JPEG\t{wnid}\t0\t0\t9\t9\n" for index, wnid in enumerate(["n02", "n03", "n03", "n01"])]
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "wnids.txt").write_text("n03\nn01\nn02\n")
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn03\tboa\n")
    return tmp_path


def test_classes_are_in_the_order_of_wnids_and_have_the_names_of_words(root):
    assert info("tiny_imagenet", root=root).classes == ("boa", "goldfish, Carassius auratus", "n02")


def test_training_images_are_labelled_by_their_folders(root):
    dataset = load("tiny_imagenet", root=root)
    assert isinstance(dataset, FolderDataset)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.inputs[2].endswith("train/n01/images/image_0.JPEG")
    assert dataset[0][0].shape == (3, 64, 64)


def test_the_test_split_is_the_validation_images_with_their_annotations(root):
    dataset = load("tiny_imagenet", "test", root=root)
    assert dataset.labels.tolist() == [2, 0, 0, 1]
    assert dataset.inputs[3].endswith("val/images/image_3.JPEG")


def test_it_is_shown_at_the_size_of_cifar(root):
    assert load("tiny_imagenet", "test", root=root).like(info("cifar10"))[0][0].shape == (3, 32, 32)


def test_an_annotated_image_that_is_missing_is_named(root):
    path = root / "tiny-imagenet-200" / "val" / "images" / "image_2.JPEG"
    path.unlink()
    with pytest.raises(DataError) as caught:
        load("tiny_imagenet", "test", root=root)
    assert str(caught.value) == f"{path} is missing: val_annotations.txt names it."


@pytest.mark.parametrize(
    ("annotations", "complaint"),
    [
        ("image_0.JPEG\tn99\t0\t0\t9\t9\n", "gives image_0.JPEG the class n99, which wnids.txt has not."),
        ("image_0.JPEG\tn02\t0\t0\t9\t9\nimage_1.JP", "is not whole: it has a line with less than two columns."),
    ],
)
def test_annotations_of_an_unknown_class_or_cut_off_are_named(root, annotations, complaint):
    path = root / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    path.write_text(annotations)
    with pytest.raises(DataError) as caught:
        load("tiny_imagenet", "test", root=root)
    assert str(caught.value) == f"{path} {complaint}"


def test_a_class_without_images_is_named(root):
    folder = root / "tiny-imagenet-200" / "train" / "n01" / "images"
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(DataError) as caught:
        load("tiny_imagenet", root=root)
    assert str(caught.value) == f"The class 'n01' is empty: there is no image in {folder}."


def test_what_is_missing_is_listed(tmp_path):
    with pytest.raises(DataError) as caught:
        load("tiny_imagenet", "test", root=tmp_path)
    assert str(caught.value) == (
        f"tiny_imagenet is not in {tmp_path}: there is no tiny-imagenet-200/wnids.txt, no tiny-imagenet-200/words.txt, "
        "no tiny-imagenet-200/val/val_annotations.txt, no tiny-imagenet-200/val/images, and no tiny_imagenet.npz. Get "
        "it with `ddu data fetch tiny_imagenet`. If it is elsewhere, say where with --data-root or DDU_DATA."
    )
