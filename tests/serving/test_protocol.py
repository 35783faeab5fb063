"""The Open Inference Protocol, by the real client of Triton and by hand."""

import json
import struct

import numpy as np
import pytest

from tests.serving.servers import grey_images, make_source, png, served


@pytest.fixture(scope="module")
def source():
    return make_source()


@pytest.fixture(scope="module")
def client(source):
    with served(source) as client:
        yield client


@pytest.fixture(scope="module")
def triton(client):
    from tritonclient.http import InferenceServerClient

    with InferenceServerClient(client.address.removeprefix("http://")) as triton:
        yield triton


OUTPUTS = ["label", "label_name", "confidence", "probs", "aleatoric", "epistemic", "p_value", "candidates", "verdict"]


def agree(result, prediction) -> None:
    """What a client was told is what the detector says."""
    assert result.as_numpy("label").tolist() == prediction.label.tolist()
    for name in ("probs", "aleatoric", "epistemic", "p_value", "confidence"):
        np.testing.assert_allclose(result.as_numpy(name), getattr(prediction, name).numpy(), rtol=1e-4)
    assert np.array_equal(result.as_numpy("candidates"), prediction.candidates.numpy())
    verdicts = [one.decode() if isinstance(one, bytes) else one for one in result.as_numpy("verdict")]
    assert verdicts == [str(one) for one in prediction.verdict]


def test_the_client_of_triton_finds_server_and_model(triton):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("tiny")
    assert triton.is_model_ready("tiny", "0123456789ab")
    assert not triton.is_model_ready("another")
    assert triton.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    metadata = triton.get_model_metadata("tiny")
    assert metadata["inputs"] == [{"name": "input", "datatype": "UINT8", "shape": [-1, -1, -1, 1]}]
    tensors = {one["name"]: (one["datatype"], one["shape"]) for one in metadata["outputs"]}
    assert list(tensors) == [*OUTPUTS, "reason"]
    assert tensors["probs"] == ("FP32", [-1, 3])
    assert tensors["verdict"] == ("BYTES", [-1])
    assert tensors["candidates"] == ("BOOL", [-1, 3])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("datatype", ["UINT8", "FP32", "FP64"])
def test_the_client_of_triton_gets_predictions_in_json_and_in_binary(triton, source, binary, datatype):
    from tritonclient.http import InferInput, InferRequestedOutput

    images = grey_images(5)[..., None]
    dtype = {"UINT8": np.uint8, "FP32": np.float32, "FP64": np.float64}[datatype]
    pixels = images if datatype == "UINT8" else (images / 255).astype(dtype)
    tensor = InferInput("input", list(pixels.shape), datatype)
    tensor.set_data_from_numpy(pixels, binary_data=binary)
    wanted = [InferRequestedOutput(name, binary_data=binary) for name in OUTPUTS]
    result = triton.infer("tiny", [tensor], outputs=wanted, request_id="mine")
    agree(result, source.predict(images))
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("mine", "tiny", "0123456789ab")
    assert [one["name"] for one in response["outputs"]] == OUTPUTS
    everything = triton.infer("tiny", [tensor])  # all outputs, binary
    agree(everything, source.predict(images))


def test_encoded_images_are_a_tensor_of_bytes(triton, source):
    from tritonclient.http import InferInput

    images = grey_images(3)
    tensor = InferInput("input", [3], "BYTES")
    tensor.set_data_from_numpy(np.array([png(image) for image in images], dtype=object))
    agree(triton.infer("tiny", [tensor]), source.predict(images))


@pytest.mark.parametrize("binary", [False, True])
def test_a_bad_row_is_invalid_in_both_forms(triton, source, binary):
    from tritonclient.http import InferInput, InferRequestedOutput

    pixels = (grey_images(2)[..., None] / 255).astype(np.float32)
    pixels[0, 3, 3] = np.nan
    tensor = InferInput("input", list(pixels.shape), "FP32").set_data_from_numpy(pixels)
    wanted = [InferRequestedOutput(name, binary_data=binary) for name in ("verdict", "p_value", "reason", "label")]
    result = triton.infer("tiny", [tensor], outputs=wanted)
    first, second = (one.decode() if isinstance(one, bytes) else one for one in result.as_numpy("verdict"))
    assert first == "invalid" != second
    assert np.isnan(result.as_numpy("p_value")).tolist() == [True, False]
    assert result.as_numpy("label")[0] == -1


def test_an_error_reaches_the_client_of_triton_with_its_reason(triton):
    from tritonclient.http import InferInput
    from tritonclient.utils import InferenceServerException

    tensor = InferInput("input", [64], "FP32").set_data_from_numpy(np.zeros(64, np.float32))
    with pytest.raises(InferenceServerException, match="Images must be"):
        triton.infer("tiny", [tensor])
    with pytest.raises(InferenceServerException, match="There is no such model: there is tiny"):
        triton.infer("another", [tensor])


