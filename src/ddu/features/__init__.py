"""Features of any classifier: run the model, find the layer, tap it, for one batch or a whole loader."""

from ddu.features.forward import check_model as check_model
from ddu.features.forward import unwrapped as unwrapped
from ddu.features.loaders import extract as extract
from ddu.features.places import Place as Place
from ddu.features.taps import FeatureBatch as FeatureBatch
from ddu.features.taps import FeatureSource as FeatureSource
from ddu.features.taps import FeatureTap as FeatureTap
from ddu.features.taps import LayersTap as LayersTap
from ddu.features.taps import LogitsTap as LogitsTap
from ddu.features.taps import ModelTap as ModelTap
from ddu.features.taps import SharedBatch as SharedBatch
from ddu.features.taps import SharedTap as SharedTap
from ddu.features.taps import Tap as Tap

__all__ = [
    "FeatureBatch",
    "FeatureSource",
    "FeatureTap",
    "LayersTap",
    "LogitsTap",
    "ModelTap",
    "Place",
    "SharedBatch",
    "SharedTap",
    "Tap",
    "check_model",
    "extract",
    "unwrapped",
]
