"""Measures how soon drift is found: docs/monitoring.md.

    python scripts/drift.py              # simulated streams, in less than a minute
    python scripts/drift.py --cifar10    # and streams of CIFAR-10, CIFAR-10-C and new classes, in some minutes more

Prints the tables, and writes them into docs/monitoring.md.

The network is one that people bring: EfficientNet-Lite0 with its ImageNet weights and a new head for CIFAR-10. 1,000
test images come before the change, and 1,000 others after it, in a new order for each stream. The data is looked for
in DDU_DATA. With a folder, --cifar10 FOLDER, the head stays there and is not trained again.
"""

import argparse
import math
import re
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

import ddu
from ddu import data
from ddu.data import ArrayDataset
from ddu.data.corruptions import corrupt
from ddu.experiments.pretrained import HeadSpec, TrainedHead, train_head
from ddu.monitoring import Monitor

PAGE = Path(__file__).parents[1] / "docs" / "monitoring.md"
HEAD = HeadSpec("efficientnet_lite0", "cifar10", size=64, limit=6000)
CORRUPTIONS, SEVERITIES = ("gaussian_noise", "motion_blur", "fog", "jpeg_compression"), (1, 3, 5)
REPEATS, MOST, BEFORE, STREAMS = 11, 1000, 1000, 20


def main() -> None:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar10", metavar="FOLDER", nargs="?", const="", help="streams of CIFAR-10 as well")
    chosen = parser.parse_args().cifar10
    write("simulated", f"{promise()}\n\n{simulated()}")
    if chosen is not None:
        with nullcontext(chosen) if chosen else tempfile.TemporaryDirectory() as folder:
            write("cifar10", measured(train_head(HEAD, folder, command="python scripts/drift.py --cifar10")))


def write(name: str, text: str) -> None:
    """Prints tables, and puts them between the marks of their name in the page."""
    print(text, flush=True)
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(between.sub(lambda marks: f"{marks[1]}\n{text}\n\n{marks[2]}", PAGE.read_text()))


def promise() -> str:
    """The rate of false alarms on streams like the calibration data."""
    rows = []
    for rate, calibration in ((0.1, 100), (0.1, 1000)):
        alarms = 0
        for seed in range(STREAMS):
            random = np.random.default_rng(seed)
            monitor = Monitor(random.normal(size=calibration), false_alarm_rate=rate, seed=seed)
            alarms += monitor.update(random.normal(size=100_000)).report().alarm
        rows.append(f"| {rate:.0%} | {calibration:,} | {alarms} |")
    head = f"| promised rate | calibration inputs | streams of 100,000 inputs with a false alarm, of {STREAMS} |"
    return "\n".join([head, "|---|---|---|", *rows])


def delay(calibration: np.ndarray, before: Callable, after: Callable) -> tuple[float, float]:
    """The median number of changed inputs until an alarm at a rate of 1 %, and the share of streams with one."""
    found = []
    for seed in range(REPEATS):
        random = np.random.default_rng(seed)
        monitor = Monitor(calibration, seed=seed).update(before(random))
        start = monitor.report().inputs
        at = monitor.update(after(random)).report().alarm_at
        found.append(math.inf if at is None else max(at - start, 0))
    return float(np.median(found)), float(np.mean(np.isfinite(found)))


def line(name: str, numbers: list[tuple[float, float]]) -> str:
    cells = (f"{median:.0f}" if math.isfinite(median) else f"over {MOST:,}" for median, _ in numbers)
    return f"| {name} | {' | '.join(cells)} |"


def simulated() -> str:
    """Changes of stated size in scores that are normally distributed."""
    changes = {
        "all scores larger by 0.25 deviations": lambda x, _: x + 0.25,
        "all scores larger by 0.5 deviations": lambda x, _: x + 0.5,
        "all scores larger by 1 deviation": lambda x, _: x + 1,
        "all scores smaller by 0.5 deviations": lambda x, _: x - 0.5,
        "scores vary half as much": lambda x, _: x / 2,
        "a new class at 5 %, its scores larger by 4 deviations": lambda x, r: x + 4 * (r.random(len(x)) < 0.05),
        "a new class at 2 %, likewise": lambda x, r: x + 4 * (r.random(len(x)) < 0.02),
    }
    rows = []
    for name, change in changes.items():
        calibration = np.random.default_rng(0).normal(size=1000)
        rows.append(
            line(
                name,
                [
                    delay(calibration, lambda r, n=n: r.normal(size=n), lambda r, c=change: c(r.normal(size=MOST), r))
                    for n in (0, 1000, 10_000)
                ],
            )
        )
    head = "| simulated scores, 1,000 for calibration | from the first input | after 1,000 | after 10,000 |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def scorer(head: TrainedHead) -> tuple[np.ndarray, Callable[[ArrayDataset], np.ndarray]]:
    """The calibration scores of the default detector, and what gives the scores of a set."""
    train, held_out, _ = head.load_data()
    detector = ddu.DDU(head.load_model(), class_names=head.info.classes)
    detector.fit(data.loader(train)).calibrate(data.loader(held_out))
    assert detector.calibration is not None

    def score(inputs: ArrayDataset) -> np.ndarray:
        found = [detector.evidence(images).epistemic for images, _ in data.loader(inputs)]
        return torch.cat(found).double().numpy()

    return detector.calibration.held_out.epistemic.numpy(), score


def measured(head: TrainedHead) -> str:
    """Corrupted images, and new classes among the known ones."""
    calibration, score = scorer(head)
    test = head.load_data().test
    rows = np.random.default_rng(0).permutation(len(test))
    known = score(test.subset(rows[:BEFORE]))
    later = test.subset(rows[BEFORE : BEFORE + MOST])

    def stream(scores: np.ndarray, n: int) -> Callable:
        return lambda random: random.choice(scores, n, replace=False)

    table = [
        f"| CIFAR-10-C, {len(calibration):,} for calibration | {' | '.join(f'severity {s}' for s in SEVERITIES)} |"
    ]
    table.append("|---" * (len(SEVERITIES) + 1) + "|")
    for name in CORRUPTIONS:
        found = []
        for severity in SEVERITIES:
            images = corrupt(later.inputs, name, severity)
            corrupted = score(ArrayDataset(images, later.labels, later.info))
            found.append(delay(calibration, stream(known, BEFORE), stream(corrupted, MOST)))
        table.append(line(name.replace("_", " "), found))
    fresh = score(later)
    mixed = ["| new classes among test images | 20 % | 10 % | 5 % |", "|---|---|---|---|"]
    for name in ("svhn", "cifar100"):
        outside = data.load_ood(name, head.info)
        new = score(outside.subset(np.random.default_rng(0).permutation(len(outside))[:MOST]))

        def mixture(share: float, new: np.ndarray = new) -> Callable:
            def draw(random: np.random.Generator) -> np.ndarray:
                is_new = random.random(MOST) < share
                return np.where(is_new, random.choice(new, MOST, replace=False), random.permutation(fresh)[:MOST])

            return draw

        mixed.append(
            line(name, [delay(calibration, stream(known, BEFORE), mixture(share)) for share in (0.2, 0.1, 0.05)])
        )
    mixed.append(line("none", [delay(calibration, stream(known, BEFORE), stream(fresh, MOST))] * 3))
    return "\n".join(table) + "\n\n" + "\n".join(mixed)


if __name__ == "__main__":
    main()
