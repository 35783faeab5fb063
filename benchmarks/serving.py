"""A server under load: 64 clients, one bad request in ten, and each client checks that its answers are its own.

python -m benchmarks.serving                  # memory over 10,000 requests, 60 s of load, 12 rounds of batches
python -m benchmarks.serving --quick          # 2,000 requests, 10 s, 6 rounds
python -m benchmarks.serving --only memory    # one of memory, load and batching

The clients run on the same machine, in one process.
"""

import argparse
import base64
import http.client
import io
import json
import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ddu
from benchmarks._ratio import Ratio
from ddu.data import Preprocessing
from ddu.features import FeatureBatch
from ddu.serving import Limits, bind, make_app, run_app
from ddu.sources import DetectorSource

CLIENTS = 64
PARTS = ("memory", "load", "batching")
_BAD = (  # content type, body, status
    ("image/png", b"no image", 422),
    ("text/plain", b"words", 415),
    ("application/json", b"{", 400),
    ("application/json", b'{"inputs": [1, 2, 3]}', 422),
    ("application/json", b'{"inputs": [[null, null], [null, null]]}', 422),
    ("image/png", bytes(17 * 2**20), 413),
)


def make_source() -> DetectorSource:
    """A ResNet-18 x 1/4 for 32 x 32 images, and a detector that was fitted to noise: only the cost counts."""
    torch.manual_seed(0)
    detector = ddu.DDU(ddu.create_model("resnet18", num_classes=10, width=0.25).eval())
    width = detector.tap(torch.zeros(2, 3, 32, 32)).features.shape[1]
    labels = torch.arange(10_000) % 10
    rows = [
        FeatureBatch(torch.rand(len(y), width), 5 * torch.eye(10)[y] + torch.randn(len(y), 10), y)
        for y in labels.split(1000)
    ]
    detector.fit(rows[:8], progress=False).calibrate(rows[8:], progress=False)
    preprocessing = Preprocessing((3, 32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)
    return DetectorSource("resnet18", detector, preprocessing, "0" * 12, {"kind": "benchmark"})


def _serve(pipe: Any, batch: int) -> None:
    torch.set_num_threads(1)
    with bind("127.0.0.1", 0) as listener:
        app = make_app(make_source(), limits=Limits(batch=batch, linger=0.002 if batch > 1 else 0.0))
        run_app(app, listener, on_ready=lambda _: pipe.send(listener.getsockname()[1]))


@contextmanager
def server(batch: int) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and its id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, batch), daemon=True)
    process.start()
    try:
        port = ours.recv()
        assert process.pid is not None
        yield port, process.pid
    finally:
        process.terminate()
        process.join(60)


class Load:
    """Clients that ask for their own images, and count what they are told."""

    def __init__(self, images: int = 256):
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
        self.expected = make_source().predict(pixels).epistemic.tolist()
        self.files = []
        for one in pixels:
            file = io.BytesIO()
            Image.fromarray(one).save(file, "PNG")
            self.files.append(file.getvalue())

    def send_every_size(self, port: int, batch: int) -> None:
        """Asks for batches of every size: PyTorch keeps the kernels of each that it has seen."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        images = [base64.b64encode(file).decode() for file in self.files[:batch]]
        for size in range(1, batch + 1):
            body = json.dumps({"images": images[:size]})
            connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert len(json.loads(answer.read())["predictions"]) == size
        connection.close()

    def run(self, port: int, keep_on: Callable[[int], bool], *, bad: float = 0.1) -> Counter[str]:
        """Asks until `keep_on` of the number of answers so far is false; what became of every request."""
        counts: Counter[str] = Counter()
        clients = [
            threading.Thread(target=self._ask, args=(port, keep_on, bad, counts, seed)) for seed in range(CLIENTS)
        ]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        return counts

    def _ask(self, port: int, keep_on: Callable[[int], bool], bad: float, counts: Counter[str], seed: int) -> None:
        dice = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while keep_on(counts.total()):
            index = dice.randrange(len(self.files))
            kind, body, expected = "image/png", self.files[index], 200
            if dice.random() < bad:
                kind, body, expected = dice.choice(_BAD)
            counts[self._outcome(connection, kind, body, expected, index)] += 1
        connection.close()

    def _outcome(self, connection: http.client.HTTPConnection, kind: str, body: bytes, status: int, index: int) -> str:
        try:
            connection.request("POST", "/v1/predict", body, {"Content-Type": kind})
            answer = connection.getresponse()
            content = json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            connection.close()
            # A body that is too large is refused before it is read to its end
            return "refused" if status == 413 else "lost"
        if answer.status == 503:
            return "503"
        if answer.status >= 500:
            return "5xx"
        if answer.status != status:
            return "wrong status"
        if status != 200:
            return "refused"
        (row,) = content["predictions"]
        right = abs(row["epistemic"] - self.expected[index]) <= 1e-3 * (1 + abs(self.expected[index]))
        return "own answer" if right else "another's answer"


def _memory(process: int) -> float:
    """What a process holds, in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def _for(seconds: float) -> Callable[[int], bool]:
    end = time.monotonic() + seconds
    return lambda _: time.monotonic() < end


