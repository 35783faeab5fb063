"""Processes that save two detectors to one folder: a script for the tests of concurrency."""

import os
import random
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

import ddu


class Savers:
    """Two detectors of one network, the first of them saved in a folder."""

    def __init__(self, folder: Path, width: int):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.folder = folder
        self.model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        self.x = torch.randn(400, 4)
        y = self.model(self.x).argmax(1)  # as good as trained
        self.detectors = [
            ddu.DDU(self.model, class_names=list(names)).fit([(self.x * scale, y)])
            for names, scale in (("ab", 1), ("cd", 2))
        ]
        self.scores = {detector.class_names: detector.predict(self.x).epistemic for detector in self.detectors}
        self.detectors[0].save(folder)

    def check(self) -> tuple[str, ...] | None:
        """Loads what is there, which must be one of the two, and returns its class names."""
        loaded = ddu.load(self.folder, self.model)
        assert torch.equal(loaded.predict(self.x).epistemic, self.scores[loaded.class_names])
        return loaded.class_names

    def files(self) -> list[str]:
        return os.listdir(self.folder)


def crowd(folder: Path, processes: int, threads: int, turns: int) -> None:
    """Processes with threads save two detectors and load what is there, all at the same time."""
    savers = Savers(folder, width=32)

    def work(turn: int) -> None:
        savers.detectors[turn % 2].save(folder)
        savers.check()

    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)  # remakes torch's pool after the fork, which two threads at once get wrong
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(work, range(turns)))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * processes
    assert savers.files() == ["detector.safetensors"], savers.files()


def kills(folder: Path, rounds: int) -> None:
    """In each round, kills a process that saves two detectors in turn at some moment, and loads what is there.

    Prints how many kills came halfway through a save, how many detectors were found, and the files left at the end.
    """
    savers, draw = Savers(folder, width=96), random.Random(0)
    outcomes, halfway = set(), 0
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            while True:
                for detector in reversed(savers.detectors):
                    detector.save(folder)
        time.sleep(draw.uniform(0.01, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        halfway += len(savers.files()) > 1
        outcomes.add(savers.check())
    savers.detectors[1].save(folder)
    print(halfway, len(outcomes), len(savers.files()))


if __name__ == "__main__":
    mode, folder, *numbers = sys.argv[1:]
    {"crowd": crowd, "kills": kills}[mode](Path(folder), *map(int, numbers))
