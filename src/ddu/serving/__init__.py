"""A server around whatever judges raw inputs: micro-batches, HTTP for people and for machines, metrics.

    ddu serve runs/mnist --port 8000
    app = ddu.serving.make_app(ddu.sources.open_source("runs/mnist"))  # for any ASGI server, in one process

Decoding happens in a few threads, judging in one; a queue with an end lies between them.
"""

from ddu.serving.app import make_app
from ddu.serving.batching import MicroBatcher
from ddu.serving.requests import Limits, RefusedError
from ddu.serving.server import bind, run_app

__all__ = ["Limits", "MicroBatcher", "RefusedError", "bind", "make_app", "run_app"]
