import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from ddu.data import FolderDataset, info, list_splits, load, load_ood, load_parts, loader
from ddu.errors import DataError, DataWarning, InputError


@pytest.fixture
def flat(tmp_path, write_images):
    """Two classes without splits: three cats and two dogs of 6 x 6 pixels."""
    write_images(tmp_path / "pets" / "cat", 3)
    write_images(tmp_path / "pets" / "dog", 2)
    return tmp_path / "pets"


@pytest.fixture
def parts(tmp_path, write_images):
    """Two classes with train and val."""
    for part, count in (("train", 3), ("val", 2)):
        for name in ("cat", "dog"):
            write_images(tmp_path / "pets" / part / name, count)
    return tmp_path / "pets"


def red(dataset: FolderDataset, rows: list[int]) -> list[int]:
    """The red of each image, which tells the images of a class apart."""
    x, _ = dataset.__getitems__(rows)
    return (255 * (x[:, 0, 0, 0] * dataset.info.std[0] + dataset.info.mean[0])).round().int().tolist()


def test_every_subfolder_is_a_class(flat):
    dataset = load(f"folder:{flat}")
    assert isinstance(dataset, FolderDataset)
    assert dataset.info.classes == ("cat", "dog")
    assert dataset.info.shape == (3, 6, 6)
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1]
    assert red(dataset, [0, 1, 2, 3, 4]) == [0, 1, 2, 0, 1]
    assert dataset.info == info(f"folder:{flat}")


def test_a_folder_without_splits_is_the_training_split(flat):
    assert list_splits(f"folder:{flat}") == ("train",)
    with pytest.raises(InputError) as caught:
        load(f"folder:{flat}", "test")
    assert str(caught.value) == (
        f"folder:{flat} ({flat}) has no split 'test', only 'train'. Splits are subfolders, train and test (or val), "
        "with the classes in each."
    )


def test_val_is_the_test_split_where_there_is_no_test(parts):
    assert list_splits(f"folder:{parts}") == ("train", "test")
    assert load(f"folder:{parts}").labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert load(f"folder:{parts}", "test").labels.tolist() == [0, 0, 1, 1]


def test_val_is_a_split_of_its_own_beside_test(parts):
    shutil.copytree(parts / "val", parts / "test")
    (parts / "test" / "cat" / "image_0.png").unlink()
    assert list_splits(f"folder:{parts}") == ("train", "val", "test")
    assert len(load(f"folder:{parts}", "val")) == 4
    assert len(load(f"folder:{parts}", "test")) == 3


def test_a_class_may_be_called_train(tmp_path, write_images):
    for name in ("bus", "train"):
        write_images(tmp_path / name, 1)
    assert load(f"folder:{tmp_path}").info.classes == ("bus", "train")


def test_images_below_a_class_folder_belong_to_the_class(flat, write_images):
    write_images(flat / "dog" / "puppies", 2)
    assert load(f"folder:{flat}").labels.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_a_subset_and_another_size_are_taken_lazily(flat):
    grey = info("mnist")
    dataset = load(f"folder:{flat}").subset([4, 0, 2]).like(grey)
    assert isinstance(dataset, FolderDataset)
    (flat / "cat" / "image_1.png").unlink()
    x, y = dataset.__getitems__([0, 1, 2])
    assert x.shape == (3, 1, 28, 28)
    assert y.tolist() == [1, 0, 0]
    # One colour all over stays that colour, by its luma
    luma = np.array([[1, 10, 20], [0, 10, 20], [2, 10, 20]]) @ [0.299, 0.587, 0.114]
    expected = (torch.tensor(luma.round() / 255).float() - grey.mean[0]) / grey.std[0]
    torch.testing.assert_close(x, expected[:, None, None, None].expand_as(x))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_every_image_once(flat, workers):
    batches = list(loader(load(f"folder:{flat}"), 2, workers=workers))
    assert torch.cat([y for _, y in batches]).tolist() == [0, 0, 0, 1, 1]
    assert all(x.shape[1:] == (3, 6, 6) for x, _ in batches)


def test_a_set_can_be_sent_to_another_process(flat):
    dataset = load(f"folder:{flat}").subset([1, 2])
    copied = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copied.__getitems__([0, 1])[0], dataset.__getitems__([0, 1])[0])


