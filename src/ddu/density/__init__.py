"""Gaussian densities of features: streaming moments, covariance models, fast scoring."""

from ddu.density._checks import check_classes as check_classes
from ddu.density._checks import check_counts as check_counts
from ddu.density._checks import check_device as check_device
from ddu.density._checks import check_features as check_features
from ddu.density._checks import check_labels as check_labels
from ddu.density._checks import check_state as check_state
from ddu.density.factors import DensityGraph as DensityGraph
from ddu.density.gaussian import GaussianDensity as GaussianDensity
from ddu.density.moments import ClassMoments as ClassMoments

__all__ = [
    "ClassMoments",
    "DensityGraph",
    "GaussianDensity",
    "check_classes",
    "check_counts",
    "check_device",
    "check_features",
    "check_labels",
    "check_state",
]
