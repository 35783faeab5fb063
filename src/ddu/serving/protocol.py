"""The Open Inference Protocol, version 2, with its binary tensor extension: what clients of KServe and Triton speak.

https://github.com/kserve/open-inference-protocol; one input tensor, and an output tensor per column of the answers.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddu.serving.predictor import Answers, parse_array, parse_base64, plain_list
from ddu.serving.requests import RefusedError

INPUT = "input"
HEADER_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data"]

_NUMBERS = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}") for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}
_MOST = 2**53  # elements: more than any body has


class InferRequest(NamedTuple):
    """A request to infer.

    Attributes:
        id: Given back to the client.
        images: Encoded images, where the input has the datatype BYTES; None for numbers.
        array: The numbers; None for encoded images.
        outputs: The names of the outputs that are wanted, and whether each is to be binary; None is all.
        binary: Whether outputs are binary that say nothing of it.
    """

    id: str | None
    images: list[bytes] | None
    array: np.ndarray | None
    outputs: Mapping[str, bool] | None
    binary: bool


def parse_request(body: bytes, header_length: str | None, outputs: Sequence[str]) -> InferRequest:
    """Reads the body of a request to infer.

    Args:
        body: JSON, and after it the binary data.
        header_length: The header that says how long the JSON is, if it is not all.
        outputs: The names that may be asked for.
    """
    head, data = _split(body, header_length)
    tensors, id_ = head.get("inputs"), head.get("id")
    if not isinstance(tensors, list) or len(tensors) != 1 or not isinstance(tensors[0], dict):
        raise RefusedError(400, f"The request must have a list 'inputs' with one tensor, {INPUT!r}.")
    if id_ is not None and not isinstance(id_, str):
        raise RefusedError(400, "The 'id' of a request must be text.")
    parameters = _parameters(head)
    found = _tensor(tensors[0], data)
    wanted = _wanted(head.get("outputs"), outputs, binary := parameters.get("binary_data_output") is True)
    if isinstance(found, list):
        return InferRequest(id_, found, None, wanted, binary)
    return InferRequest(id_, None, found, wanted, binary)


def write_response(request: InferRequest, answers: Answers, name: str, version: str) -> tuple[bytes, int | None]:
    """The body of a response, and how long its JSON is if binary data follows."""
    tensors, chunks = [], []
    for output, column in answers.columns.items():
        binary = request.binary if request.outputs is None else request.outputs.get(output)
        if binary is None:
            continue
        tensor: dict[str, Any] = {"name": output, "datatype": datatype(column), "shape": list(column.shape)}
        if binary:
            chunks.append(_to_bytes(column))
            tensor["parameters"] = {"binary_data_size": len(chunks[-1])}
        else:
            tensor["data"] = plain_list(column.ravel())
        tensors.append(tensor)
    content = {"model_name": name, "model_version": version, "outputs": tensors}
    if request.id is not None:
        content["id"] = request.id
    head = json.dumps(content, allow_nan=False).encode()
    return head + b"".join(chunks), len(head) if chunks else None


def describe(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """The output tensors, for the metadata of a model."""
    return [
        {"name": name, "datatype": datatype(column), "shape": [-1, *column.shape[1:]]}
        for name, column in columns.items()
    ]


def datatype(column: np.ndarray) -> str:
    """What the protocol calls the type of an array.

    >>> datatype(np.zeros(2, np.float32)), datatype(np.array(["a"], dtype=object))
    ('FP32', 'BYTES')
    """
    return next((name for name, dtype in _NUMBERS.items() if dtype == column.dtype), "BYTES")


def _split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], bytes]:
    length = len(body)
    if header_length is not None:
        digits = header_length.isascii() and header_length.isdigit() and len(header_length) < 20
        if not digits or int(header_length) > len(body):
            raise RefusedError(
                400, f"{HEADER_LENGTH} must be the length of the JSON, at most the {len(body)} bytes of the body."
            )
        length = int(header_length)
    return parse_json(body[:length]), body[length:]


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object, or a refusal that says what is wrong."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "The body is not JSON.") from error
    if not isinstance(content, dict):
        raise RefusedError(400, "The body must be a JSON object.")
    return content


def _parameters(owner: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = owner.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RefusedError(400, "'parameters' must be a JSON object.")
    if any(str(name).startswith("shared_memory") for name in parameters):
        raise RefusedError(400, "Shared memory is not supported: send the data.")
    return parameters


def _wanted(listed: Any, known: Sequence[str], binary: bool) -> dict[str, bool] | None:
    if listed is None or listed == []:
        return None
    names = [one.get("name") if isinstance(one, dict) else None for one in listed] if isinstance(listed, list) else [0]
    if not all(isinstance(name, str) and name in known for name in names):
        raise RefusedError(400, f"'outputs' must be a list of tensors with names of {', '.join(known)}.")
    return {one["name"]: _parameters(one).get("binary_data", binary) is True for one in listed}


def _tensor(tensor: dict[str, Any], data: bytes) -> np.ndarray | list[bytes]:
    """The numbers of the input, or the encoded images that it has."""
    if tensor.get("name") != INPUT:
        raise RefusedError(400, f"The tensor in 'inputs' must have the name {INPUT!r}.")
    shape, kind = tensor.get("shape"), tensor.get("datatype")
    if not isinstance(shape, list) or not shape or len(shape) > 8 or not all(type(n) is int and n > 0 for n in shape):
        raise RefusedError(400, "The 'shape' of a tensor must be a list of 1 to 8 positive integers.")
    if kind != "BYTES" and kind not in _NUMBERS:
        raise RefusedError(400, f"The 'datatype' of a tensor must be BYTES or one of {', '.join(_NUMBERS)}.")
    count = min(math.prod(shape), _MOST)
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        if data:
            raise RefusedError(400, f"There are {len(data)} bytes of binary data, and no 'binary_data_size'.")
        return _from_list(tensor.get("data"), str(kind), shape, count)
    if type(size) is not int or size != len(data):
        raise RefusedError(400, f"The 'binary_data_size' must be that of the {len(data)} bytes after the JSON.")
    if kind == "BYTES":
        return _counted(list(_elements(data)), count)
    dtype = _NUMBERS[str(kind)].newbyteorder("<")
    if count * dtype.itemsize != len(data):
        raise RefusedError(
            400, f"A tensor of {kind} and this shape has {count * dtype.itemsize} bytes. Got {len(data)} instead."
        )
    return np.frombuffer(data, dtype).reshape(shape).astype(_NUMBERS[str(kind)])


def _from_list(values: Any, kind: str, shape: list[int], count: int) -> np.ndarray | list[bytes]:
    if not isinstance(values, list):
        raise RefusedError(400, "A tensor must have a list 'data', or a 'binary_data_size'.")
    if kind == "BYTES":
        return _counted([parse_base64(value) for value in values], count)
    array = parse_array(values)
    if array.size != count:
        raise RefusedError(400, f"A tensor of this shape has {count} elements. Got {array.size} instead.")
    dtype = _NUMBERS[kind]
    # In JSON an integer may stand for a float; a null among integers has no meaning
    if array.dtype.kind not in "iufb" or (dtype.kind != "f" and array.dtype.kind == "f"):
        raise RefusedError(400, f"The 'data' of a tensor of {kind} must be such numbers.")
    if dtype.kind in "iu" and array.size:
        info = np.iinfo(dtype)
        if int(array.min()) < info.min or int(array.max()) > info.max:
            raise RefusedError(400, f"The 'data' of a tensor of {kind} must be from {info.min} to {info.max}.")
    with np.errstate(over="ignore"):
        return array.reshape(shape).astype(dtype)


def _counted(elements: list[bytes], count: int) -> list[bytes]:
    if len(elements) != count:
        raise RefusedError(400, f"A tensor of this shape has {count} elements. Got {len(elements)} instead.")
    return elements


def _elements(data: bytes) -> Iterator[bytes]:
    """The elements of a BYTES tensor: each has its length before it, 4 bytes, little-endian."""
    at = 0
    while at < len(data):
        if at + 4 > len(data) or at + 4 + (length := struct.unpack_from("<I", data, at)[0]) > len(data):
            raise RefusedError(400, "The data of a BYTES tensor ends within an element.")
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def _to_bytes(column: np.ndarray) -> bytes:
    if datatype(column) != "BYTES":
        return column.astype(column.dtype.newbyteorder("<")).tobytes()
    texts = [str(value).encode() for value in column.ravel()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)
