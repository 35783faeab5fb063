"""Measures the default detector and its rivals on pairs of a network and training data: docs/quality.md.

    make quality                                             # everything; what is there already is kept
    python scripts/quality.py --train-only --workers 2       # the networks alone
    python scripts/quality.py --only resnet18-sn-cifar10     # one pair; docs/quality.md is left as it is
    python scripts/quality.py --again ddu                    # the default was changed: measure it anew, and it alone
    python scripts/quality.py --page-only                    # the page from the rows alone

About two hours on two cores. The data is looked for in DDU_DATA.
"""

import argparse
import sys
from pathlib import Path

from ddu.experiments.quality import PAIRS, Quality

ROOT = Path(__file__).parents[1]
COMMAND = "make quality"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(pair.name for pair in PAIRS)
    parser.add_argument("--only", action="append", default=[], metavar="PAIR", help=f"one of {names}; may be repeated")
    parser.add_argument("--again", action="append", default=[], metavar="DETECTOR", help="drop its rows first")
    parser.add_argument("--page-only", action="store_true", help="write docs/quality.md, and measure nothing")
    parser.add_argument("--train-only", action="store_true", help="train the networks, and measure nothing")
    parser.add_argument("--workers", type=int, default=2, help="networks trained at the same time (default: 2)")
    parser.add_argument("--folder", type=Path, default=ROOT / "results/quality", help="where results are kept")
    return parser.parse_args(arguments)


def main() -> None:
    """Trains and measures what is missing."""
    options = parse()
    quality = Quality().only(options.only)
    if options.train_only:
        failures = quality.train(options.folder, workers=options.workers, command=COMMAND, say=_say)
        sys.exit(1 if failures else 0)
    if not options.page_only:
        quality.forget(options.folder, options.again)
        quality.measure(options.folder, workers=options.workers, command=COMMAND, say=_say)
    if not options.only:
        for path in quality.write_page(options.folder, ROOT / "docs/quality.md", command=COMMAND):
            _say(f"Written: {path}")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
