"""`ddu evaluate` as a user meets it."""

import pytest


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("fitted", "source.json", "a detector of `ddu fit`"),
        ("saved", "detector.safetensors", "a detector alone"),
        ("bundle", "model.onnx", "an exported bundle"),
        ("my_models:make", None, "a network"),
    ],
)
def test_only_runs_are_evaluated_and_others_are_told_who_takes_them(command, tmp_path, monkeypatch, name, file, words):
    monkeypatch.chdir(tmp_path)
    if file is not None:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    code, _, said = command("evaluate", name, "--ood", "noise")
    assert code == 1
    assert said == (
        f"{name} is {words}, and a run of `ddu train` is needed: it alone knows its test set and how it was trained. "
        f"Ask `ddu report` or `ddu doctor` about {name}, with --data.\n"
    )