def test_data_in_json_may_be_flat_or_nested(client):
    image = grey_images(1)[..., None]
    found = []
    for data in (image.tolist(), image.ravel().tolist()):
        tensor = {"name": "input", "shape": [1, 8, 8, 1], "datatype": "UINT8", "data": data}
        body = {"inputs": [tensor], "outputs": [{"name": "label"}, {"name": "epistemic"}]}
        answer = client.post("/v2/models/tiny/versions/0123456789ab/infer", json=body)
        assert answer.headers["content-type"] == "application/json"
        found.append(answer.json()["outputs"])
    assert found[0] == found[1]
    assert [(one["name"], one["shape"], len(one["data"])) for one in found[0]] == [
        ("label", [1], 1),
        ("epistemic", [1], 1),
    ]


def tensor(**changes):
    return {"name": "input", "shape": [1, 8, 8, 1], "datatype": "UINT8", "data": [0] * 64} | changes


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 400, "a list 'inputs' with one tensor"),
        ({"inputs": [tensor(), tensor()]}, 400, "a list 'inputs' with one tensor"),
        ({"inputs": [tensor()], "id": 7}, 400, "The 'id' of a request must be text"),
        ({"inputs": [tensor(name="image")]}, 400, "must have the name 'input'"),
        ({"inputs": [tensor(shape=[1, -8])]}, 400, "1 to 8 positive integers"),
        ({"inputs": [tensor(shape=[0, 10**30])]}, 400, "1 to 8 positive integers"),
        ({"inputs": [tensor(shape=[1] * 9)]}, 400, "1 to 8 positive integers"),
        ({"inputs": [tensor(shape="64")]}, 400, "1 to 8 positive integers"),
        ({"inputs": [tensor(shape=[10**300] * 8)]}, 400, "has 9007199254740992 elements. Got 64 instead"),
        ({"inputs": [tensor(datatype="BF16")]}, 400, "must be BYTES or one of BOOL"),
        ({"inputs": [tensor(data=None)]}, 400, "must have a list 'data'"),
        ({"inputs": [tensor(data=[0] * 63)]}, 400, "has 64 elements. Got 63 instead"),
        ({"inputs": [tensor(data=[256] * 64)]}, 400, "must be from 0 to 255"),
        ({"inputs": [tensor(data=[0.5] * 64)]}, 400, "must be such numbers"),
        ({"inputs": [tensor(data=["a"] * 64)]}, 400, "must be such numbers"),
        ({"inputs": [tensor(datatype="BOOL", data=[True] * 64)]}, 422, "Inputs must be numbers. Got true or false"),
        ({"inputs": [tensor(datatype="FP16", data=[1e9] * 64)]}, 422, "it has NaN or infinity"),
        ({"inputs": [tensor(datatype="BYTES", shape=[1], data=["@"])]}, 422, "not base64"),
        ({"inputs": [tensor(parameters=[1])]}, 400, "'parameters' must be a JSON object"),
        ({"inputs": [tensor(parameters={"shared_memory_region": "a"})]}, 400, "Shared memory is not supported"),
        ({"inputs": [tensor(parameters={"binary_data_size": 64})]}, 400, "that of the 0 bytes after the JSON"),
        ({"inputs": [tensor()], "outputs": [{"name": "secret"}]}, 400, "names of label, label_name"),
        ({"inputs": [tensor()], "outputs": "label"}, 400, "names of label, label_name"),
    ],
)
def test_a_request_that_means_nothing_is_refused(client, body, status, reason):
    answer = client.post("/v2/models/tiny/infer", json=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert reason in answer.json()["error"]


@pytest.mark.parametrize(
    ("length", "size", "data", "kind", "reason"),
    [
        ("9999999", 64, bytes(64), "UINT8", "must be the length of the JSON"),
        ("0" * 5000, 64, bytes(64), "UINT8", "must be the length of the JSON"),
        ("-1", 64, bytes(64), "UINT8", "must be the length of the JSON"),
        ("3", 64, bytes(64), "UINT8", "The body is not JSON"),
        (None, 63, bytes(64), "UINT8", "that of the 64 bytes after the JSON"),
        (None, None, bytes(64), "UINT8", "64 bytes of binary data, and no 'binary_data_size'"),
        (None, 65, bytes(65), "UINT8", "has 64 bytes. Got 65 instead"),
        (None, 6, struct.pack("<I", 9) + b"ab", "BYTES", "ends within an element"),
        (None, 3, b"abc", "BYTES", "ends within an element"),
    ],
)
def test_binary_data_that_does_not_fit_is_refused(client, length, size, data, kind, reason):
    parameters = {} if size is None else {"binary_data_size": size}
    head = {"name": "input", "shape": [1, 8, 8, 1], "datatype": kind, "parameters": parameters}
    text = json.dumps({"inputs": [head]}).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(text))}
    answer = client.post("/v2/models/tiny/infer", data=text + data, headers=headers)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]


def test_other_content_types_are_refused(client):
    answer = client.post("/v2/models/tiny/infer", data=b"a", headers={"content-type": "text/html"})
    assert (answer.status_code, answer.json()["error"].startswith("The content type must be")) == (415, True)
