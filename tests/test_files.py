"""Files that are whole or not there at all."""

import importlib.metadata
import json

import pytest

from ddu.files import holds_files, versions, whole_file, write_json


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


def test_what_a_killed_process_leaves_behind_is_nobodys_file(tmp_path):
    assert not holds_files(tmp_path / "nowhere")
    with whole_file(tmp_path / "config.json") as file:
        file.write(b"half")
        assert len(list(tmp_path.iterdir())) == 1
        assert not holds_files(tmp_path)
    assert holds_files(tmp_path)


def test_json_is_readable_and_ends_with_a_line(tmp_path):
    write_json(tmp_path / "content.json", {"a": [1, None]})
    text = (tmp_path / "content.json").read_text()
    assert json.loads(text) == {"a": [1, None]}
    assert text.endswith("}\n")


def test_versions_are_those_installed_and_leave_out_what_is_not():
    found = versions("pytest", "no-such-package")
    assert found["pytest"] == importlib.metadata.version("pytest")
    assert list(found) == ["ddu", "python", "torch", "numpy", "pytest"]
