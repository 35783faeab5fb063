"""Optional dependencies: imported where they are used, and missed in words."""

import importlib
from types import ModuleType

from ddu.errors import MissingExtraError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports an optional module, or says which extra brings it.

    >>> require("json", extra="cli", purpose="the command line").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(extra, purpose) from error


def missing_extra(extra: str, purpose: str) -> MissingExtraError:
    """The error that says how to install an extra, from an index or from a clone."""
    return MissingExtraError(
        f"{purpose} needs the '{extra}' extra: pip install 'ddu[{extra}]', or in a clone: pip install '.[{extra}]'."
    )
