"""What a client sent as the body of a request, and JSON as an answer."""

import json
from collections.abc import Callable
from typing import Any

from ddu.messages import missing_extra
from ddu.serving import protocol
from ddu.serving.predictor import Inputs, Predictor, parse_array, parse_base64
from ddu.serving.requests import Limits, RefusedError

try:
    from fastapi import Request
    from fastapi.responses import Response
    from starlette.formparsers import MultiPartException, MultiPartParser
except ModuleNotFoundError as error:
    raise missing_extra("serve", "ddu serve") from error


async def reader_of(request: Request, predictor: Predictor) -> Callable[[], Inputs]:
    """Receives the images or vectors of a request, and returns what decodes them, for a thread: that takes long."""
    kind, body = content_type(request), await request.body()
    if kind == "application/json":
        return lambda: _read_json(predictor, body)
    if kind == "multipart/form-data":
        files = await _uploaded(request, body, predictor.limits)
        return lambda: predictor.read_images(files)
    if kind.startswith("image/") or kind == "application/octet-stream":
        return lambda: predictor.read_images([body])
    raise RefusedError(
        415, "The content type must be application/json, multipart/form-data or that of an image, image/*."
    )


def content_type(request: Request) -> str:
    """Without its parameters, in small letters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON."""
    # In ASCII: a name that a client sent may be no text that UTF-8 has
    return Response(json.dumps(content, allow_nan=False).encode(), status, headers, "application/json")


class _InMemory(MultiPartParser):
    """Uploads stay in memory, which the size of a body bounds: none reaches a disk."""

    spool_max_size = 2**62


async def _uploaded(request: Request, body: bytes, limits: Limits) -> list[bytes]:
    """The files of a form."""

    async def stream():
        yield body

    try:
        form = await _InMemory(
            request.headers, stream(), max_files=limits.rows, max_fields=limits.rows, max_part_size=limits.body
        ).parse()
    except MultiPartException as error:
        raise RefusedError(400, f"The form cannot be read: {error.message}") from error
    # The parser of forms knows more ways to fail than its own error
    except (ValueError, KeyError, UnicodeError, LookupError) as error:
        raise RefusedError(400, "The form cannot be read.") from error
    files = [await value.read() for _, value in form.multi_items() if not isinstance(value, str)]
    await form.close()
    if not files:
        raise RefusedError(422, "The form has no file: send images as files.")
    return files


def _read_json(predictor: Predictor, body: bytes) -> Inputs:
    """Either `inputs`, an array, or `image` or `images`, files in base64."""
    content = protocol.parse_json(body)
    match content:
        case {"inputs": values, **others} if not others:
            return predictor.read_array(parse_array(values))
        case {"image": text, **others} if not others:
            return predictor.read_images([parse_base64(text)])
        case {"images": [*texts], **others} if not others:
            return predictor.read_images([parse_base64(text) for text in texts])
    raise RefusedError(
        422, "The body must have one of 'inputs', an array; 'image', a file in base64; 'images', a list of those."
    )
