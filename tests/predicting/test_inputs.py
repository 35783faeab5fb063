"""Inputs as people name them: found in order, read a chunk at a time, and a bad one is a row."""

import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from ddu.data import Preprocessing
from ddu.errors import InputError
from ddu.predicting import Inputs

IMAGES = Preprocessing((1, 12, 12), (0.5,), (0.5,))
VECTORS = Preprocessing((2,))


def read(names, preprocessing=IMAGES, columns=(), *, size=3, skip=0):
    """The names of all inputs, what they are, and what is wrong with them."""
    chunks = list(Inputs.find(names, preprocessing, columns).chunks(size, skip=skip))
    assert all(0 < len(chunk.names) <= size and len(chunk.names) == len(chunk.raw) for chunk in chunks)
    found, raw, problems = list[str](), [], dict[str, str]()
    for chunk in chunks:
        problems |= {chunk.names[place]: reason for place, reason in chunk.problems.items()}
        found += chunk.names
        raw += list(chunk.raw)
    return found, raw, problems


def test_a_folder_gives_its_images_in_order_however_deep_they_are(photos):
    names, raw, _ = read(["photos"])
    assert names == raw == photos
    assert Inputs.find(["photos"], IMAGES).strangers == 2
    assert Inputs.find(["photos"], IMAGES).__length_hint__() == 7


def test_files_globs_and_folders_come_in_the_order_they_are_named_and_once(photos):
    names, _, _ = read([photos[5], "photos/a/*.png", "photos"])
    assert names == [photos[5], *photos[:3], *[name for name in photos[3:] if name != photos[5]]]
    assert read(["photos/**/*.png"])[0] == photos


def test_a_file_whose_name_looks_like_a_glob_is_a_file(photos):
    Path("odd[1].png").write_bytes(Path(photos[0]).read_bytes())
    assert read(["odd[1].png"])[0] == ["odd[1].png"]


@pytest.mark.parametrize(
    ("names", "preprocessing", "columns", "message"),
    [
        (["*.tif"], IMAGES, (), "No file matches '*.tif': check the working folder, and quotes."),
        (["empty"], IMAGES, (), "There is no image in the folder empty, nor below it: .png, "),
        (["photos/a/1.png"], VECTORS, (), "the network takes vectors of 2 numbers: give files that end in .npy, "),
        (["two.csv"], IMAGES, (), "two.csv has the columns a, b: say which one has the paths of the images, with"),
        (["two.csv"], IMAGES, ("c",), "two.csv has no column 'c'. There are a, b."),
        (["two.csv"], IMAGES, ("a", "b"), "say which one has the paths of the images, with --columns."),
        (["three.csv"], VECTORS, (), "three.csv has 3 columns, x, y, name, and the network takes 2 numbers: choose"),
        (["three.csv"], VECTORS, ("x",), "three.csv has 1 columns, x, and the network takes 2 numbers"),
    ],
)
def test_what_names_no_inputs_is_refused_with_the_way_out(photos, names, preprocessing, columns, message):
    Path("empty").mkdir()
    Path("two.csv").write_text("a,b\n1,2\n")
    Path("three.csv").write_text("x,y,name\n1,2,k\n")
    with pytest.raises(InputError) as caught:
        Inputs.find(names, preprocessing, columns)
    assert message in str(caught.value)


def test_arrays_of_images_are_read_row_by_row_and_labels_are_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 255, (5, 12, 12, 3), dtype=np.uint8)
    np.save("grey.npy", images[..., 0])
    np.save("one.npy", images[0])
    np.savez_compressed("set.npz", x_test=images, y_test=np.arange(5), classes=np.array(["a", "b"]))
    names, raw, problems = read(["grey.npy", "one.npy", "set.npz"])
    assert names == [
        *(f"grey.npy[{i}]" for i in range(5)),
        "one.npy[0]",
        *(f"set.npz:x_test[{i}]" for i in range(5)),
    ]
    assert not problems
    np.testing.assert_array_equal(np.array(raw[:5])[..., 0], images[..., 0])
    np.testing.assert_array_equal(raw[5], images[0])
    np.testing.assert_array_equal(np.array(raw[6:]), images)


def test_arrays_of_vectors_are_read_row_by_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    points = np.arange(10.0).reshape(5, 2)
    np.save("points.npy", points)
    np.save("point.npy", points[3])
    np.savez("set.npz", x=points, y=np.arange(5))
    names, raw, _ = read(["points.npy", "point.npy", "set.npz"], VECTORS)
    assert names == [*(f"points.npy[{i}]" for i in range(5)), "point.npy[0]", *(f"set.npz:x[{i}]" for i in range(5))]
    np.testing.assert_array_equal(np.array(raw), np.concatenate([points, points[3:4], points]))


