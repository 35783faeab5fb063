"""A bundle judges as the detector that it was exported from, from its folder or from a hub."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ddu.bundles import Bundle, open_bundle
from ddu.errors import ArtifactError, InputError
from ddu.export import BUNDLE, GRAPH
from ddu.sources import open_source
from tests.export.conftest import detector as detector
from tests.export.conftest import exported as exported
from tests.small_networks import CLASSES, PREPROCESSING, draw_images, make_network

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained


@pytest.fixture
def bundle(exported) -> Bundle:
    return Bundle(exported, threads=1)


def test_a_bundle_judges_raw_images_as_the_detector(bundle, detector):
    images = torch.cat([draw_images(80, seed=4)[0], torch.randint(0, 256, (20, 12, 12)).byte()]).numpy()
    found, known = bundle.predict(images), detector.predict(PREPROCESSING(images))
    assert list(found.verdict) == list(known.verdict)
    assert len(set(known.verdict)) == 3
    assert_close(found.probs, known.probs, rtol=0, atol=1e-5)
    assert_close(found.epistemic, known.epistemic, rtol=1e-4, atol=1e-3)
    assert list(found.parts) == list(known.parts)
    assert found.class_names == CLASSES
    assert found.least_p_value == known.least_p_value
    assert found.to_dict().keys() == known.to_dict().keys()
    one = bundle.judge(torch.cat([bundle.prepare(images[3:4]), bundle.prepare(images[5:6])]))
    assert_close(one.epistemic, found.epistemic[[3, 5]], rtol=1e-5, atol=1e-5)


def test_a_bundle_has_the_scores_that_drift_is_measured_against(bundle, detector):
    assert torch.equal(bundle.held_out_scores, detector.calibration.held_out.epistemic)
    assert bundle.calibration == detector.calibration


def test_an_image_file_is_scaled_as_the_preprocessing_says(bundle, detector, tmp_path):
    from PIL import Image

    file = tmp_path / "ramp.png"
    Image.fromarray(draw_images(1, seed=4)[0][0].numpy()).resize((50, 40)).save(file)
    assert_close(bundle.predict(file).probs, detector.predict(PREPROCESSING(file)).probs, rtol=0, atol=1e-5)
    floats = np.array(Image.open(file), np.float32) / 255
    assert_close(bundle.predict(floats).probs, detector.predict(PREPROCESSING(floats)).probs, rtol=0, atol=0.02)


def test_a_bundle_is_a_source(exported, detector):
    source = open_source(exported)
    assert isinstance(source, Bundle)
    assert source.description["kind"] == "bundle"
    assert source.description["data"] == "ramps"
    assert source.class_names == CLASSES
    assert source.preprocessing == PREPROCESSING
    assert re.fullmatch("[0-9a-f]{12}", source.fingerprint)
    assert open_bundle(exported).fingerprint == source.fingerprint


def test_rates_and_thresholds_can_be_set(bundle, detector):
    images = draw_images(60, seed=4)[0].numpy()
    known = detector.predict(PREPROCESSING(images))
    bundle.set_false_alarm_rate(0.3)
    assert bundle.false_alarm_rate == 0.3
    at_this_rate = replace(detector.calibration, false_alarm_rate=0.3)
    assert bundle.calibration.epistemic_threshold == at_this_rate.epistemic_threshold
    assert ((bundle.predict(images).verdict == "out_of_distribution") == (known.p_value <= 0.3).numpy()).all()
    bundle.entropy_threshold = None
    assert "ambiguous" not in bundle.predict(images).verdict
    for wrong in (0, 1, "much"):
        with pytest.raises(InputError, match="must be a float between 0 and 1"):
            bundle.set_false_alarm_rate(wrong)
    with pytest.raises(InputError, match=r"smallest p-value of this bundle is 0\.004149"):
        bundle.set_false_alarm_rate(0.001)


def test_the_detector_comes_back_with_its_network(bundle, detector):
    network = make_network()
    torch.nn.init.zeros_(network[0].weight)
    again = bundle.load_detector(network)
    x = PREPROCESSING(draw_images(5, seed=4)[0].numpy())
    assert again.predict(x).to_dict() == detector.predict(x).to_dict()


def test_inputs_that_the_graph_does_not_take_are_refused_in_words(bundle):
    with pytest.raises(InputError, match="This bundle takes pixels, arrays or tensors"):
        bundle.judge({"pictures": np.zeros((1, 12, 12, 1), np.uint8)})
    with pytest.raises(InputError, match=r"takes uint8\. Got float32 instead"):
        bundle.judge(torch.zeros(1, 12, 12, 1))
    with pytest.raises(InputError, match="must have the shape"):
        bundle.judge(torch.zeros(12, 12, 1).byte())
    with pytest.raises(InputError, match="does not take these inputs"):
        bundle.judge(torch.zeros(1, 9, 9, 1).byte())
    with pytest.raises(InputError, match="the batch is empty"):
        bundle.judge(torch.zeros(0, 12, 12, 1).byte())


def damaged(exported: Path, folder: Path, name: str, data: bytes) -> Path:
    shutil.copytree(exported, folder)
    (folder / name).write_bytes(data)
    return folder


def test_a_folder_that_was_tampered_with_is_refused(exported, tmp_path):
    content = json.loads((exported / BUNDLE).read_text())
    graph = (exported / GRAPH).read_bytes()
    cases = {
        "its checksum differs": (GRAPH, graph[:-1] + b"x"),
        "is damaged": (BUNDLE, b"{"),
        "does not describe an exported detector": (BUNDLE, b"[]"),
        "has format version 99": (BUNDLE, json.dumps(content | {"format_version": 99}).encode()),
        "has no inputs": (BUNDLE, json.dumps({n: v for n, v in content.items() if n != "inputs"}).encode()),
    }
    for index, (words, (name, data)) in enumerate(cases.items()):
        with pytest.raises(ArtifactError, match=words):
            Bundle(damaged(exported, tmp_path / str(index), name, data))
    with pytest.raises(ArtifactError, match="There is no exported detector"):
        Bundle(tmp_path)
    digest = hashlib.sha256(b"no graph").hexdigest()
    folder = damaged(exported, tmp_path / "text", GRAPH, b"no graph")
    (folder / BUNDLE).write_text(json.dumps(content | {"files": {GRAPH: digest}}))
    with pytest.raises(ArtifactError, match="onnxruntime cannot read"):
        Bundle(folder)


# The part of the hub's protocol that an upload and a download of small files need


class Hub(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    commit = "0123456789abcdef0123456789abcdef01234567"

    @property
    def address(self) -> str:
        return f"http://{self.headers['Host']}"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, content: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "X-Repo-Commit": self.commit, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/preupload/main"):
            wanted = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None} for f in wanted]
            self._answer({"files": modes})
        elif self.path.endswith("/commit/main"):
            for line in filter(None, body.split(b"\n")):
                one = json.loads(line)
                if one["key"] == "file":
                    self.files[one["value"]["path"]] = base64.b64decode(one["value"]["content"])
            self._answer(
                {
                    "commitUrl": f"{self.address}/me/ramps/commit/{self.commit}",
                    "commitOid": self.commit,
                    "success": True,
                }
            )
        else:
            self._answer({"url": f"{self.address}/me/ramps", "id": "me/ramps", "name": "me/ramps"})

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if "/resolve/" in path:
            data = self.files.get(path.split("/resolve/")[1].split("/", 1)[1])
            if data is None:
                self._answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            else:
                self._answer(data, headers={"ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
        elif "/tree/" in path:
            self._answer(
                [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in self.files.items()]
            )
        else:
            siblings = [{"rfilename": name} for name in self.files]
            self._answer(
                {"id": "me/ramps", "modelId": "me/ramps", "sha": self.commit, "siblings": siblings, "tags": []}
            )

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, bytes]]]:
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OwnHub", (Hub,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    thread.join()
    server.server_close()


SCRIPT = """
import sys
import numpy as np
from ddu.bundles import Bundle, from_hub

print(Bundle(sys.argv[1]).push_to_hub("me/ramps"))
again = from_hub("me/ramps")
assert str(again.folder) != sys.argv[1]
print(again.predict(np.zeros((12, 12), np.uint8)).verdict[0])
"""


@pytest.mark.slow
def test_a_bundle_goes_to_a_hub_and_comes_back(exported, hub, tmp_path, bundle):
    endpoint, files = hub
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"), "")
    environment = (
        os.environ
        | proxies
        | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_none", "NO_PROXY": "*"}
    )
    environment |= {
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(exported)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    address, verdict = done.stdout.split()[-2:]
    assert address.endswith(f"/commit/{Hub.commit}")
    assert verdict == bundle.predict(np.zeros((12, 12), np.uint8)).verdict[0]
    there = {path.relative_to(exported).as_posix(): path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    assert files == there
    assert {"README.md", "model.onnx", "model.safetensors", "bundle.json"} <= files.keys()
