"""Speed as ratios against a peer in the same run: `python -m benchmarks`, or a file of it, `-m benchmarks.density`."""
