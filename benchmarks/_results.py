"""The results as data, one file per benchmark with the machine they were measured on, and the page that shows them."""

import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks._ratio import FEWEST_ROUNDS, Amount, Ratio
from ddu.files import write_bytes, write_json
from ddu.provenance import commit, versions

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "benchmarks"
PAGE = ROOT / "docs" / "speed.md"
keeps = True  # a quick run keeps nothing, figures included


def machine() -> dict[str, Any]:
    """What timings depend on."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return {
        "cpu": cpu,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "versions": versions("torchvision"),
    }


def keep(name: str, found: Sequence[Ratio | Amount], seconds: float | None = None) -> None:
    """Writes the results of a benchmark over its earlier ones, with the command that measured them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [one.row() for one in found]
    command = f"python -m benchmarks {name}" + (f" --seconds {seconds:g}" if seconds else "")
    content = {"command": command, "commit": commit(), "machine": machine(), "rows": rows}
    write_json(FOLDER / f"{name}.json", content)


def renew_page() -> None:
    """Renews the tables of the page between their marks."""
    text = PAGE.read_text()
    for path in sorted(FOLDER.glob("*.json")):
        between = re.compile(rf"(<!-- {path.stem} -->\n).*?(<!-- end -->)", re.DOTALL)
        table = _table(json.loads(path.read_text()))
        text = between.sub(lambda match, table=table: f"{match[1]}{table}{match[2]}", text)
    write_bytes(PAGE, text.encode())


def _table(content: dict[str, Any]) -> str:
    machine = content["machine"]
    lines = ["| what | median | 95 % interval | target | |", "|---|---:|---:|---|---|"]
    for row in content["rows"]:
        spread = f"{row['low']:.3g} to {row['high']:.3g}" if row["rounds"] > 1 else ""
        if 1 < row["rounds"] < FEWEST_ROUNDS:
            spread += f" in {row['rounds']} rounds"
        verdict = "; ".join(filter(None, (row["verdict"], row["note"])))
        lines.append(f"| {row['what']} | {row['value']:.3g} | {spread} | {row['target']} | {verdict} |")
    where = f"{machine['cpu']} ({machine['instructions']}), {machine['threads']} of {machine['cores']} cores, torch"
    measured = f"`{content['command']}` at commit {content['commit']}"
    return "\n".join(lines) + f"\n\n{measured}; {where} {machine['versions']['torch']}.\n"
