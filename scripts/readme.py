"""Renews what the README shows: the table that its quick start prints, and the demo's numbers and picture.

    make readme

Runs the README's own code, and the demo with five seeds. Takes a few minutes. With a folder as its
argument, the demos stay there, and those that are finished are not run again.
"""

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddu.experiments.demo import PHOTOS, RUN, Demo, draw_histograms, find_value, load_judgements
from ddu.results import Row
from ddu.runs import load_run

ROOT = Path(__file__).parents[1]
SEEDS = range(5)

NUMBERS = {
    "accuracy on clean test digits": ("accuracy_clean", "ddu", None),
    "accuracy on ambiguous ones, whose label is a draw": ("accuracy_ambiguous", "ddu", None),
    "the best possible there": ("accuracy_ambiguous_best", "ddu", None),
    "expected calibration error, clean and ambiguous, as trained": ("ece_uncalibrated", "ddu", None),
    "the same with temperature": ("ece", "ddu", None),
    "the same if it were perfect, from the number of samples alone": ("ece_by_chance", "ddu", None),
    "AUROC of entropy, photographs against all digits": ("auroc", "softmax", PHOTOS),
    "**AUROC of the epistemic score, photographs against all digits**": ("auroc", "ddu", PHOTOS),
    "AUROC of entropy, ambiguous against clean digits": ("auroc_ambiguous", "softmax", None),
    "clean and ambiguous digits called out of distribution, where 0.01 was allowed": ("false_alarm_rate", "ddu", None),
    "photographs called out of distribution": ("detection_rate", "ddu", PHOTOS),
}
"""What the README calls a number, and the metric, detector and OoD set of its row."""


def code_blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run_code(code: str, folder: Path) -> str:
    """What a block of code prints when it is run in a folder."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    return printed.getvalue().rstrip() + "\n"


def run_quick_start(text: str, folder: Path) -> str:
    """What the quick start prints: the module with the network is written to a folder and run, then what wraps it."""
    module, code = code_blocks(text, "python")
    (folder / "my_models.py").write_text(module)
    run_code(module, folder)
    sys.path.insert(0, str(folder))
    try:
        return run_code(code, folder)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("my_models", None)


def score_rows(rows: Sequence[Row]) -> dict[str, float]:
    """The numbers of one demo that the README shows."""
    return {name: find_value(rows, *key) for name, key in NUMBERS.items()}


def score_table(demos: list[dict[str, float]]) -> str:
    """The numbers of the first demo, and the range of all of them, as Markdown."""
    rows = []
    for name, value in demos[0].items():
        values = [demo[name] for demo in demos]
        rows.append(f"| {name} | {value:.3f} | {min(values):.3f} to {max(values):.3f} |")
    return "\n".join([f"| | seed 0 | seeds 0 to {len(demos) - 1} |", "|---|---|---|", *rows]) + "\n"


def draw(folder: Path, picture: Path) -> None:
    """Both histograms of the demo, side by side."""
    import numpy as np
    from matplotlib import image, pyplot

    panels = [figure for figure, _ in draw_histograms(load_judgements(folder), load_run(folder / RUN).detector)]
    pixels = []
    for panel in panels:
        buffer = io.BytesIO()
        panel.savefig(buffer, format="png", dpi=130, facecolor="white")
        buffer.seek(0)
        pixels.append(image.imread(buffer))
    picture.parent.mkdir(parents=True, exist_ok=True)
    pyplot.imsave(picture, np.concatenate(pixels, axis=1))


def main() -> None:
    """Rewrites README.md and docs/images/demo.png."""
    with contextlib.ExitStack() as stack:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(tempfile.TemporaryDirectory()))
        demos = [Demo(seed).measure(folder / f"demo{seed or ''}", command=f"ddu demo --seed {seed}") for seed in SEEDS]
        readme = ROOT / "README.md"
        text = readme.read_text()
        printed = run_quick_start(text, folder)
        draw(folder / "demo", ROOT / "docs/images/demo.png")
    table = score_table([score_rows(rows) for rows in demos])
    text = re.sub(r"```text\n.*?```", lambda _: f"```text\n{printed}```", text, count=1, flags=re.DOTALL)
    text = re.sub(r"(`make readme`:\n\n).*?\n(?=\n## )", lambda m: m[1] + table, text, flags=re.DOTALL)
    readme.write_text(text)


if __name__ == "__main__":
    main()
