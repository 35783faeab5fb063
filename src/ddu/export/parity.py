"""Whether a graph in onnxruntime says what the detector says in PyTorch, and where it does not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddu.calibration import Calibration
from ddu.errors import ExportError
from ddu.export.graph import VERDICTS
from ddu.export.probes import Batch
from ddu.types import Prediction, Verdict

TOLERANCE = 1e-4
"""Of the spread of the held-out scores, and relative; of a probability."""

# Batches in which the probes of a kind go through the graph, the last one again and again
_SIZES = (1, 7, 64)

Run = Callable[[Batch], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Parity:
    """How well a graph agrees on one kind of inputs.

    Attributes:
        inputs: How many were compared.
        score: The largest difference of an epistemic score, as a share of the spread of the held-out ones; relative to
            the score itself where that is larger.
        probability: The largest difference of a probability.
        verdicts: How many verdicts were compared: those that are not within rounding of a threshold.
    """

    inputs: int
    score: float
    probability: float
    verdicts: int

    def to_json(self) -> dict[str, Any]:
        """The numbers by name."""
        return asdict(self)


def check(
    run: Run, judge: Callable[[Batch], Prediction], probes: Mapping[str, Batch], calibration: Calibration
) -> dict[str, Parity]:
    """Compares a graph with the detector on all probes, in batches of several sizes.

    Args:
        run: Runs the graph.
        judge: Asks the detector in PyTorch.
        probes: Inputs by kind.
        calibration: The detector's.

    Raises:
        ExportError: They disagree; the message says on what.
    """
    return {kind: _compared(kind, _in_batches(run, batch), judge(batch), calibration) for kind, batch in probes.items()}


def _in_batches(run: Run, batch: Batch) -> dict[str, np.ndarray]:
    found = [run(part) for part in _split(batch)]
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _split(batch: Batch) -> Iterator[Batch]:
    start, count = 0, len(next(iter(batch.values())))
    for index in range(count):
        stop = start + _SIZES[min(index, len(_SIZES) - 1)]
        yield {name: values[start:stop] for name, values in batch.items()}
        start = stop
        if start >= count:
            return


def _compared(kind: str, found: Mapping[str, np.ndarray], known: Prediction, calibration: Calibration) -> Parity:
    graph = {name: torch.from_numpy(values) for name, values in found.items()}
    bad = torch.tensor([one == Verdict.INVALID for one in np.asarray(known.verdict)])
    differing = (graph["verdict"] == VERDICTS.index(Verdict.INVALID)) != bad
    if differing.any():
        row = int(differing.nonzero()[0])
        words = _words(graph["verdict"][row]), np.asarray(known.verdict)[row]
        raise _disagreement(kind, row, "verdict", *words, "invalid inputs must be the same")
    graph = {name: values[~bad] for name, values in graph.items()}
    known = known[~bad]

    spread = float(calibration.held_out.epistemic.std(correction=0)) or 1.0
    score = known.epistemic.double().cpu()
    allowed = torch.where(score.isinf(), 0.0, TOLERANCE * (spread + score.abs()))
    score_gap = _gap(graph["epistemic"], score)
    if (beyond := score_gap > allowed).any():
        row = int(beyond.nonzero()[0])
        raise _disagreement(
            kind,
            row,
            "score",
            graph["epistemic"][row],
            score[row],
            f"may differ by {allowed[row]:.2g}{_worst(graph, known, row)}",
        )
    _compare(kind, "probability", graph["probs"], known.probs, TOLERANCE)
    _compare(kind, "entropy", graph["aleatoric"], known.aleatoric, TOLERANCE * (1 + known.aleatoric.cpu()))
    for index, (name, part) in enumerate((known.parts or {}).items()):
        _compare(
            kind, f"part {name!r}", graph["parts"][:, index], part, TOLERANCE * (spread + part.double().cpu().abs())
        )

    label = known.label.cpu()
    # Where two classes are as likely but for rounding, either may come first
    top = known.probs.cpu().topk(min(2, known.probs.shape[1]), dim=1).values
    settled = top[:, 0] - top[:, -1] > 2 * TOLERANCE if top.shape[1] > 1 else torch.ones_like(label, dtype=torch.bool)
    _compare(kind, "label", torch.where(settled, graph["label"], label), label, 0)
    ranked = settled if calibration.per_class else torch.ones_like(settled)
    low, high = (calibration.p_values(score + sign * allowed, label) for sign in (1, -1))
    outside = ranked & ((graph["p_value"] < low) | (graph["p_value"] > high))
    if outside.any():
        row = int(outside.nonzero()[0])
        assert known.p_value is not None
        raise _disagreement(
            kind,
            row,
            "p-value",
            graph["p_value"][row],
            known.p_value[row],
            f"must be from {low[row]:.4g} to {high[row]:.4g}",
        )
    if known.candidates is not None and calibration.candidate_level is not None:
        close = (known.probs.double().cpu() - calibration.candidate_level).abs() <= TOLERANCE
        unsure = close | ~settled[:, None]
        _compare(
            kind,
            "candidate",
            graph["candidates"].long().masked_fill(unsure, 0),
            known.candidates.long().cpu().masked_fill(unsure, 0),
            0,
        )
    return Parity(
        inputs=len(bad),
        score=float((score_gap / (spread + score.abs())).nan_to_num(0.0).max()) if len(score) else 0.0,
        probability=float(_gap(graph["probs"], known.probs).max()) if len(score) else 0.0,
        verdicts=_compare_verdicts(kind, graph["verdict"], known, calibration, allowed, ranked) + int(bad.sum()),
    )


def _compare_verdicts(
    kind: str, codes: Tensor, known: Prediction, calibration: Calibration, allowed: Tensor, ranked: Tensor
) -> int:
    """Every verdict that no rounding of score and entropy could change is the same."""
    score, entropy, label = known.epistemic.double().cpu(), known.aleatoric.double().cpu(), known.label.cpu()
    slack = TOLERANCE * (1 + entropy)
    possible = [
        calibration.verdicts(score + sign * allowed, entropy + other * slack, label)
        for sign in (1, -1)
        for other in (1, -1)
    ]
    verdict = np.asarray(known.verdict, dtype=object)
    sure = np.all([one == verdict for one in possible], axis=0) & ranked.numpy()
    expected = np.array([VERDICTS.index(one) for one in verdict], dtype=np.int64)
    wrong = sure & (codes.numpy() != expected)
    if wrong.any():
        row = int(np.nonzero(wrong)[0][0])
        raise _disagreement(
            kind, row, "verdict", _words(codes[row]), verdict[row], "is not within rounding of a threshold"
        )
    return int(sure.sum())


def _gap(found: Tensor, known: Tensor) -> Tensor:
    """Absolute differences in double precision; equal infinities differ by nothing, NaN by everything."""
    found, known = found.double(), known.double().cpu()
    return torch.where(found == known, 0.0, (found - known).abs()).nan_to_num(torch.inf, posinf=torch.inf)


def _compare(kind: str, what: str, found: Tensor, known: Tensor, allowed: Tensor | float) -> None:
    gap, limit = _gap(found, known), torch.as_tensor(allowed, dtype=torch.float64)
    beyond = gap > limit
    if beyond.any():
        place = tuple(beyond.nonzero()[0].tolist())
        most = float(limit.expand_as(gap)[place])
        raise _disagreement(kind, place[0], what, found[place], known[place], f"may differ by {most:.2g}")


def _worst(graph: Mapping[str, Tensor], known: Prediction, row: int) -> str:
    """The part that differs most."""
    if not known.parts:
        return ""
    gaps = {name: float(_gap(graph["parts"][row, i], part[row])) for i, (name, part) in enumerate(known.parts.items())}
    name = max(gaps, key=lambda one: gaps[one])
    return f"; the part {name!r} differs by {gaps[name]:.2g}"


def _words(code: Tensor) -> str:
    return VERDICTS[int(code)] if 0 <= int(code) < len(VERDICTS) else str(int(code))


def _disagreement(kind: str, row: int, what: str, found: Any, known: Any, limit: str) -> ExportError:
    graph, torchs = (one if isinstance(one, str) else f"{float(one):.6g}" for one in (found, known))
    return ExportError(
        f"The exported graph disagrees with PyTorch on {kind} inputs: the {what} of input {row} is {graph} in the "
        f"graph and {torchs} in PyTorch, and {limit}. Nothing was written."
    )
