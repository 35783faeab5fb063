"""Renews what the README shows of the demo: the printed table, the numbers and the picture.

    make readme

Runs the demo with five seeds in a temporary folder, then the README's own code beside the first. Takes a few minutes.
"""

import contextlib
import io
import json
import re
import tempfile
from pathlib import Path

import ddu
from ddu.data import digits_demo_data
from ddu.demo import load_network, run_demo
from ddu.report import density_histogram, entropy_histogram

ROOT = Path(__file__).parents[1]
SEEDS = range(5)


def code_blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run_code(code: str, folder: Path) -> str:
    """What a block of code prints when it is run in a folder."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    return printed.getvalue().rstrip() + "\n"


def score_rows(metrics: Path) -> dict[str, float]:
    """The numbers of one demo that the README shows."""
    scores = json.loads(metrics.read_text())["scores"]
    photos, doubt = scores["photos_vs_digits"], scores["ambiguous_vs_clean"]
    return {
        "accuracy on clean test digits": scores["accuracy_clean"],
        "accuracy on ambiguous ones, whose label is a draw": scores["accuracy_ambiguous"],
        "the best possible there": scores["accuracy_ambiguous_best"],
        "expected calibration error, clean and ambiguous, as trained": scores["ece_uncalibrated"],
        "the same with temperature": scores["ece"],
        "the same if it were perfect, from the number of samples alone": scores["ece_by_chance"],
        "AUROC of entropy, photographs against all digits": photos["entropy"],
        "**AUROC of density, photographs against all digits**": photos["density"],
        "AUROC of entropy, ambiguous against clean digits": doubt["entropy"],
        "clean and ambiguous digits called out of distribution, where 0.01 was allowed": scores["false_alarm_rate"],
        "photographs called out of distribution": scores["verdicts"]["photos"]["out_of_distribution"],
    }


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

    data = digits_demo_data(seed=0)
    detector = ddu.load(folder / "detector", load_network(folder / "model.safetensors"))
    sets = {"clean digits": data.clean.images, "ambiguous digits": data.ambiguous.images, "photo patches": data.photos}
    judged = {name: detector.predict(images) for name, images in sets.items()}
    entropy_threshold, density_threshold = detector.entropy_threshold or 0.0, -(detector.epistemic_threshold or 0.0)
    panels = [
        entropy_histogram({n: p.aleatoric for n, p in judged.items()}, entropy_threshold, num_classes=10),
        density_histogram({n: -p.epistemic for n, p in judged.items()}, density_threshold),
    ]
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
    readme = ROOT / "README.md"
    text = readme.read_text()
    with tempfile.TemporaryDirectory() as folder:
        demos = [run_demo(Path(folder, f"demo{seed or ''}"), seed=seed) for seed in SEEDS]
        printed = run_code(code_blocks(text, "python")[0], Path(folder))
        draw(Path(folder, "demo"), ROOT / "docs/images/demo.png")
        table = score_table([score_rows(demo.metrics) for demo in demos])
    text = re.sub(r"```text\n.*?```", lambda _: f"```text\n{printed}```", text, count=1, flags=re.DOTALL)
    text = re.sub(r"(`make readme`:\n\n).*?\n(?=\n## )", lambda m: m[1] + table, text, flags=re.DOTALL)
    readme.write_text(text)


if __name__ == "__main__":
    main()
