"""How much memory a density needs, how much there is as far as the system says, and which covariance that is for."""

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ddu.density.covariance import Covariance, sketch_size
from ddu.errors import CovarianceWarning, FewSamplesWarning, OutOfMemoryError
from ddu.messages import frames_to_the_caller

if TYPE_CHECKING:
    from ddu.density.gaussian import GaussianDensity

# With fewer samples than this share of the features, a class's own covariance is less than a tenth of what shrinkage
# makes of it: the shared one is as good, and cheaper
FEWEST_PER_FEATURE = 0.1

# The controller's name in /proc/self/cgroup, its root, and the files of a limit and of what is used; versions 1 and 2
_CGROUPS = {
    "memory": (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    "": (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
}


def affordable_covariance(
    density: "GaussianDensity",
    num_classes: int,
    dim: int,
    device: torch.device,
    expected_samples: int | None,
    decided: Covariance | None,
    reserved: int = 0,
) -> Covariance:
    """The covariance to fit, within memory: what was asked for or decided earlier, or what "auto" decides now.

    Others are going to need `reserved` bytes of that memory.
    """
    may_choose = density.covariance == "auto" and decided in (None, "full") and num_classes > 1
    may_choose = may_choose and density.shrinkage != "ledoit_wolf"  # which needs whole matrices
    covariance = decided or ("full" if density.covariance == "auto" else density.covariance)
    available = available_memory(device)
    if available is not None:
        available = max(available - reserved, 0)
    beside = " beside the other densities" if reserved > 0 else ""

    def needed(covariance: Covariance) -> int:
        return memory_needed(covariance, num_classes, dim, density.rank, pca=density.pca is not None)

    kept = min(dim, density.pca) if isinstance(density.pca, int) else dim
    per_class = (expected_samples or 0) / num_classes
    if may_choose and decided is None and 0 < per_class < FEWEST_PER_FEATURE * kept:
        covariance = "shared"
        warnings.warn(
            f"All classes share one covariance (covariance='auto'): {expected_samples:,} samples of {num_classes:,} "
            f"classes are {per_class:.3g} per class, too few for {kept:,} features. Ask for covariance='full' to have "
            "one per class all the same.",
            FewSamplesWarning,
            stacklevel=frames_to_the_caller(),
        )
    elif may_choose and available is not None and needed("full") > available / 2:
        covariance = "shared"
        warnings.warn(
            f"All classes share one covariance (covariance='auto'): one for each of {num_classes:,} classes with "
            f"{dim:,} features needs {_gigabytes(needed('full'))}, and {_gigabytes(available)} are available{beside}. "
            "covariance='low_rank' has one per class in less memory.",
            CovarianceWarning,
            stacklevel=frames_to_the_caller(),
        )
    if available is not None and needed(covariance) > available:
        raise OutOfMemoryError(
            f"covariance={covariance!r} for {num_classes:,} classes with {dim:,} features needs "
            f"{_gigabytes(needed(covariance))}, and {_gigabytes(available)} are available{beside}. Use "
            f"covariance='shared' ({_gigabytes(needed('shared'))}), 'low_rank' with a smaller rank, 'diagonal', or a "
            "narrower layer."
        )
    return covariance


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.3g} GB"


def memory_needed(covariance: Covariance, num_classes: int, dim: int, rank: int, pca: bool) -> int:
    """Bytes at the peak of fitting: moments, covariances and factors in float64, and a copy in float32.

    The factors of a low rank are in float32 from the first.
    """
    if covariance == "shared":
        matrices = 3.5 * dim**2
    elif covariance == "full" or pca:
        matrices = 3.5 * num_classes * dim**2
    elif covariance == "low_rank":
        matrices = num_classes * dim * (min(sketch_size(rank), dim) + 0.5 * min(rank, dim))
    else:
        matrices = 0
    return 8 * int(matrices + 6 * num_classes * dim)


def available_memory(device: torch.device) -> int | None:
    """Bytes that can be allocated on a device, without swapping or being killed; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    return min([*_of_machine(), *_of_cgroups()], default=None)


def _of_machine() -> list[int]:
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return [1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])]
    # Without /proc, all memory that there is: macOS does not say how much is free
    with suppress(AttributeError, OSError, ValueError):
        return [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return []


def _of_cgroups() -> list[int]:
    """What the control groups of this process leave, such as those of a container, from its own to the outermost."""
    free = []
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in _CGROUPS:
                root, limit, used = _CGROUPS[controllers]
                own = root / path.lstrip("/")
                # In a container the path may be that of the host, and only the root is there
                folders = [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
                free += [left for folder in folders if (left := _left(folder, limit, used)) is not None]
    return free


def _left(folder: Path, limit: str, used: str) -> int | None:
    with suppress(OSError, ValueError):  # no such group, or the word "max"
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # Files that were read are given up first
        return max(left + int(stat.get("inactive_file", 0)), 0)
    return None
