"""The HTTP interface: `/v1` for people, `/v2` for clients of the Open Inference Protocol, `/metrics` for Prometheus.

The page at `/` has its own routes: `ddu.serving.page`.
"""

import asyncio
import hmac
import html
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from ddu._version import __version__
from ddu.errors import InputError
from ddu.messages import missing_extra
from ddu.monitoring import Monitor
from ddu.serving import protocol
from ddu.serving.batching import MicroBatcher
from ddu.serving.bodies import content_type, reader_of, reply
from ddu.serving.metrics import Metrics
from ddu.serving.page import PUBLIC, add_page
from ddu.serving.predictor import Answers, Inputs, Predictor
from ddu.serving.requests import Limits, RefusedError
from ddu.sources import Source

try:
    from anyio import CapacityLimiter
    from anyio.to_thread import run_sync
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
except ModuleNotFoundError as error:
    raise missing_extra("serve", "ddu serve") from error

_LOG = logging.getLogger("ddu.serving")
_READERS = 2  # threads that decode requests: each may hold a large image

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_ERROR = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
_ERRORS = {
    400: {"description": "The body cannot be read.", **_ERROR},
    401: {"description": "The bearer token is missing or wrong.", **_ERROR},
    408: {"description": "The request took too long to arrive.", **_ERROR},
    413: {"description": "The body, an image or the number of inputs is too large.", **_ERROR},
    415: {"description": "The content type or encoding is not one that is taken.", **_ERROR},
    422: {"description": "No input can be judged: not an image, another shape, nothing but NaN.", **_ERROR},
    503: {"description": "The queue is full: try again after Retry-After seconds.", **_ERROR},
}
_NO_MODEL = {404: {"description": "There is no such model.", **_ERROR}}


