"""Know what a classifier does not know, in one forward pass.

    detector = ddu.DDU(model).fit(train_loader).calibrate(val_loader, false_alarm_rate=0.01)
    prediction = detector.predict(images)   # probs, label, aleatoric, epistemic, log_density, verdict

Conventions, everywhere: a larger uncertainty means more uncertain; epistemic = -log_density; entropies are in nats; out
of distribution is the positive class.
"""

from ddu._version import __version__ as __version__
from ddu.density import GaussianDensity as GaussianDensity
from ddu.detectors import DDU as DDU
from ddu.detectors import load as load
from ddu.models import create_model as create_model
from ddu.models import list_models as list_models
from ddu.types import Detector as Detector
from ddu.types import Prediction as Prediction
from ddu.types import Verdict as Verdict

__all__ = [
    "DDU",
    "Detector",
    "GaussianDensity",
    "Prediction",
    "Verdict",
    "__version__",
    "create_model",
    "list_models",
    "load",
]
