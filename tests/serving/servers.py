"""Small detectors to serve, and servers in threads on free ports."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import requests
import torch
import uvicorn
from PIL import Image
from torch import nn

import ddu
from ddu.data import Preprocessing
from ddu.serving import bind, make_app
from ddu.sources import DetectorSource


def make_source(shape: tuple[int, ...] = (1, 8, 8), *, paper: bool = True) -> DetectorSource:
    """The paper's detector or the default one around a network that was not trained, for images or vectors."""
    torch.manual_seed(0)
    width = int(np.prod(shape))
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    scale = {"mean": (0.5,) * shape[0], "std": (0.25,) * shape[0]} if len(shape) == 3 else {}
    preprocessing = Preprocessing(shape, **scale)
    inputs = torch.rand(1000, *shape) if len(shape) == 1 else (torch.rand(1000, *shape) - 0.5) / 0.25
    with torch.no_grad():
        labels = (model(inputs) + torch.randn(1000, 3) * 0.1).argmax(1)
    loader = [(inputs[:600], labels[:600])], [(inputs[600:], labels[600:])]
    names = ("ant", "bee", "cat")
    detector = ddu.DDU.paper(model, class_names=names, features="2") if paper else ddu.DDU(model, class_names=names)
    detector.fit(loader[0], progress=False).calibrate(loader[1], 0.05, probes=False, progress=False)
    return DetectorSource("runs/tiny", detector, preprocessing, "0123456789ab", {"kind": "test"})


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def grey_images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8), dtype=np.uint8)


class Client:
    """A server's address, and requests to it."""

    def __init__(self, address: str, server: uvicorn.Server, app: Any, thread: threading.Thread):
        self.address, self.server, self.app, self._thread = address, server, app, thread

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.address + path, timeout=30, **options)

    def post(self, path: str = "/v1/predict", **options: Any) -> requests.Response:
        return requests.post(self.address + path, timeout=30, **options)

    def stop(self) -> None:
        self.server.should_exit = True

    def join(self) -> None:
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()


@contextmanager
def served(source: Any, **options: Any) -> Iterator[Client]:
    """Serves a source in a thread."""
    app = make_app(source, **options)
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=20))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", server, app, thread)
    try:
        yield client
    finally:
        client.stop()
        client.join()
        listener.close()