def make_app(
    source: Source,
    *,
    name: str | None = None,
    token: str | None = None,
    limits: Limits | None = None,
    monitor: Monitor | None = None,
) -> FastAPI:
    """An ASGI application that judges what clients send.

    Args:
        source: What judges.
        name: What clients call it; by default the last part of the source's name.
        token: What clients have to send as `Authorization: Bearer TOKEN`; None asks for nothing. Whether the server is
            alive and ready is told to everybody, and so are the files of the page, which asks for the token.
        limits: How much is taken at a time.
        monitor: Watches for drift; by default one of the source's calibration scores, where it has them.
    """
    limits = limits or Limits()
    if monitor is None and (scores := source.held_out_scores) is not None:
        monitor = Monitor(scores)
    metrics = Metrics(lambda: batcher.waiting, monitor)
    predictor = Predictor(source, limits=limits, name=name, on_batch=metrics.count_batch)
    batcher: MicroBatcher[Inputs, Answers] = MicroBatcher(
        predictor.judge, batch=limits.batch, queue=limits.queue, linger=limits.linger
    )
    readers = CapacityLimiter(_READERS)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_sync(batcher.close)

    app = FastAPI(
        title="ddu",
        version=__version__,
        summary="Predictions with two uncertainties and a verdict.",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from the internet; /docs is our own
        redoc_url=None,
    )
    app.state.monitor, app.state.predictor, app.state.batcher = monitor, predictor, batcher
    app.add_middleware(_Gate, token=token, limits=limits, metrics=metrics)
    _describe_errors(app)

    async def judge(read: Callable[[], Inputs]) -> Answers:
        """Reads inputs in a thread, and waits for what the batch that they get into makes of them."""
        inputs = await run_sync(read, limiter=readers)
        return await asyncio.wrap_future(batcher.submit(inputs, len(inputs)))

    add_page(app, predictor, readers)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(_docs_page(app, predictor, monitor and str(await run_sync(monitor.report))))

    @app.get("/metrics", tags=["metrics"], response_class=Response, summary="Metrics in Prometheus' text format.")
    async def metrics_page() -> Response:
        page, media_type = await run_sync(metrics.page)
        return Response(page, media_type=media_type)

    @app.get("/v1/drift", tags=["v1"], summary="What the monitor of the stream of inputs has found.")
    async def drift() -> Response:
        if monitor is None:
            raise RefusedError(404, "There are no calibration scores to compare with.")
        return reply((await run_sync(monitor.report)).to_dict())

    @app.get("/v1/model", tags=["v1"], summary="What judges, and what it takes.")
    async def model() -> Response:
        shape = {"shape": predictor.shape, "kind": "image" if predictor.is_image else "vector"}
        names = source.class_names
        return reply({"name": predictor.name, "input": shape, "classes": names, "about": dict(source.description)})

    @app.post(
        "/v1/predict",
        tags=["v1"],
        summary="Judge images or vectors.",
        openapi_extra={"requestBody": _v1_body(predictor)},
        responses=_ERRORS,  # pyright: ignore[reportArgumentType]
    )
    async def predict(request: Request) -> Response:
        answers = await judge(await reader_of(request, predictor))
        return reply({"model": predictor.name, "predictions": answers.rows()})

    # The Open Inference Protocol

    version = source.fingerprint

    def check_model(name: str, asked: str = version) -> None:
        if name != predictor.name or asked != version:
            raise RefusedError(404, f"There is no such model: there is {predictor.name}, version {version}.")

    @app.get("/v2", tags=["v2"], summary="The server.")
    async def server() -> Response:
        return reply({"name": "ddu", "version": __version__, "extensions": protocol.EXTENSIONS})

    @app.get("/v2/health/live", tags=["v2"], summary="Whether the server is alive.")
    async def live() -> Response:
        return reply({"live": True})

    @app.get("/v2/health/ready", tags=["v2"], summary="Whether the server takes requests.")
    async def ready() -> Response:
        return reply({"ready": True})

    @app.get("/v2/models/{name}", tags=["v2"], summary="The tensors of the model.", responses=_NO_MODEL)  # pyright: ignore
    @app.get("/v2/models/{name}/versions/{asked}", include_in_schema=False)
    async def metadata(name: str, asked: str = version) -> Response:
        check_model(name, asked)
        channels = predictor.shape[0]
        shape = [-1, -1, -1, channels] if predictor.is_image else [-1, channels]
        tensor = {"name": protocol.INPUT, "datatype": "UINT8" if predictor.is_image else "FP32", "shape": shape}
        outputs = protocol.describe(predictor.columns)
        content = {"name": name, "versions": [version], "platform": "ddu", "inputs": [tensor], "outputs": outputs}
        return reply(content)

    @app.get("/v2/models/{name}/ready", tags=["v2"], summary="Whether the model is ready.", responses=_NO_MODEL)  # pyright: ignore
    @app.get("/v2/models/{name}/versions/{asked}/ready", include_in_schema=False)
    async def model_ready(name: str, asked: str = version) -> Response:
        check_model(name, asked)
        return reply({"name": name, "ready": True})

    @app.post(
        "/v2/models/{name}/infer",
        tags=["v2"],
        summary="Judge a tensor.",
        openapi_extra={"requestBody": _v2_body()},
        responses=_ERRORS | _NO_MODEL,  # pyright: ignore
    )
    @app.post("/v2/models/{name}/versions/{asked}/infer", include_in_schema=False)
    async def infer(name: str, request: Request, asked: str = version) -> Response:
        check_model(name, asked)
        length = request.headers.get(protocol.HEADER_LENGTH)
        if length is None and content_type(request) not in ("application/json", "application/octet-stream", ""):
            raise RefusedError(415, "The content type must be application/json, or application/octet-stream.")
        body = await request.body()
        asked_for: list[protocol.InferRequest] = []

        def read() -> Inputs:
            parsed = protocol.parse_request(body, length, list(predictor.columns))
            asked_for.append(parsed)
            if parsed.images is not None:
                return predictor.read_images(parsed.images)
            assert parsed.array is not None
            return predictor.read_array(parsed.array)

        answers = await judge(read)
        content, head = protocol.write_response(asked_for[0], answers, name, version)
        if head is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={protocol.HEADER_LENGTH: str(head)})

    return app


class _Gate:
    """What every request passes: the token, the size of its body, the time it takes, and the count of its answer."""

    def __init__(self, app: Any, *, token: str | None, limits: Limits, metrics: Metrics):
        self._app, self._limits, self._metrics = app, limits, metrics
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._held = 0  # bytes of all bodies

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, mine = time.monotonic(), 500, 0
        headers = dict(scope["headers"])

        async def counted_receive() -> _Message:
            nonlocal mine
            left = begun + self._limits.seconds - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), left) if not arrived else await receive()
            except TimeoutError:
                raise RefusedError(408, f"The request took over {self._limits.seconds:g} s to arrive.") from None
            size = len(message.get("body", b""))
            mine += size
            self._held += size
            if mine > self._limits.body:
                raise self._too_large()
            if self._held > self._limits.bodies:
                raise RefusedError(503, "Too many large requests at a time. Try again later.", retry_after=1)
            if message["type"] == "http.request" and not message.get("more_body"):
                arrived.append(True)
            return message

        async def counted_send(message: _Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        arrived: list[bool] = []
        try:
            refused = self._refusal(scope, headers)
            if refused is not None:
                await _refuse(refused)(scope, receive, counted_send)
            else:
                await self._app(scope, counted_receive, counted_send)
        finally:
            self._held -= mine
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count_request(route, status, time.monotonic() - begun)

    def _refusal(self, scope: MutableMapping[str, Any], headers: dict[bytes, bytes]) -> RefusedError | None:
        """Why a request is refused before its body is read."""
        if self._expected is not None and scope["path"] not in PUBLIC and not scope["path"].startswith("/v2/health/"):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                return RefusedError(401, "The bearer token is missing or wrong.")
        length = headers.get(b"content-length", b"0")
        if len(length) > 15 or (length.isdigit() and int(length) > self._limits.body):
            return self._too_large()
        if headers.get(b"content-encoding", b"identity") != b"identity":
            return RefusedError(415, "The body must not be compressed: send it without a Content-Encoding.")
        return None

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"The body is larger than {self._limits.body:,} bytes: send fewer or smaller inputs.")


