"""Renews the simulation in docs/thresholds.md: are the promised rates kept?

    make guide

Draws held-out sets again and again from a distribution that is known, so that what comes of each can be worked out on
10,000 more inputs. Five classes; the scores of the last, a tenth of the inputs, are larger. The logits are three times
too large, so that each set has its temperature to find. Takes two minutes.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ddu.calibration import Calibration, calibrate
from ddu.conformal import benjamini_hochberg
from ddu.errors import InputError
from ddu.measures import entropy
from ddu.types import Verdict

ROOT = Path(__file__).parents[1]
SETS, HELD_OUT, NEW = 1000, 500, 10_000
ODD = 4  # the class whose scores are larger


class Inputs(NamedTuple):
    """Inputs of a distribution that is known."""

    logits: Tensor
    scores: Tensor
    labels: Tensor


def draw(count: int, generator: torch.Generator) -> Inputs:
    """Inputs with the labels that their logits predict, at a temperature of 3."""
    shares = torch.tensor([0.225, 0.225, 0.225, 0.225, 0.1])
    likeliest = torch.multinomial(shares, count, replacement=True, generator=generator)
    logits = torch.randn(count, len(shares), generator=generator)
    logits[torch.arange(count), likeliest] += 5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    scores = torch.randn(count, generator=generator) + (logits.argmax(1) == ODD)
    return Inputs(3 * logits, scores, labels)


def simulate(judge: Callable[[Calibration, Inputs], float], **settings: Any) -> np.ndarray:
    """What comes of each held-out set, one number each; NaN where the promise was refused."""
    found = []
    for seed in range(SETS):
        generator = torch.Generator().manual_seed(seed)
        held_out, new = draw(HELD_OUT, generator), draw(NEW, generator)
        try:
            found.append(judge(calibrate(*held_out, **settings), new))
        except InputError:
            found.append(np.nan)
    return np.array(found)


def verdicts(calibration: Calibration, new: Inputs) -> tuple[np.ndarray, Tensor]:
    """The verdicts, and the predicted classes."""
    label, scaled = new.logits.argmax(1), new.logits / calibration.temperature
    return calibration.verdicts(new.scores, entropy(scaled), label), label


def false_alarms(calibration: Calibration, new: Inputs, *, odd: bool = False) -> float:
    """The share that is flagged, of all or of what is predicted as the odd class."""
    verdict, label = verdicts(calibration, new)
    flagged = verdict == Verdict.OUT_OF_DISTRIBUTION
    return float(flagged[(label == ODD).numpy()].mean() if odd else flagged.mean())


def errors(calibration: Calibration, new: Inputs) -> float:
    """The share of what is called in distribution that is wrong."""
    verdict, label = verdicts(calibration, new)
    return float((label != new.labels).numpy()[verdict == Verdict.IN_DISTRIBUTION].mean())


def covered(calibration: Calibration, new: Inputs) -> float:
    """The share whose right class is a candidate."""
    probs = (new.logits / calibration.temperature).softmax(1)
    candidates = calibration.candidates(probs, probs.argmax(1))
    assert candidates is not None
    return float(candidates.gather(1, new.labels[:, None]).double().mean())


def false_discoveries(calibration: Calibration, new: Inputs) -> float:
    """Of what is found in a batch of 100, of which 20 are outliers, the share that is none."""
    scores, label = new.scores[:100].clone(), new.logits[:100].argmax(1)
    scores[:20] += 6
    found = benjamini_hochberg(calibration.p_values(scores, label), 0.1)
    return float(found[20:].sum()) / max(int(found.sum()), 1)


def percent(share: float) -> str:
    """A share in words, to a tenth of a per cent."""
    return f"{100 * share:.1f} %"


def table() -> list[str]:
    """What was promised, and what came of it."""
    alarms = simulate(false_alarms, false_alarm_rate=0.05)
    sure = simulate(false_alarms, false_alarm_rate=0.05, confidence=0.95)
    for_all = simulate(lambda *given: false_alarms(*given, odd=True), false_alarm_rate=0.1)
    per_class = simulate(lambda *given: false_alarms(*given, odd=True), false_alarm_rate=0.1, per_class=True)
    wrong = simulate(errors, error_rate=0.05)
    sets = simulate(covered, coverage=0.95)
    discoveries = simulate(false_discoveries, false_alarm_rate=0.05)
    rows = [
        ("`false_alarm_rate=0.05`", "5 % flagged on average", f"{percent(alarms.mean())} flagged"),
        (
            "the same with `confidence=0.95`",
            "at most 5 % of sets flag more",
            f"{percent((sure > 0.05).mean())} of sets",
        ),
        ("`false_alarm_rate=0.1`, the odd class", "none", f"{percent(float(np.nanmean(for_all)))} flagged"),
        ("the same with `per_class=True`", "10 % flagged", f"{percent(float(np.nanmean(per_class)))} flagged"),
        (
            "`error_rate=0.05`",
            "at most 5 % of sets err more",
            f"{percent((wrong > 0.05).mean())} of sets; {percent(np.isnan(wrong).mean())} refused",
        ),
        ("`coverage=0.95`", "95 % covered on average", f"{percent(sets.mean())} covered"),
        (
            "`outliers(false_discovery_rate=0.1)`, 20 of 100",
            "10 % of what is found, on average",
            percent(discoveries.mean()),
        ),
    ]
    return ["| asked for | promised | simulated |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def main() -> None:
    """Rewrites the table in docs/thresholds.md."""
    torch.set_num_threads(1)
    page = ROOT / "docs/thresholds.md"
    text, times = re.subn(
        r"\| asked for \|.*?\n(?=\n)", lambda _: "\n".join(table()) + "\n", page.read_text(), flags=re.DOTALL
    )
    assert times == 1
    page.write_text(text)


if __name__ == "__main__":
    main()
