"""The wheel as a user gets it: built, looked into, and installed without extras into an empty environment."""

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import ddu

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UV = (sys.executable, "-m", "uv")
# The environment's own packages only: what the tests' interpreter finds through these must not help out
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
# Each public module is imported, or tells which extra it lacks
IMPORTS = """
import importlib, json, pkgutil, ddu
from ddu.errors import MissingExtraError
unnamed = {}
for module in pkgutil.walk_packages(ddu.__path__, "ddu."):
    if any(part.startswith("_") for part in module.name.split(".")) or module.name.startswith("ddu.cli."):
        continue
    try:
        importlib.import_module(module.name)
    except MissingExtraError:
        pass
    except ImportError as error:
        unnamed[module.name] = str(error)
print(json.dumps(unnamed))
"""


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=ENVIRONMENT, **options)


def must(*command: str | Path, **options) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    must(*UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `python` and `ddu` in an environment of the wheel and what it needs, at the pinned versions."""
    folder = tmp_path_factory.mktemp("empty") / "environment"
    must(*UV, "venv", "--quiet", "--python", sys.executable, folder)
    bin_folder = folder / ("Scripts" if os.name == "nt" else "bin")
    install = ("pip", "install", "--quiet", "--python", bin_folder / "python", "--constraints", "requirements.txt")
    must(*UV, *install, wheel, cwd=ROOT)
    return bin_folder


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    sources = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(ROOT / "src").as_posix() for path in sources}
    assert expected >= {"ddu/py.typed", "ddu/experiments/demo.html", "ddu/results/paper_tables.json"}
    about = f"ddu-{ddu.__version__}.dist-info"
    expected |= {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert set(zipfile.ZipFile(wheel).namelist()) == expected


def test_the_wheel_names_no_folder_of_the_machine_that_built_it(wheel: Path) -> None:
    folders = re.compile(rb"(?<![\w.])(/home/|/root/|/Users/|%s/)" % re.escape(str(ROOT)).encode())
    content = zipfile.ZipFile(wheel)
    assert [name for name in content.namelist() if folders.search(content.read(name))] == []


def test_the_wheel_depends_on_torch_numpy_and_safetensors(wheel: Path) -> None:
    metadata = zipfile.ZipFile(wheel).read(f"ddu-{ddu.__version__}.dist-info/METADATA").decode()
    needed = Parser().parsestr(metadata).get_all("Requires-Dist", [])
    assert [line.split(">=")[0] for line in needed if "extra ==" not in line] == ["numpy", "safetensors", "torch"]


def test_a_network_of_ones_own_gets_a_detector_that_is_saved_and_loaded(programs: Path, tmp_path: Path) -> None:
    # -I: neither the folder of the script nor that of the tests is on the path
    script = Path(__file__).with_name("first_use.py")
    printed = must(programs / "python", "-I", "-W", "error", script, tmp_path / "saved", cwd=tmp_path)
    verdicts = [line.split()[-1] for line in printed.splitlines()]
    assert verdicts == ["verdict", "in_distribution", "in_distribution", "in_distribution", "out_of_distribution"]
    assert (tmp_path / "saved" / "detector.safetensors").is_file()


def test_every_public_module_is_imported_or_names_its_extra(programs: Path, tmp_path: Path) -> None:
    assert json.loads(must(programs / "python", "-I", "-W", "error", "-c", IMPORTS, cwd=tmp_path)) == {}


def test_the_command_says_in_one_line_what_to_install(programs: Path, tmp_path: Path) -> None:
    done = run(programs / "ddu", "--help", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "The ddu command needs the 'cli' extra: pip install 'ddu[cli]', or in a clone: pip install '.[cli]'.\n"
    )
