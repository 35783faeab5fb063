"""Every benchmark, one line each: what, the ratio and its spread, what it should come to and whether it does."""

from benchmarks import density, loading, prediction, spectral_norm, training

for module in (density, loading, prediction, spectral_norm, training):
    for ratio in module.run():
        print(ratio, flush=True)
