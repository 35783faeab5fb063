"""Speed as ratios against a peer in the same run: `python -m benchmarks`, or one file, `python -m benchmarks.density`."""