@pytest.mark.parametrize(
    ("sizes", "mode", "shape"),
    [
        ([(6, 9), (6, 9)], "RGB", (3, 6, 9)),
        ([(6, 9), (6, 9)], "L", (1, 6, 9)),
        ([(6, 9), (9, 6)], "RGB", (3, 224, 224)),
        ([(97, 97), (97, 97)], "L", (1, 224, 224)),
    ],
)
def test_small_images_of_one_size_keep_it_and_grey_ones_stay_grey(tmp_path, write_images, sizes, mode, shape):
    for name, size in zip("ab", sizes, strict=True):
        write_images(tmp_path / name, 1, size=size, mode=mode)
    dataset = load(f"folder:{tmp_path}")
    assert dataset[0][0].shape == dataset.info.shape == shape


@pytest.mark.parametrize("end", [".png", ".jpg", ".JPEG", ".bmp", ".gif", ".webp", ".tif", ".ppm"])
def test_every_usual_format_is_read(tmp_path, write_images, end):
    write_images(tmp_path / "only", 1, end=end)
    x, _ = load(f"folder:{tmp_path}")[0]
    black = load(f"folder:{tmp_path}").info
    expected = (torch.tensor([0, 10, 20]) / 255 - torch.tensor(black.mean)) / torch.tensor(black.std)
    torch.testing.assert_close(x[:, 0, 0], expected, atol=0.05, rtol=0)  # some formats compress with loss


def test_files_that_are_no_images_are_left_out_and_named(flat):
    strangers = [flat / "cat" / "notes.txt", flat / "dog" / "Thumbs.db"]
    for path in (*strangers, flat / "dog" / ".hidden", flat / "README.md"):
        path.touch()
    with pytest.warns(DataWarning) as caught:
        dataset = load(f"folder:{flat}")
    assert [str(warning.message) for warning in caught] == [
        f"Left out 2 of the files, which are no images: {strangers[0]}, {strangers[1]}"
    ]
    assert len(dataset) == 5


def test_files_that_are_no_images_are_named_once_however_the_set_is_read(flat):
    (flat / "cat" / "notes.txt").touch()
    for read in (load, info, lambda name: load_ood(name, info("mnist"))):
        with pytest.warns(DataWarning) as caught:
            read(f"folder:{flat}")
        assert len(caught) == 1


def test_an_empty_class_is_named(flat):
    (flat / "eel").mkdir()
    with pytest.raises(DataError) as caught:
        load(f"folder:{flat}")
    assert str(caught.value) == f"The class 'eel' is empty: there is no image in {flat / 'eel'}."


def test_a_class_that_is_missing_in_a_split_is_named(parts, write_images):
    write_images(parts / "train" / "eel", 1)
    with pytest.raises(DataError) as caught:
        load(f"folder:{parts}", "test")
    assert str(caught.value) == f"{parts / 'val'} has no folder for the class 'eel', and {parts / 'train'} has one."


def test_a_class_that_is_in_the_test_split_only_is_named(parts, write_images):
    write_images(parts / "val" / "eel", 1)
    with pytest.raises(DataError) as caught:
        load(f"folder:{parts}", "test")
    assert str(caught.value) == f"{parts / 'val'} has a folder 'eel', and {parts / 'train'} has no such class."


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError) as caught:
        load(f"folder:{tmp_path}/none")
    assert str(caught.value) == f"The folder {tmp_path}/none cannot be read: No such file or directory."


def test_images_outside_of_a_class_folder_are_not_a_set(tmp_path, write_images):
    write_images(tmp_path / "pets", 2)
    with pytest.raises(DataError) as caught:
        load(f"folder:{tmp_path}/pets")
    assert str(caught.value) == f"{tmp_path}/pets has no subfolders: every class needs one, with its images in it."


@pytest.mark.parametrize("damage", [lambda data: data[:-30], lambda data: b"", lambda data: b"no image at all"])
def test_a_damaged_image_is_named_when_it_is_read(flat, damage):
    path = flat / "cat" / "image_1.png"
    dataset = load(f"folder:{flat}")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        dataset.__getitems__([0, 1])
    assert str(caught.value).startswith(f"{path} cannot be read as an image: ")


