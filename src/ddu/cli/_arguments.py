"""Messages of the library name arguments of Python: what to do about those on the command line."""

import inspect
import re

# A name before "=", and not that of an option, a path or an attribute
_NAMED = re.compile(r"(?<![-\w./])([a-z_]+)=")
# These have options, or need none
_OPTIONS = {"false_alarm_rate", "seed", "class_names", "progress", "ranks"}


def note_on_arguments(message: str) -> str | None:
    """How somebody on the command line sets the arguments that a message names; None where it names none.

    >>> print(note_on_arguments("Give more samples, or use covariance='shared' or pca=."))
    No option sets covariance= or pca=: fit such a detector in Python, save it, and name its folder with --detector.
    >>> note_on_arguments("--set lr=0.1 is no option of runs/seed=1.")
    """
    words = dict.fromkeys(_NAMED.findall(message))
    if not words:
        return None
    from ddu.density import GaussianDensity
    from ddu.detectors import DDU

    functions = (DDU.__init__, DDU.calibrate, GaussianDensity.__init__)
    arguments = {name for function in functions for name in inspect.signature(function).parameters} - _OPTIONS
    found = [f"{name}=" for name in words if name in arguments]
    if not found:
        return None
    *others, last = found
    named = f"{', '.join(others)} or {last}" if others else last
    return f"No option sets {named}: fit such a detector in Python, save it, and name its folder with --detector."
