import hashlib

import numpy as np

from ddu.data.corruptions._files import file_digest, write_array


def test_an_array_written_in_parts_is_numpys_file(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (7, 4, 3), dtype=np.uint8)
    digest = write_array(tmp_path / "parts.npy", array.shape, (array[:3], array[3:6], array[6:]))
    np.save(tmp_path / "whole.npy", array)
    assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert digest == file_digest(tmp_path / "parts.npy")
    assert digest == hashlib.sha256((tmp_path / "whole.npy").read_bytes()).hexdigest()
