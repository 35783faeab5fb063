"""Runs benchmarks and prints one line for each: the name, the ratio, its spread, the target and whether it is met.

    python -m benchmarks                    # all of them, about an hour
    python -m benchmarks --quick            # under five minutes on an idle core
    python -m benchmarks density growth     # some of them; --seconds 12 ends each comparison sooner
    python -m benchmarks --docs             # renews the tables in docs/speed.md from the results, without measuring

What was measured is kept in results/benchmarks/NAME.json, with a description of the machine; a quick run keeps nothing.
One whose data set is not there is skipped, with a line that says so; one that was asked for by name then fails.
"""

import argparse
import importlib
import sys
import warnings

from benchmarks import _ratio, _results
from ddu.errors import DataError, FewSamplesWarning, LabelWarning

BENCHMARKS = (
    "density",
    "fitting",
    "growth",
    "prediction",
    "scale",
    "export",
    "loading",
    "spectral_norm",
    "training",
    "ensembles",
)
QUICK = ("density", "fitting", "growth", "prediction")
QUICK_SECONDS = 5.0  # the longest that a comparison goes on in a quick run


def main() -> None:
    """Parses, measures, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help=f"shorter runs of {', '.join(QUICK)} by default")
    parser.add_argument("--seconds", type=float, help="the longest that a comparison goes on, in CPU seconds")
    parser.add_argument("--docs", action="store_true", help="renew docs/speed.md from the results and measure nothing")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}: choose of {', '.join(BENCHMARKS)}")
    if options.docs:
        _results.renew_page()
        return
    for category in (FewSamplesWarning, LabelWarning):  # only costs count here, also those of untrained networks
        warnings.simplefilter("ignore", category)
    if options.quick or options.seconds:
        _ratio.longest = options.seconds or QUICK_SECONDS
    _results.keeps, skipped = not options.quick, False
    for name in options.names or (QUICK if options.quick else BENCHMARKS):
        found = []
        try:
            for line in importlib.import_module(f"benchmarks.{name}").run():
                print(line, flush=True)
                found.append(line)
        except DataError as error:
            print(f"{name} is skipped: {error}", file=sys.stderr, flush=True)
            skipped = True
            continue
        if _results.keeps:
            _results.keep(name, found, options.seconds)
    if skipped and options.names:
        sys.exit(1)


if __name__ == "__main__":
    main()