def _refuse(error: RefusedError) -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return reply({"error": error.reason}, error.status, headers)


def _describe_errors(app: FastAPI) -> None:
    """Every answer that is no prediction is JSON with a reason."""

    async def refused(_: Request, error: Any) -> Response:
        return _refuse(error)

    async def wrong_input(_: Request, error: Any) -> Response:
        return _refuse(RefusedError(422, str(error)))

    async def http_error(_: Request, error: Any) -> Response:
        return reply({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))

    async def gone(_: Request, __: Any) -> Response:
        return _refuse(RefusedError(400, "The client has gone."))

    async def unexpected(_: Request, error: Any) -> Response:
        _LOG.error("A request failed", exc_info=error)
        return reply({"error": "The server failed: see its log."}, 500)

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(InputError, wrong_input)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, unexpected)
    described = app.openapi

    def with_errors() -> dict[str, Any]:
        description = described()
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas["Error"] = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
        return description

    app.openapi = with_errors


def _v1_body(predictor: Predictor) -> dict[str, Any]:
    """The body of /v1/predict, for the OpenAPI description."""
    number = {"anyOf": [{"type": "number"}, {"type": "null"}]}
    vector = {"type": "array", "items": number, "minItems": 1}
    array = {"type": "array", "items": {"type": "array", "items": vector}} if predictor.is_image else vector
    inputs = {"anyOf": [array, {"type": "array", "items": array}]}
    file = {"type": "string", "format": "byte"}
    objects = [
        {"inputs": inputs},
        *([{"image": file}, {"images": {"type": "array", "items": file}}] if predictor.is_image else []),
    ]
    json_schema = {
        "oneOf": [
            {"type": "object", "properties": one, "required": [*one], "additionalProperties": False} for one in objects
        ]
    }
    content: dict[str, Any] = {"application/json": {"schema": json_schema}}
    if predictor.is_image:
        binary = {"type": "string", "format": "binary"}
        form = {"type": "object", "properties": {"file": binary}, "required": ["file"]}
        content |= {"multipart/form-data": {"schema": form}, "image/png": {"schema": binary}}
    return {"required": True, "content": content}


def _v2_body() -> dict[str, Any]:
    """The body of a request to infer, likewise."""
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": protocol.INPUT},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": {"type": "string"},
            "data": {"type": "array", "items": {}},
            "parameters": {"type": "object"},
        },
    }
    output = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    schema = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
            "outputs": {"type": "array", "items": output},
            "parameters": {"type": "object"},
        },
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _docs_page(app: FastAPI, predictor: Predictor, drift: str | None) -> str:
    """A page that lists every address, and says what the monitor has found; it loads nothing from elsewhere."""
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code><td><code>{html.escape(path)}</code><td>{html.escape(one['summary'])}"
        for path, methods in app.openapi()["paths"].items()
        for method, one in methods.items()
    )
    inputs = (
        "curl -F file=@image.png http://HOST/v1/predict"
        if predictor.is_image
        else f"curl --json '{{\"inputs\": [[{', '.join(['0.0'] * min(predictor.shape[0], 3))}]]}}' http://HOST/v1/predict"
    )
    return (
        "<!doctype html><meta charset=utf-8><title>ddu</title>"
        "<style>body{font:1rem/1.5 system-ui;max-width:50rem;margin:2rem auto;padding:0 1rem}"
        "td{padding:.2rem 1rem .2rem 0;vertical-align:top}pre{background:#eee;padding:1rem}</style>"
        f"<h1>{html.escape(predictor.name)}</h1><p>Predictions with two uncertainties and a verdict, by ddu "
        f"{__version__}. The description for programs is <a href=openapi.json>openapi.json</a>.</p>"
        f"<pre>{html.escape(inputs)}</pre><table>{rows}</table>"
        + (f"<h2>Drift</h2><pre>{html.escape(drift)}</pre>" if drift else "")
    )
