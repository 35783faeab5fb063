"""The server over HTTP, as clients meet it."""

import base64
import json
import re
import socket
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path

import numpy as np
import pytest
import torch

from ddu.bundles import Bundle
from ddu.errors import InputError
from ddu.serving import Limits, bind, make_app
from tests.export.conftest import detector as detector
from tests.export.conftest import exported as exported
from tests.serving.servers import Client, grey_images, make_source, png, served
from tests.small_networks import draw_images

SMALL = Limits(body=200_000, pixels=1_000_000, rows=16, queue=64, seconds=1.0)


@pytest.fixture(scope="module")
def source():
    return make_source()


@pytest.fixture(scope="module")
def client(source):
    with served(source, limits=SMALL) as client:
        yield client


def expected_row(source, image: np.ndarray) -> dict:
    row = source.predict(image).to_dict()
    return {name: values[0] for name, values in row.items() if name != "log_density"}


def close_to(row: dict, expected: dict) -> bool:
    assert row.keys() == expected.keys()
    numbers = [name for name, value in expected.items() if isinstance(value, float)]
    assert [row[name] for name in numbers] == pytest.approx([expected[name] for name in numbers], rel=1e-4)
    assert row["probs"] == pytest.approx(expected["probs"], rel=1e-4)
    return all(row[name] == expected[name] for name in ("label", "verdict", "candidates"))


# What people send


def test_an_image_is_judged_however_it_is_sent(client: Client, source):
    (image,) = grey_images(1)
    file = png(image)
    text = base64.b64encode(file).decode()
    for options in (
        {"files": {"file": ("digit.png", file)}},
        {"data": file, "headers": {"content-type": "image/png"}},
        {"data": file, "headers": {"content-type": "application/octet-stream"}},
        {"json": {"inputs": image.tolist()}},
        {"json": {"inputs": (image / 255).tolist()}},
        {"json": {"image": text}},
        {"json": {"images": [f"data:image/png;base64,{text}"]}},
    ):
        answer = client.post(**options)
        assert answer.status_code == 200
        assert answer.json()["model"] == "tiny"
        (row,) = answer.json()["predictions"]
        assert close_to(row, expected_row(source, image))


def test_several_inputs_are_answered_in_their_order(client, source):
    images = grey_images(5)
    by_array = client.post(json={"inputs": images.tolist()}).json()["predictions"]
    by_file = client.post(files=[("file", (f"{i}.png", png(image))) for i, image in enumerate(images)])
    for image, row, other in zip(images, by_array, by_file.json()["predictions"], strict=True):
        assert close_to(row, expected_row(source, image))
        assert close_to(other, expected_row(source, image))


def test_one_bad_row_among_good_ones_is_invalid_and_disturbs_no_other(client, source):
    images = grey_images(3)
    rows = (images / 255).tolist()
    rows[1][4][4] = None
    first, bad, last = client.post(json={"inputs": rows}).json()["predictions"]
    assert (bad["verdict"], bad["label"], bad["p_value"]) == ("invalid", "", None)
    assert bad["reason"] == "it has NaN or infinity"
    assert close_to(first, expected_row(source, images[0]))
    assert close_to(last, expected_row(source, images[2]))
    files = [("file", ("a.png", png(images[0]))), ("file", ("b.png", b"no image"))]
    good, bad = client.post(files=files).json()["predictions"]
    assert close_to(good, expected_row(source, images[0]))
    assert bad["verdict"] == "invalid"
    assert bad["reason"].startswith("This is not an image that can be read")
    numbers = images.astype(int)
    numbers[0, 0, 0] = 256
    bad, good, _ = client.post(json={"inputs": numbers.tolist()}).json()["predictions"]
    assert (bad["reason"], good["verdict"] != "invalid") == ("its pixels are not in 0 to 255", True)


