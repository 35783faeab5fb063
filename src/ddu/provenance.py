"""Where a result comes from: the versions, the commit, the command, and a fingerprint of the settings."""

import hashlib
import json
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddu._version import __version__


def fingerprint(*parts: Any) -> str:
    """Twelve hexadecimal digits that differ where anything in the parts differs; the parts are JSON.

    >>> fingerprint({"epochs": 3, "lr": 0.1}) == fingerprint({"lr": 0.1, "epochs": 3})
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def versions(*packages: str) -> dict[str, str]:
    """The versions of ddu, Python, torch and numpy, and of further packages where they are installed."""
    found = {
        "ddu": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,  # names the build too
        "numpy": np.__version__,
    }
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str | None:
    """The commit of the checkout that this code is part of, with "+changes" if files differ; None elsewhere."""
    head = _git("rev-parse", "--short=12", "HEAD") if _git("ls-files", "--error-unmatch", __file__) else None
    if head is None:
        return None
    return f"{head}+changes" if _git("status", "--porcelain", "--untracked-files=no", ".") else head


def command() -> str:
    """The command line that was typed."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _git(*arguments: str) -> str | None:
    """What git prints; None where there is no git, no checkout or no such file."""
    try:
        found = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None
