"""How much memory there is to fit into, as far as the system says."""

import os
from contextlib import suppress
from pathlib import Path

import torch

# The controller's name in /proc/self/cgroup, its root, and the files of a limit and of what is used; versions 1 and 2
_CGROUPS = {
    "memory": (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    "": (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
}


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