def test_an_image_is_what_pillow_decodes(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    (tmp_path / "only").mkdir()
    Image.fromarray(pixels).save(tmp_path / "only" / "image.jpg", quality=60)
    dataset = load(f"folder:{tmp_path}")
    decoded = np.asarray(Image.open(tmp_path / "only" / "image.jpg")) / 255
    expected = ((decoded - dataset.info.mean) / dataset.info.std).transpose(2, 0, 1)
    np.testing.assert_allclose(dataset[0][0].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_paths_may_be_relative(parts, monkeypatch):
    monkeypatch.chdir(parts.parent)
    assert len(load("folder:pets", "test")) == 4


# Images that cannot be read


def damage(path, how=lambda content: content[: len(content) // 2]):
    path.write_bytes(how(path.read_bytes()))
    return path


def noise(size=(40, 30)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))


@pytest.fixture
def pets(tmp_path):
    """Five JPEGs of noise for each of two classes, with train and test."""
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for index in range(5):
                noise().save(tmp_path / "pets" / part / name / f"{index}.jpg")
    return tmp_path / "pets"


def test_all_images_that_cannot_be_read_are_listed_in_one_go(pets):
    first = damage(pets / "train" / "cat" / "0.jpg")  # by whose header the shape is told, too
    empty = damage(pets / "train" / "dog" / "3.jpg", lambda content: b"")
    tested = damage(pets / "test" / "dog" / "4.jpg")
    with pytest.raises(DataError) as caught:
        load_parts(f"folder:{pets}")
    message, *listed = str(caught.value).splitlines()
    assert message == (
        f"3 of the 20 images of folder:{pets} cannot be read. Repair or delete them, or leave them out with --skip-bad "
        "(skip_bad=True):"
    )
    for line, path in zip(listed, (first, empty, tested), strict=True):
        assert line.startswith(f"{path} cannot be read as an image: ")
    with pytest.raises(DataError, match=r"^2 of the 10 images of "):
        load(f"folder:{pets}")


def test_images_that_cannot_be_read_are_left_out_if_asked_for(pets):
    bad = [damage(pets / "train" / "cat" / "0.jpg"), damage(pets / "train" / "dog" / "3.jpg", lambda content: b"junk")]
    with pytest.warns(DataWarning) as caught:
        dataset = load(f"folder:{pets}", skip_bad=True)
    assert [str(warning.message) for warning in caught] == [
        f"Left out 2 of the 10 images of folder:{pets}, which cannot be read: {bad[0]}, {bad[1]}"
    ]
    assert dataset.labels.tolist() == [0] * 4 + [1] * 4
    assert len(next(iter(loader(dataset)))[1]) == 8
    assert len(load(f"folder:{pets}", "test", skip_bad=True)) == 10
    damage(pets / "test" / "cat" / "0.jpg")
    with pytest.warns(DataWarning, match=r"^Left out 1 of the 10 images of "):
        unknown = load_ood(f"folder:{pets}", info("mnist"), skip_bad=True)
    assert len(unknown) == 9


def test_a_class_of_which_no_image_can_be_read_is_named(pets):
    for path in (pets / "train" / "dog").iterdir():
        damage(path, lambda content: b"")
    with (
        pytest.warns(DataWarning, match=r"^Left out 5 of the 10 images of .*0\.jpg, .*4\.jpg$"),
        pytest.raises(DataError) as caught,
    ):
        load(f"folder:{pets}", skip_bad=True)
    assert str(caught.value) == f"Not one image of the class 'dog' of folder:{pets} can be read."
    for path in (pets / "train" / "cat").iterdir():
        damage(path, lambda content: b"")
    with pytest.raises(DataError, match=r"^10 of the 10 images of "):
        load(f"folder:{pets}")


@pytest.mark.parametrize("end", ["jpg", "png", "bmp", "gif", "webp", "tif", "ppm"])
def test_a_truncated_file_of_any_format_is_found_and_a_whole_one_is_not(tmp_path, end):
    (tmp_path / "only").mkdir()
    for name in ("a", "b"):
        noise().save(tmp_path / "only" / f"{name}.{end}")
    assert len(load(f"folder:{tmp_path}")) == 2
    damage(tmp_path / "only" / f"b.{end}")
    with pytest.raises(DataError, match=r"^1 of the 2 images of .*\n.*/b\."):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("jpg", lambda content: content + b"more"),
        ("png", lambda content: content + b"more"),
        ("png", lambda c: c[:-12]),
    ],
)
def test_what_can_be_decoded_is_not_refused_for_its_end(tmp_path, end, how):
    (tmp_path / "only").mkdir()
    noise().save(tmp_path / "only" / f"a.{end}")
    damage(tmp_path / "only" / f"a.{end}", how)
    assert load(f"folder:{tmp_path}")[0][0].shape == (3, 40, 30)


@pytest.mark.parametrize("end", ["jpg", "png"])
def test_a_whole_jpeg_or_png_is_not_decoded_to_be_checked_and_not_checked_twice(tmp_path, monkeypatch, end):
    (tmp_path / "only").mkdir()
    noise().save(tmp_path / "only" / f"a.{end}")
    opened, open_image = [], Image.open
    monkeypatch.setattr("ddu.data.sources.folder.plain", lambda image: pytest.fail("it was decoded"))
    monkeypatch.setattr(Image, "open", lambda file: opened.append(file) or open_image(file))
    for times in (2, 1, 1):  # once for the shape, and the first time once for the check
        opened.clear()
        load(f"folder:{tmp_path}")
        assert len(opened) == times


def test_a_long_list_ends_with_how_many_more_there_are(tmp_path, monkeypatch):
    (tmp_path / "only").mkdir()
    for index in range(4):
        (tmp_path / "only" / f"{index}.png").touch()
    monkeypatch.setattr("ddu.data.registry._LISTED_AT_MOST", 3)
    with pytest.raises(DataError) as caught:
        load(f"folder:{tmp_path}")
    assert len(str(caught.value).splitlines()) == 5
    assert str(caught.value).endswith("\n... and 1 more")


def test_an_image_that_is_upright_by_its_exif_is_shown_upright(tmp_path):
    pixels = np.zeros((20, 30, 3), dtype=np.uint8)
    pixels[:10] = 255  # white above, which orientation 6 turns to the right
    (tmp_path / "only").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "only" / "a.png", exif=exif)
    dataset = load(f"folder:{tmp_path}")
    assert dataset.info.shape == (3, 30, 20)
    red = dataset[0][0][0] * dataset.info.std[0] + dataset.info.mean[0]
    assert red[:, 10:].min() > 0.99
    assert red[:, :10].max() < 0.01


