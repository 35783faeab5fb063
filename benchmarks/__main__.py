"""Every benchmark, one line each: what, the ratio, what it should come to."""

from benchmarks import density, prediction

for module in (density, prediction):
    for ratio in module.run():
        print(ratio, flush=True)