def _rate(load: Load, port: int, seconds: float) -> float:
    """Answers per second, with the time until the last client has its last one."""
    begun = time.monotonic()
    answered = load.run(port, _for(seconds), bad=0.0)["own answer"]
    return answered / (time.monotonic() - begun)


def _outcomes(counts: Counter[str], seconds: int) -> str:
    """A line with the count of each outcome, and whether one of them may not be."""
    wrong = sum(counts[what] for what in ("5xx", "lost", "wrong status", "another's answer"))
    found = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    return f"{CLIENTS} clients for {seconds} s: {found}; {wrong:,} went wrong   {'not met' if wrong else 'met'}"


def run(*, quick: bool = False, parts: Collection[str] = PARTS) -> Iterator[Ratio | str]:
    """All ratios of this file, and what became of every request."""
    load, batch = Load(), 64
    seconds, rounds, length, requests = (10, 6, 3.0, 2_000) if quick else (60, 12, 5.0, 10_000)
    with server(batch) as (port, process):
        if "memory" in parts:
            yield from _memory_lines(load, port, process, batch, requests)
        if "load" in parts:
            yield _outcomes(load.run(port, _for(seconds)), seconds)
        if "batching" in parts:
            yield _batching_ratio(load, port, rounds, length)


def _memory_lines(load: Load, port: int, process: int, batch: int, requests: int) -> Iterator[Ratio | str]:
    """What the kernels of all batch sizes take, and whether memory then stays as it is."""
    load.run(port, lambda done: done < requests / 10)  # until the allocator has what it needs
    first = _memory(process)
    load.send_every_size(port, batch)
    before = _memory(process)
    yield f"batches of 1 to {batch} inputs, once each: {first:.0f} MB become {before:.0f} MB"
    after = []
    for _ in range(10):
        load.run(port, lambda done: done < requests / 10)
        after.append(_memory(process) / before)
    note = f"{before:.0f} MB, at the end {after[-1]:.3f} of it"
    yield Ratio(f"memory after each tenth of {requests:,} requests / before", after, under=1.05, note=note)


def _batching_ratio(load: Load, port: int, rounds: int, length: float) -> Ratio:
    """Throughput in batches against that of batches of one."""
    with server(batch=1) as (single, _):
        load.run(single, lambda done: done < 200)
        values, rates = [], []
        for _ in range(rounds):
            rates.append([_rate(load, one, length) for one in (single, port)])
            values.append(rates[-1][1] / rates[-1][0])
    slow, fast = np.median(rates, axis=0)
    return Ratio(
        f"inputs per second, {CLIENTS} clients, ResNet-18 x 1/4: batches / one by one",
        values,
        over=3,
        note=f"{fast:.0f} against {slow:.0f} per second",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a shorter profile")
    parser.add_argument("--only", choices=PARTS, help="measure one of these; all by default")
    options = parser.parse_args()
    for line in run(quick=options.quick, parts=[options.only] if options.only else PARTS):
        print(line, flush=True)