# Pillow writes PGM of 16 bits from integers of 32
@pytest.mark.parametrize(("end", "dtype"), [("png", np.uint16), ("tif", np.uint16), ("pgm", np.int32)])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, end, dtype):
    pixels = np.linspace(0, 65_535, 64).astype(dtype).reshape(8, 8)
    (tmp_path / "only").mkdir()
    Image.fromarray(pixels).save(tmp_path / "only" / f"a.{end}")
    dataset = load(f"folder:{tmp_path}")
    assert dataset.info.shape == (1, 8, 8)
    shown = dataset[0][0][0].numpy() * dataset.info.std[0] + dataset.info.mean[0]
    np.testing.assert_allclose(shown, pixels / 65_535, atol=0.5 / 255 + 1e-6)


def test_the_digest_is_that_of_names_sizes_and_labels(tmp_path, write_images):
    for name in ("here", "there"):
        write_images(tmp_path / name / "cat", 3)
        write_images(tmp_path / name / "dog", 2)
    here, again, there = (load(f"folder:{tmp_path / name}") for name in ("here", "here", "there"))
    digest = here.digest()
    assert digest == again.digest() == there.digest()
    assert here.subset([0, 3]).digest() == there.subset([0, 3]).digest() != digest
    assert here.subset([3, 0]).digest() != here.subset([0, 3]).digest()
    here.labels[0] = 1
    assert here.digest() != digest
    write_images(tmp_path / "there" / "dog", 1, size=(7, 60))
    assert there.digest() != digest
    (tmp_path / "here" / "cat" / "image_0.png").rename(tmp_path / "here" / "cat" / "image.png")
    assert load(f"folder:{tmp_path / 'here'}").digest() != digest
