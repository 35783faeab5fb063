"""Renews the numbers and the picture of docs/dirty-mnist.md from a set that `ddu data make dirty-mnist` made.

python scripts/dirty_mnist.py FOLDER
"""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path

from ddu.dirty_mnist import FilterResult, draw_samples, read_quality

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/dirty-mnist.md"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown, the first column to the left and numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def numbers(folder: Path) -> str:
    """What the command printed, as Markdown."""
    manifest, quality = json.loads((folder / "manifest.json").read_text()), read_quality(folder)
    if quality is None:
        sys.exit(f"{folder} has no quality.json: run ddu data make dirty-mnist without --no-check.")
    splits = manifest["splits"]
    results = table(
        ["", *splits],
        [
            ["images", *(f"{known['images']:,}" for known in splits.values())],
            ["mixtures made for them", *(f"{known['mixtures']:,}" for known in splits.values())],
            *(
                [
                    result.words,
                    *(
                        f"{known['filter_results'][result.name.lower()] / known['mixtures']:.2%}"
                        for known in splits.values()
                    ),
                ]
                for result in FilterResult
            ),
        ],
    )
    found = table(
        [f"{quality.network}, trained on {quality.samples:,} samples of Dirty-MNIST for {quality.epochs} epochs", ""],
        [
            ["accuracy on MNIST's test digits", f"{quality.accuracy_clean:.2%}"],
            ["**AUROC of its entropy, ambiguous test images against MNIST's**", f"{quality.auroc_clean:.4f}"],
            ["the same against MNIST as the autoencoder draws it", f"{quality.auroc_redrawn:.4f}"],
            ["ambiguous images of which it finds both readings", f"{quality.same_readings:.1%}"],
            ["accuracy on ambiguous images, whose label is a draw", f"{quality.accuracy_ambiguous:.1%}"],
            ["the best possible there", f"{quality.accuracy_ambiguous_best:.1%}"],
            ["mean KL(soft label ‖ its probabilities) on ambiguous images, nats", f"{quality.divergence:.3f}"],
        ],
    )
    edges = [f"{edge:.2f}" for edge in quality.entropy_edges]
    histograms = "\n\n".join(
        f"Entropy of the soft labels in nats, {split}:\n\n"
        + table(
            ["likeliest", *(f"{low}-{high}" for low, high in pairwise(edges)), "all"],
            [[str(label), *map(str, counts), str(sum(counts))] for label, counts in enumerate(classes)],
        )
        for split, classes in quality.entropy_histogram.items()
    )
    return f"{results}\n\n{found}\n\n{histograms}"


def main() -> None:
    """Rewrites the page between its markers, and the picture."""
    folder = Path(sys.argv[1])
    text = PAGE.read_text()
    begin, end = "<!-- numbers -->\n", "\n<!-- end of numbers -->"
    written = f"{begin}\n{numbers(folder)}\n{end}"
    PAGE.write_text(re.sub(f"{begin}.*?{end}", lambda _: written, text, flags=re.DOTALL))
    draw_samples(folder, ROOT / "docs/images/dirty-mnist.png")


if __name__ == "__main__":
    main()
