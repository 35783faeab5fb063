"""The contracts: what every detector and every density keeps to, for those of the library and for anybody's own.

    check_detector(lambda model: ddu.DDU(model))
    check_density(lambda: ddu.GaussianDensity())

A broken promise is an AssertionError that says which and how.
"""

from ddu.testing.densities import check_density
from ddu.testing.detectors import check_detector

__all__ = ["check_density", "check_detector"]
