import hashlib

import numpy as np
import pytest

from ddu.data.corruptions._files import file_digest, whole_file, write_array


def test_an_array_written_in_parts_is_numpys_file(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (7, 4, 3), dtype=np.uint8)
    digest = write_array(tmp_path / "parts.npy", array.shape, (array[:3], array[3:6], array[6:]))
    np.save(tmp_path / "whole.npy", array)
    assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert digest == file_digest(tmp_path / "parts.npy")
    assert digest == hashlib.sha256((tmp_path / "whole.npy").read_bytes()).hexdigest()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_file_leaves_the_old_one_and_nothing_else(tmp_path, interruption):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half():
        with whole_file(path) as file:
            file.write(b"ne")
            raise interruption

    with pytest.raises(interruption):
        write_half()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    (tmp_path / ".file.12345.tmp").write_bytes(b"half")
    (tmp_path / ".other.12345.tmp").write_bytes(b"half")
    with whole_file(tmp_path / "file") as file:
        file.write(b"new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".other.12345.tmp", "file"]
