"""Know what a classifier does not know, in one forward pass.

    detector = ddu.DDU(model).fit(train_loader).calibrate(val_loader, false_alarm_rate=0.01)
    prediction = detector.predict(images)   # probs, label, aleatoric, epistemic, log_density, verdict

Conventions, everywhere: a larger uncertainty means more uncertain; epistemic = -log_density; entropies are in nats; out
of distribution is the positive class.

Names and packages are imported when they are first touched: `import ddu` costs next to nothing, and `ddu.surgery` needs
no import of its own.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ddu._version import __version__ as __version__

if TYPE_CHECKING:
    from ddu.density import GaussianDensity as GaussianDensity
    from ddu.detectors import DDU as DDU
    from ddu.detectors import load as load
    from ddu.diagnostics import diagnose as diagnose
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
    "diagnose",
    "list_models",
    "load",
]

_HOMES = {
    "DDU": "detectors",
    "Detector": "types",
    "GaussianDensity": "density",
    "Prediction": "types",
    "Verdict": "types",
    "create_model": "models",
    "diagnose": "diagnostics",
    "list_models": "models",
    "load": "detectors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"ddu.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    try:
        return importlib.import_module(f"ddu.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"ddu.{name}":
            raise  # the module is there, and what it needs is not
        raise AttributeError(f"module 'ddu' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    import pkgutil

    return sorted({*__all__, *(module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_")})
