"""Speed as ratios against a peer in the same run: `python -m benchmarks`, or one file, `python -m benchmarks.density`.

One thread, unless OMP_NUM_THREADS says otherwise.
"""

import os

# Before torch is imported: idle threads sleep instead of taking a core from somebody else
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