def png_header(width: int, height: int) -> bytes:
    """A file of a few bytes that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + bytes([8, 0, 0, 0, 0])) + chunk(b"IDAT", pixels)


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        pytest.param({"data": bytes(200_001), "headers": {"content-type": "image/png"}}, 413, "larger than 200,000 bytes", id="too large"),  # noqa: E501
        pytest.param({"data": iter([bytes(100_000)] * 3), "headers": {"content-type": "image/png"}}, 413, "larger than 200,000 bytes", id="too large, in chunks"),  # noqa: E501
        pytest.param({"json": {"inputs": grey_images(17).tolist()}}, 413, "There are 17 inputs, and a request may have 16", id="too many"),  # noqa: E501
        pytest.param({"files": {"file": ("a.png", b"no image")}}, 422, "not an image that can be read", id="not an image"),  # noqa: E501
        pytest.param({"data": png(grey_images(1)[0])[:60], "headers": {"content-type": "image/png"}}, 422, "not an image that can be read", id="half an image"),  # noqa: E501
        pytest.param({"data": b"%!PS-Adobe-3.0 EPSF-3.0\n", "headers": {"content-type": "image/eps"}}, 422, "not an image", id="a program"),  # noqa: E501
        pytest.param({"data": png_header(50_000, 50_000), "headers": {"content-type": "image/png"}}, 413, "more than 1,000,000 pixels", id="decompression bomb"),  # noqa: E501
        pytest.param({"data": png_header(1001, 1000), "headers": {"content-type": "image/png"}}, 413, "more than 1,000,000 pixels", id="too many pixels"),  # noqa: E501
        pytest.param({"data": png(np.zeros((1, 150_000), np.uint8)), "headers": {"content-type": "image/png"}}, 413, "would be scaled to 8 x 1200000", id="an image that becomes long"),  # noqa: E501
        pytest.param({"json": {"inputs": [[[0]] * 30_000]}}, 413, "would be scaled to", id="an array that becomes long"),  # noqa: E501
        pytest.param({"json": {"inputs": [0.0] * 64}}, 422, "Images must be", id="wrong shape"),
        pytest.param({"json": {"inputs": [[1, 2], [3]]}}, 422, "arrays of one shape", id="ragged"),
        pytest.param({"json": {"inputs": [["a"]]}}, 422, "must be numbers. Got text instead", id="text"),
        pytest.param({"json": {"inputs": []}}, 422, "There are no inputs", id="nothing"),
        pytest.param({"json": {"inputs": [[10**400]]}}, 422, "arrays of one shape", id="a huge number"),
        pytest.param({"json": {"inputs": [[[None] * 8] * 8] * 2}}, 422, "Every one of the 2 inputs cannot be judged: it has NaN", id="nothing but NaN"),  # noqa: E501
        pytest.param({"data": b'{"inputs": [[NaN, NaN]]}', "headers": JSON}, 422, "The input cannot be judged: it has NaN", id="NaN in words"),  # noqa: E501
        pytest.param({"json": {"inputs": [[1.5]]}}, 422, "its pixels are not in [0, 1]", id="out of range"),
        pytest.param({"json": {"image": "@@@"}}, 422, "not base64", id="not base64"),
        pytest.param({"json": {"image": 7}}, 422, "must be text", id="not text"),
        pytest.param({"json": {"images": []}}, 422, "There are no inputs", id="no images"),
        pytest.param({"json": {"pixels": [[1]]}}, 422, "must have one of 'inputs'", id="another key"),
        pytest.param({"json": [1, 2]}, 400, "must be a JSON object", id="not an object"),
        pytest.param({"data": b"{", "headers": JSON}, 400, "not JSON", id="not JSON"),
        pytest.param({"data": b"[" * 100_000, "headers": JSON}, 400, "not JSON", id="deeply nested"),
        pytest.param({"data": b"a=1", "headers": {"content-type": "text/plain"}}, 415, "The content type must be", id="wrong content type"),  # noqa: E501
        pytest.param({"data": b"a"}, 415, "The content type must be", id="no content type"),
        pytest.param({"data": b"a", "headers": {"content-type": "image/png", "content-encoding": "gzip"}}, 415, "must not be compressed", id="compressed"),  # noqa: E501
        pytest.param({"data": b"a", "headers": {"content-type": "multipart/form-data"}}, 400, "The form cannot be read", id="no boundary"),  # noqa: E501
        pytest.param({"data": b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "The form cannot be read", id="a broken form"),  # noqa: E501
        pytest.param({"files": {"a": (None, "text")}}, 422, "The form has no file", id="a form without a file"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_with_a_reason(client, options, status, reason):
    answer = client.post(**options)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert reason in answer.json()["error"]
    assert client.post(json={"inputs": grey_images(1)[0].tolist()}).status_code == 200  # it goes on


def test_unknown_addresses_and_methods_are_answered_in_json(client):
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert (client.get("/v1/predict").status_code, client.get("/v1/predict").json()) == (
        405,
        {"error": "Method Not Allowed"},
    )


def test_vectors_are_judged_and_images_are_refused():
    source = make_source((4,))
    with served(source) as client:
        rows = client.post(json={"inputs": [[0.1, 0.2, 0.3, 0.4], [1e300, 0, 0, 0]]}).json()["predictions"]
        assert close_to(rows[0], expected_row(source, np.array([0.1, 0.2, 0.3, 0.4])))
        assert (rows[1]["verdict"], rows[1]["reason"]) == ("invalid", "it has NaN or infinity")
        wrong = client.post(json={"inputs": [[1.0, 2.0]]})
        assert wrong.status_code == 422
        assert "Inputs must be vectors of 4 numbers" in wrong.json()["error"]
        refused = client.post(files={"file": ("a.png", png(grey_images(1)[0]))})
        assert (refused.status_code, refused.json()) == (
            415,
            {"error": "Inputs are vectors of 4 numbers, not images: send them as JSON."},
        )
        assert client.get("/v1/model").json()["input"] == {"shape": [4], "kind": "vector"}
        assert "--json" in client.get("/docs").text


@pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained
def test_an_exported_bundle_is_served_and_watched_as_its_detector(exported):
    bundle = Bundle(exported, threads=1)
    images = draw_images(3, seed=4)[0].numpy()
    rows = (images / 255).tolist()
    rows[1][4][4] = None
    with served(bundle) as client:
        files = [("file", (f"{i}.png", png(image))) for i, image in enumerate(images)]
        by_file = client.post(files=[*files, ("file", ("bad.png", b"no image"))]).json()["predictions"]
        by_array = client.post(json={"inputs": rows}).json()["predictions"]
        report = client.get("/v1/drift").json()
    assert [row["verdict"] for row in by_file[3:]] == ["invalid"]
    for image, row in zip(images, by_file, strict=False):
        assert close_to(row, expected_row(bundle, image))
    assert [row["verdict"] == "invalid" for row in by_array] == [False, True, False]
    assert close_to(by_array[2], expected_row(bundle, images[2]))
    assert (report["inputs"], report["invalid"]) == (5, 2)


# Nobody is in anybody's way


def test_clients_at_the_same_time_get_their_own_answers(client, source):
    images = grey_images(60, seed=1)
    expected = source.predict(images)

    def ask(i: int) -> float:
        if i % 10 == 9:
            assert client.post(data=b"no image", headers={"content-type": "image/png"}).status_code == 422
        (row,) = client.post(json={"inputs": images[i].tolist()}).json()["predictions"]
        return row["epistemic"]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(60)))
    np.testing.assert_allclose(found, expected.epistemic.numpy(), rtol=1e-4)
    batches = re.search(r"ddu_batch_inputs_count (\d+)", client.get("/metrics").text)
    assert batches


class Slow:
    """A source that judges only once it may."""

    def __init__(self, source):
        self._source, self.go, self.busy, self.slow = source, threading.Event(), threading.Event(), False

    def __getattr__(self, name):
        return getattr(self._source, name)

    def judge(self, inputs: torch.Tensor):
        if self.slow:
            self.busy.set()
            assert self.go.wait(20)
        return self._source.judge(inputs)


def test_a_full_queue_is_503_and_what_was_accepted_is_answered(source):
    slow, body = Slow(source), {"inputs": grey_images(2).tolist()}
    with served(slow, limits=Limits(rows=4, queue=4, batch=4)) as client, ThreadPoolExecutor(8) as pool:
        slow.slow = True
        running = pool.submit(client.post, json=body)
        assert slow.busy.wait(10)
        waiting = [pool.submit(client.post, json=body) for _ in range(2)]
        while client.app.state.batcher.waiting < 4:
            time.sleep(0.01)
        refused = client.post(json=body)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json() == {"error": "The queue is full: 4 of 4 inputs wait. Try again later."}
        assert "ddu_queue_inputs 4.0" in client.get("/metrics").text
        slow.go.set()
        assert [answer.result(20).status_code for answer in (running, *waiting)] == [200] * 3


def test_a_stop_answers_what_was_accepted(source):
    slow, body = Slow(source), {"inputs": grey_images(1).tolist()}
    with served(slow) as client, ThreadPoolExecutor(8) as pool:
        slow.slow = True
        accepted = [pool.submit(client.post, json=body)]
        assert slow.busy.wait(10)
        accepted += [pool.submit(client.post, json=body) for _ in range(3)]
        while client.app.state.batcher.waiting < 3:
            time.sleep(0.01)
        client.stop()
        time.sleep(0.3)
        slow.go.set()
        assert [answer.result(20).status_code for answer in accepted] == [200] * 4
        client.join()


def test_a_client_that_stalls_is_sent_away_and_blocks_nobody(client):
    address = ("127.0.0.1", int(client.address.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10) as stalled:
        head = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\n"
        stalled.sendall(head + b"half")
        assert client.post(json={"inputs": grey_images(1)[0].tolist()}).status_code == 200
        answer = HTTPResponse(stalled)
        answer.begin()
        assert (answer.status, json.loads(answer.read())) == (408, {"error": "The request took over 1 s to arrive."})


def test_bodies_of_all_clients_together_are_bounded(source):
    with served(source, limits=Limits(bodies=1000)) as client:
        refused = client.post(data=bytes(2000), headers={"content-type": "image/png"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert client.post(data=bytes(900), headers={"content-type": "image/png"}).status_code == 422  # given back


def test_uploads_do_not_reach_the_file_system(source, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "there is no such folder"))
    noise = np.random.default_rng(0).integers(0, 256, (1500, 1500), dtype=np.uint8)
    file = png(noise)
    assert len(file) > 2**20  # from where forms go to disk by default
    with served(source) as client:
        answer = client.post(files={"file": ("../../etc/passwd", file)})
    assert answer.status_code == 200


def test_a_failure_of_the_model_is_a_500_that_tells_nothing_of_it(source, caplog):
    class Broken(Slow):
        def judge(self, inputs):
            if self.slow:
                raise RuntimeError("secret")
            return self._source.judge(inputs)

    broken = Broken(source)
    with served(broken) as client:
        broken.slow = True
        answer = client.post(json={"inputs": grey_images(1)[0].tolist()})
        assert (answer.status_code, answer.json()) == (500, {"error": "The server failed: see its log."})
        broken.slow = False
        assert client.post(json={"inputs": grey_images(1)[0].tolist()}).status_code == 200
    assert "secret" in caplog.text


# The token


def test_a_token_is_asked_for_everywhere_but_for_health(source):
    body = {"inputs": grey_images(1)[0].tolist()}
    with served(source, token="péssword") as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "péssword".encode()}):
            refused = client.post(json=body, headers=headers)
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert refused.json() == {"error": "The bearer token is missing or wrong."}
            assert client.get("/metrics", headers=headers).status_code == 401
            assert client.get("/v2/models/tiny", headers=headers).status_code == 401
            assert client.get("/docs", headers=headers).status_code == 401
        assert client.get("/v2/health/live").json() == {"live": True}
        right = {"Authorization": "Bearer péssword".encode()}
        assert client.post(json=body, headers=right).status_code == 200


# What it tells of itself


def test_metrics_have_latency_batches_queue_verdicts_p_values_and_drift(source):
    with served(source) as client:
        client.post(json={"inputs": grey_images(7).tolist()})
        client.get("/nowhere")
        text = client.get("/metrics").text
    values = dict(re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE))
    assert values['ddu_request_seconds_count{route="/v1/predict",status="200"}'] == "1.0"
    assert values['ddu_request_seconds_count{route="other",status="404"}'] == "1.0"
    assert (values["ddu_batch_inputs_count"], values["ddu_batch_inputs_sum"]) == ("1.0", "7.0")
    assert (values["ddu_queue_inputs"], values["ddu_p_value_count"]) == ("0.0", "7.0")
    verdicts = [float(value) for name, value in values.items() if name.startswith("ddu_verdicts_total")]
    assert (len(verdicts), sum(verdicts)) == (4, 7)
    shares = [float(value) for name, value in values.items() if name.startswith("ddu_window_verdict_share")]
    assert sum(shares) == pytest.approx(1)
    assert values["ddu_drift_inputs"] == "7.0"
    for name in ("log10_evidence", "p_value", "alarm", "ks_statistic", "ks_p_value"):
        assert f"ddu_drift_{name}" in values


def test_a_stream_that_drifts_raises_an_alarm(source):
    with served(source) as client:
        assert client.get("/v1/drift").json()["alarm"] is False
        client.post(json={"inputs": np.full((100, 8, 8), 255).tolist()})
        report = client.get("/v1/drift").json()
        assert (report["alarm"], report["inputs"]) == (True, 100)
        assert "ddu_drift_alarm 1.0" in client.get("/metrics").text
        assert f"<h2>Drift</h2><pre>100 inputs: alarm at input {report['alarm_at']}" in client.get("/docs").text


def test_a_source_without_calibration_scores_has_no_drift(source):
    uncalibrated = Slow(source)
    uncalibrated.held_out_scores = None
    with served(uncalibrated) as client:
        assert client.get("/v1/drift").status_code == 404
        assert "Drift" not in client.get("/docs").text
        assert "ddu_drift" not in client.get("/metrics").text


def test_the_description_is_openapi_and_the_docs_load_nothing_from_elsewhere(client):
    description = client.get("/openapi.json").json()
    assert description["openapi"].startswith("3.")
    assert {"/v1/predict", "/v2/models/{name}/infer", "/metrics", "/v2/health/ready"} <= description["paths"].keys()
    page = client.get("/docs")
    assert "/v1/predict" in page.text
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page.text)
    assert client.get("/v1/model").json()["classes"] == ["ant", "bee", "cat"]


def test_a_port_that_is_taken_is_named():
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=f"Cannot listen on 127.0.0.1, port {port}: Address already in use"):
            bind("127.0.0.1", port)


def test_limits_that_cannot_work_are_named(source):
    with pytest.raises(InputError, match=r"room for the 256 inputs of one request. Got 8 instead"):
        Limits(queue=8)
    with pytest.raises(InputError, match=r"A batch must have at least 1 input. Got 0 instead"):
        make_app(source, limits=Limits(batch=0))


def test_names_are_fit_for_addresses(source):
    app = make_app(source, name=str(Path("a b", "ü/..")))
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", app.state.predictor.name)
    assert json.dumps(app.openapi())
    app.state.batcher.close()
