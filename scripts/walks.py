"""Writes the three walks of docs/architecture.md: the files of src/ddu that a small command passes through.

    python scripts/walks.py

Calls of functions count, imports do not. Takes a minute.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture.md"
_BLOCK = re.compile(r"(<!-- walks -->\n).*?(<!-- end -->)", flags=re.DOTALL)

WALKS = {
    "One image, from training to its verdict": "train --data digits --model resnet18 --width 0.125 --set epochs=1",
    "One row of a comparison": "compare compare.yaml",
    "One round of active learning": "active --data digits --acquisition density --until 30",
}

COMPARISON = """
data: two_moons
ood: [npz:plane.npz]
model: resffn2_16
recipe: {name: two_moons, epochs: 1}
detectors: [ddu, softmax]
"""

# Runs the command line and prints the files as JSON on the last line
_FOLLOW = """
import json, sys, threading
root, seen = sys.argv.pop(1), {}
def importing(frame):
    while frame:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(root):
            return True
        frame = frame.f_back
    return False
def follow(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(root) and name not in seen and not importing(frame):
        seen[name] = None
from ddu.cli import main
threading.setprofile(follow)
sys.setprofile(follow)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
print("\\n" + json.dumps([name.removeprefix(root) for name in seen]))
"""


def walk(command: str, folder: Path) -> list[str]:
    """The files that a command passes through, in the order in which they are first entered."""
    arguments = [f"{ROOT / 'src/ddu'}/", *command.split(), "--output", "output"]
    found = subprocess.run(
        [sys.executable, "-c", _FOLLOW, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},  # this checkout, whichever is installed
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    """Walks, and writes the page."""
    parts = []
    for title, command in WALKS.items():
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "compare.yaml").write_text(COMPARISON)
            plane = np.random.default_rng(0).uniform(-4, 4, (500, 2)).astype(np.float32)
            np.savez(folder / "plane.npz", x=plane, y=np.zeros(500, dtype=np.int64))
            files = walk(command, folder)
        steps = " → ".join(f"`{file.removesuffix('.py')}`" for file in files)
        parts.append(f"### {title}\n\n`ddu {command}`, {len(files)} files:\n{steps}\n")
    blocks = "\n".join(parts)
    PAGE.write_text(_BLOCK.sub(lambda match: f"{match[1]}\n{blocks}\n{match[2]}", PAGE.read_text()))


if __name__ == "__main__":
    main()
