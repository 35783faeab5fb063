"""An exported folder: its graph alone judges as the detector, for batches of any size; it is written whole or not."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import ddu
from ddu.errors import ExportError, InputError
from ddu.export import GRAPH, PROGRAM, VERDICTS, Graph
from tests.small_networks import CLASSES, PREPROCESSING, SHAPE, draw_images

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained

DOCS = Path(__file__).parents[2] / "docs" / "exporting.md"


@pytest.fixture(scope="module")
def session(exported):
    return onnxruntime.InferenceSession(exported / GRAPH)


def pixels(count: int) -> np.ndarray:
    images = torch.cat([draw_images(count, seed=7)[0], torch.randint(0, 256, (count, 12, 12)).byte()])
    return images[torch.randperm(len(images))[:count], :, :, None].numpy()


@pytest.mark.parametrize("count", [1, 7, 64])
def test_the_graph_judges_batches_of_any_size_as_the_detector(session, detector, count):
    batch = pixels(count)
    names = ["probs", "label", "epistemic", "p_value", "candidates", "verdict"]
    found = dict(zip(names, session.run(names, {"pixels": batch}), strict=True))
    known = detector.predict(PREPROCESSING(batch))
    spread = float(detector.calibration.held_out.epistemic.std())
    assert_close(torch.from_numpy(found["epistemic"]), known.epistemic, rtol=1e-4, atol=1e-4 * spread)
    assert_close(torch.from_numpy(found["probs"]), known.probs, rtol=0, atol=1e-5)
    assert_close(torch.from_numpy(found["p_value"]), known.p_value, rtol=0, atol=2 / 240)
    assert found["label"].tolist() == known.label.tolist()
    assert found["candidates"].tolist() == known.candidates.tolist()
    assert [VERDICTS[code] for code in found["verdict"]] == list(known.verdict)


def test_thresholds_are_inputs_that_need_not_be_given(session, detector):
    batch = pixels(64)
    known = detector.predict(PREPROCESSING(batch))
    assert [one.name for one in session.get_inputs()] == ["pixels"]
    assert [one.name for one in session.get_overridable_initializers()] == ["false_alarm_rate", "entropy_threshold"]
    for rate in (0.02, 0.4):
        (codes,) = session.run(["verdict"], {"pixels": batch, "false_alarm_rate": np.array(rate)})
        assert ((codes == VERDICTS.index("out_of_distribution")) == (known.p_value <= rate).numpy()).all()
    nothing = {"false_alarm_rate": np.array(0.0), "entropy_threshold": np.array(0.2)}
    (codes,) = session.run(["verdict"], {"pixels": batch} | nothing)
    assert ((codes == VERDICTS.index("ambiguous")) == (known.aleatoric > 0.2).numpy()).all()


def test_the_graph_says_what_it_is(session, detector, exported):
    metadata = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
    assert metadata["class_names"] == list(CLASSES)
    assert metadata["verdicts"] == list(VERDICTS)
    assert metadata["false_alarm_rate"] == 0.05
    assert metadata["entropy_threshold"] == detector.entropy_threshold
    assert metadata["calibration"]["coverage"] == 0.95
    assert metadata["parts"] == detector.part_names
    assert metadata["preprocessing"]["shape"] == list(SHAPE)
    assert metadata["fingerprint"] == detector._fingerprint
    assert metadata["versions"]["ddu"] == ddu.__version__
    assert session.get_inputs()[0].shape == ["batch", 12, 12, 1]
    assert session.get_inputs()[0].type == "tensor(uint8)"
    assert {one.shape[0] for one in session.get_outputs()} == {"batch"}


def test_no_path_of_this_machine_is_in_any_file(exported):
    here = str(Path(ddu.__file__).parent).encode()
    for file in exported.rglob("*"):
        assert not file.is_file() or here not in file.read_bytes(), file.name


def test_the_card_says_what_it_was_trained_calibrated_and_checked_on(exported):
    card = (exported / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: ddu\n")
    for words in ("# Sequential on ramps, with ddu", "Data: ramps", "thresholds: 240", "rate: 0.05", "| far out | "):
        assert words in card
    assert "covers 12 x 12, and take the middle 12 x 12" in card


@pytest.mark.parametrize("count", [1, 7])
def test_the_program_of_torch_export_judges_alike(exported, session, count):
    program = torch.export.load(exported / PROGRAM).module()
    batch = pixels(count)
    rate, threshold = (torch.tensor(value, dtype=torch.float64) for value in (0.05, 0.1))
    found = program({"pixels": torch.from_numpy(batch)}, rate, threshold)
    names = list(found)
    known = session.run(names, {"pixels": batch, "entropy_threshold": np.array(0.1)})
    for name, value in zip(names, known, strict=True):
        assert_close(found[name], torch.from_numpy(value), rtol=1e-4, atol=1e-4)


def tampered(data: bytes, which: str | tuple[int, ...], factor: float) -> bytes:
    """A graph in which the initializers of a name or a shape are larger by a factor."""
    model = onnx.load_from_string(data)
    changed = [one for one in model.graph.initializer if which in (one.name, tuple(one.dims))]
    assert changed
    for one in changed:
        array = onnx.numpy_helper.to_array(one)
        one.CopyFrom(onnx.numpy_helper.from_array((array * factor).astype(array.dtype), one.name))
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("which", "factor", "words"),
    [
        ("network.0.weight", 1.001, "the score of input"),
        ("score.centre", 1.01, "the score of input"),
        ((2, 9, 9), 1.001, "the score of input"),  # the whitening of one layer
        ("false_alarm_rate", 20, "the verdict of input"),
        ("entropy_threshold", 0.01, "the verdict of input"),
        ((16, 16), 1.2, "the p-value of input"),  # the held-out scores
    ],
)
def test_a_graph_that_disagrees_is_not_written(detector, exported, tmp_path, monkeypatch, which, factor, words):
    wrong = tampered((exported / GRAPH).read_bytes(), which, factor)
    monkeypatch.setattr(Graph, "program", lambda self: None)
    monkeypatch.setattr(Graph, "onnx", lambda self, program, metadata: wrong)
    with pytest.raises(ExportError, match=f"{words}.* Nothing was written"):
        detector.export(tmp_path / "bundle", draw_images(40, seed=3)[0].numpy(), preprocessing=PREPROCESSING)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(detector, exported, tmp_path, monkeypatch):
    monkeypatch.setattr(Graph, "program", lambda self: None)  # which cannot be saved
    monkeypatch.setattr(Graph, "onnx", lambda self, program, metadata: (exported / GRAPH).read_bytes())
    with pytest.raises(Exception, match="None"):
        detector.export(tmp_path / "bundle", preprocessing=PREPROCESSING)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_left_alone(detector, exported, tmp_path, monkeypatch):
    monkeypatch.setattr(Graph, "program", lambda self: pytest.fail("found too late"))
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds files already: choose another folder"):
        detector.export(tmp_path, preprocessing=PREPROCESSING)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_export_needs_the_shape_of_its_inputs(detector, tmp_path):
    with pytest.raises(InputError, match=r"give some, detector\.export"):
        detector.export(tmp_path / "bundle")
    with pytest.raises(InputError, match=r"at least 2 inputs, the same number of each\. Got 1 of 'input'"):
        detector.export(tmp_path / "bundle", torch.zeros(1, *SHAPE))


class DependsOnData(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x) if bool(x.sum() > 0) else -self.linear(x)


def test_a_network_that_torch_cannot_follow_is_refused_in_one_line(tmp_path):
    x, y = torch.randn(300, 4), torch.arange(300) % 2
    detector = ddu.DDU.paper(DependsOnData()).fit([(x[:150], y[:150])]).calibrate([(x[150:], y[150:])], 0.05)
    with pytest.raises(ExportError, match=r"The DependsOnData cannot be exported: torch\.export says"):
        detector.export(tmp_path / "bundle", x[:8])
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_docs_needs_neither_ddu_nor_torch(exported, tmp_path):
    from PIL import Image

    Image.fromarray(draw_images(1, seed=7)[0][0].numpy()).resize((40, 30)).save(tmp_path / "photo.png")
    example = DOCS.read_text().split("<!-- alone -->")[1].split("```python\n")[1].split("```")[0]
    blocked = "import sys\nsys.modules['torch'] = sys.modules['ddu'] = None\n"
    script = blocked + example.replace('"bundle/', f'"{exported}/')
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, _, verdict = done.stdout.split()[:3]
    assert name in CLASSES
    assert verdict in VERDICTS
