import io

import numpy as np
import pytest

from ddu.data._arrays import save_arrays

ARRAYS = {"images": np.arange(12, dtype=np.uint8).reshape(2, 2, 3), "file": np.array(["ant", "bee"])}


@pytest.mark.parametrize("compressed", [False, True])
def test_numpy_reads_what_was_written_whatever_its_name(compressed: bool) -> None:
    content = io.BytesIO()
    save_arrays(content, ARRAYS, compressed=compressed)
    content.seek(0)
    with np.load(content) as read:
        assert read.files == ["images", "file"]
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(read[name], array)
            assert read[name].dtype == array.dtype


def test_compression_makes_a_file_smaller() -> None:
    sizes = []
    for compressed in (False, True):
        save_arrays(content := io.BytesIO(), {"zeros": np.zeros(10_000)}, compressed=compressed)
        sizes.append(len(content.getvalue()))
    assert sizes[1] < sizes[0] / 10


def test_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        save_arrays(io.BytesIO(), {"objects": np.array([object()])})
