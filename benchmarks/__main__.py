"""Every benchmark, one line each: what, the ratio, what it should come to."""

from benchmarks import density, loading, prediction, spectral_norm, training

for module in (density, loading, prediction, spectral_norm, training):
    for ratio in module.run():
        print(ratio, flush=True)