def test_a_large_array_is_mapped_and_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("large.npy", np.zeros((1000, 12, 12), np.uint8))
    chunk = next(Inputs.find(["large.npy"], IMAGES).chunks(4))
    assert isinstance(chunk.raw.base, np.memmap)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("objects.npy", "cannot be read as an array: Array can't be memory-mapped: Python objects in dtype"),
        ("short.npy", "cannot be read as an array"),
        ("labels.npz", "labels.npz has no array of images (sample, height, width, channel), only y (int64, (5,))."),
        ("broken.npz", "broken.npz is corrupt, not whole, or no .npz file"),
        ("absent.npy", "absent.npy cannot be read as an array"),
        ("absent.csv", "absent.csv cannot be read as a table"),
        ("broken.csv", "broken.csv cannot be read as a table: 'utf-8' codec can't decode"),
        ("empty.csv", "empty.csv has no header: the table is empty."),
        ("broken.parquet", "broken.parquet cannot be read as a table"),
    ],
)
def test_an_array_or_table_that_cannot_be_read_is_one_row_with_its_reason(photos, name, reason):
    np.save("objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    Path("short.npy").write_bytes(Path("objects.npy").read_bytes()[:40])
    np.savez("labels.npz", y=np.arange(5))
    for broken in ("broken.npz", "broken.csv", "broken.parquet"):
        Path(broken).write_bytes(b"\xff\xfe broken")
    Path("empty.csv").touch()
    names, _, problems = read([name, photos[0]])
    assert names == [name, photos[0]]
    assert list(problems) == [name]
    assert reason in problems[name]


def test_a_table_of_paths_has_them_relative_to_its_folder_and_names_them_as_written(photos):
    Path("photos/list.csv").write_text(f"id,path\n1,a/1.png\n\n2,\n3,{os.path.abspath(photos[1])}\n")
    names, raw, problems = read(["photos/list.csv"])
    assert names == ["a/1.png", "photos/list.csv:4", os.path.abspath(photos[1])]
    assert raw[0] == "photos/a/1.png"
    assert raw[2] == os.path.abspath(photos[1])
    assert problems == {"photos/list.csv:4": "there is no path in this row"}


def test_columns_choose_and_order_the_numbers_of_vectors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("points.csv").write_text('\ufeffname,y,x\nfirst,1,2\nsecond,,4\n"third, quoted",six,7\nshort\n')
    names, raw, problems = read(["points.csv"], VECTORS, ("x", "y"), size=2)
    assert names == [f"points.csv:{line}" for line in (2, 3, 4, 5)]
    np.testing.assert_array_equal(np.array([raw[0], raw[1], raw[3]]), [[2, 1], [4, np.nan], [np.nan, np.nan]])
    assert problems == {"points.csv:4": "it has 'six' in the place of a number"}


def test_parquet_is_read_like_csv(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = {"x": [1.5, None, 3.0], "y": [1, 2, 3], "name": ["a", "b", "c"]}
    pyarrow.parquet.write_table(pyarrow.table(table), "points.parquet")
    names, raw, problems = read(["points.parquet"], VECTORS, ("y", "x"))
    assert names == [f"points.parquet:{row}" for row in (1, 2, 3)]
    np.testing.assert_array_equal(np.array(raw), [[1, 1.5], [2, np.nan], [3, 3]])
    assert not problems
    assert read(["points.parquet"], IMAGES, ("name",))[:2] == (["a", "b", "c"], ["a", "b", "c"])


def test_a_table_that_breaks_off_keeps_the_rows_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("points.csv").write_bytes(b"x,y\n1,2\n3,4\n" + b"5,6\n" * 5000 + b"\xff\xfe\n")
    names, raw, problems = read(["points.csv"], VECTORS, size=7)
    assert names[:2] == ["points.csv:2", "points.csv:3"]
    assert names[-1] == "points.csv"
    assert raw[-1] is None
    assert list(problems) == ["points.csv"]


@pytest.mark.parametrize("skip", range(17))
def test_skipping_leaves_out_exactly_the_first_ones(photos, skip):
    np.save("grey.npy", np.zeros((5, 12, 12), np.uint8))
    Path("list.csv").write_text("path\nphotos/a/1.png\n \nphotos/a/3.png\nphotos/a/5.png\n")
    everything, raw, problems = read(["list.csv", "photos", "grey.npy"])
    names, later, left = read(["list.csv", "photos", "grey.npy"], skip=skip)
    assert len(everything) == 16
    assert names == everything[skip:]
    assert [str(one) for one in later] == [str(one) for one in raw[skip:]]
    assert left == {name: reason for name, reason in problems.items() if name in names}


def test_the_digest_changes_with_names_order_columns_and_the_state_of_tables(photos):
    Path("points.csv").write_text("x,y\n1,2\n")
    digests = [
        Inputs.find(["photos"], IMAGES).digest(),
        Inputs.find(["photos/b", "photos/a"], IMAGES).digest(),
        Inputs.find(["photos/b"], IMAGES).digest(),
        Inputs.find(["points.csv"], VECTORS).digest(),
        Inputs.find(["points.csv"], VECTORS, ("y", "x")).digest(),
    ]
    Path("points.csv").write_text("x,y\n1,2\n3,4\n")
    digests.append(Inputs.find(["points.csv"], VECTORS).digest())
    assert len(set(digests)) == len(digests)
    assert Inputs.find(["photos"], IMAGES).digest() == digests[0]
