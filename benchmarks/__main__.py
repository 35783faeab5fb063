"""Runs every benchmark and prints one line each: the name, the ratio, its spread, the target and whether it is met."""

from benchmarks import density, loading, prediction, spectral_norm, training

for module in (density, loading, prediction, spectral_norm, training):
    for ratio in module.run():
        print(ratio, flush=True)
