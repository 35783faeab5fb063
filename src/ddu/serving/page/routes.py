"""The routes of the page: its files, what it shows of the source, and the training examples nearest to an input."""

import base64
import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ddu.calibration import Calibration
from ddu.examples import Examples, penultimate
from ddu.messages import missing_extra
from ddu.serving.bodies import reader_of, reply
from ddu.serving.predictor import Inputs, Predictor
from ddu.serving.requests import RefusedError
from ddu.sources import DetectorSource

try:
    from anyio import CapacityLimiter
    from anyio.to_thread import run_sync
    from fastapi import FastAPI, Request
    from fastapi.responses import Response
except ModuleNotFoundError as error:
    raise missing_extra("serve", "ddu serve") from error

_FILES = {"/": "index.html", "/page/page.css": "page.css", "/page/page.js": "page.js"}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

PUBLIC = frozenset(_FILES)
"""The addresses that need no token."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_NEAREST = 6
_BARS = 44
# Of the range of known scores: how far the axis goes on below the least and above the threshold
_BELOW, _ABOVE = 0.15, 1.5


def add_page(app: FastAPI, predictor: Predictor, readers: CapacityLimiter) -> None:
    """Adds the page to an application.

    Args:
        app: The application, which has `/v1` for the page to use.
        predictor: Reads what clients send.
        readers: How many threads may decode at a time.
    """
    source, examples = predictor.source, predictor.source.examples
    one_at_a_time = CapacityLimiter(1)

    for path, name in _FILES.items():
        app.get(path, include_in_schema=False)(partial(_file, name))

    @app.get("/page/about", include_in_schema=False)
    async def about() -> Response:
        content = await run_sync(_about, predictor, examples)
        return reply(content | {"drift": app.state.monitor is not None}, headers=dict(_HEADERS))

    @app.post("/page/nearest", include_in_schema=False)
    async def nearest(request: Request) -> Response:
        if not isinstance(source, DetectorSource):
            raise RefusedError(404, "A bundle is a graph without features: the detector finds the nearest examples.")
        if examples is None:
            raise RefusedError(404, "No training examples are kept: fit the detector with --keep-examples.")
        inputs = await run_sync(await reader_of(request, predictor), limiter=readers)
        found = await run_sync(_nearest, source, examples, inputs, limiter=one_at_a_time)
        return reply({"nearest": found}, headers=dict(_HEADERS))


async def _file(name: str) -> Response:
    path = Path(__file__).with_name(name)
    return Response(path.read_bytes(), headers=_HEADERS, media_type=_TYPES[path.suffix])


def _about(predictor: Predictor, examples: Examples | None) -> dict[str, Any]:
    """Everything that the page shows before anything is judged."""
    source = predictor.source
    calibration, can_compare = source.calibration, isinstance(source, DetectorSource)
    return {
        "name": predictor.name,
        "network": source.description.get("network"),
        "data": source.description.get("data"),
        "shape": predictor.shape,
        "classes": source.class_names,
        "examples": 0 if examples is None or not can_compare else len(examples.labels),
        "thresholds": {
            "p_value": source.false_alarm_rate if calibration is None else calibration.p_value_threshold,
            "epistemic": calibration and calibration.epistemic_threshold,
            "entropy": source.entropy_threshold,
        },
        "histograms": calibration and histograms(calibration, {} if examples is None else examples.scores),
        "gallery": {} if examples is None else {name: _listed(*group) for name, group in examples.gallery.items()},
    }


def histograms(calibration: Calibration, others: Mapping[str, Tensor]) -> dict[str, Any]:
    """Scores of held-out inputs and of other sets, counted in the same bars.

    The axis is chosen by held-out scores and their threshold alone. What lies beyond it is counted in the first and in
    the last bar: far inputs would squeeze all else into one.

    Returns:
        The `edges` of the bars, and of each set its `shares`, which sum to 1, and its `count`.
    """
    held_out = calibration.held_out.epistemic.numpy()
    least, most = float(held_out.min()), calibration.epistemic_threshold
    most = float(held_out.max()) if most is None else most
    width = (most - least) or 1.0
    edges = np.linspace(least - _BELOW * width, most + _ABOVE * width, _BARS + 1)
    sets = {"held-out": held_out, **{name: scores.numpy() for name, scores in others.items()}}
    counts = {n: np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] for n, scores in sets.items()}
    return {
        "edges": edges.tolist(),
        "sets": [
            {"name": name, "count": len(sets[name]), "shares": (count / count.sum()).tolist()}
            for name, count in counts.items()
        ],
    }


def _nearest(source: DetectorSource, examples: Examples, inputs: Inputs) -> list[dict[str, Any]]:
    """The training examples nearest to the first of some inputs, in what the head of the network sees."""
    features = penultimate(source.detector)(inputs.tensor[:1]).features
    (distances,), (rows,) = examples.nearest(features, _NEAREST)
    names = source.class_names
    labels = [str(label) if names is None else names[label] for label in examples.labels[rows].tolist()]
    listed = _listed(examples.inputs[rows], labels)
    return [one | {"distance": float(distance)} for one, distance in zip(listed, distances, strict=True)]


def _listed(inputs: Tensor, words: Any) -> list[dict[str, Any]]:
    """Inputs with a word for each: the data URI of a PNG, or the numbers of a vector."""
    if inputs.ndim == 2:
        return [{"word": word, "vector": vector.tolist()} for word, vector in zip(words, inputs, strict=True)]
    return [{"word": word, "image": _data_uri(image)} for word, image in zip(words, inputs.numpy(), strict=True)]


def _data_uri(image: np.ndarray) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
