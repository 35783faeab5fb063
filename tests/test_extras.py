"""A missing extra is an error with the command that brings it."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from ddu.errors import MissingExtraError
from ddu.messages import require

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


@pytest.fixture(scope="module")
def distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def required_modules() -> Iterator[tuple[str, str]]:
    """Each module that the package asks for by a literal `require(module, extra=...)`, with the extra."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                extra = next((keyword.value for keyword in node.keywords if keyword.arg == "extra"), None)
                if isinstance(node.args[0], ast.Constant) and isinstance(extra, ast.Constant):
                    yield str(node.args[0].value), str(extra.value)


def brought_by(extra: str) -> set[str]:
    """The distributions that an extra names, itself or through another extra."""
    names: set[str] = set()
    for requirement in EXTRAS[extra]:
        if inner := re.fullmatch(r"ddu\[(.+)\]", requirement):
            names |= {name for other in inner[1].split(",") for name in brought_by(other)}
        else:
            names.add(re.split(r"[^\w-]", requirement)[0])
    return names


def test_an_installed_module_is_returned():
    assert require("json", extra="cli", purpose="anything") is json
    assert require("os.path", extra="cli", purpose="anything").join("a", "b")


def test_a_missing_module_names_the_command():
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_module", extra="serve", purpose="ddu serve")
    assert (
        str(caught.value)
        == "ddu serve needs the 'serve' extra: pip install 'ddu[serve]', or in a clone: pip install '.[serve]'."
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(("module", "extra"), sorted(set(required_modules())))
def test_the_extra_of_a_message_brings_the_module(module, extra, distributions):
    package = module.partition(".")[0]
    if package not in distributions:
        pytest.skip(f"{package} is not installed: the {extra!r} extra is left out here")
    names = {name.lower().replace("_", "-") for name in distributions[package]}
    assert names & {name.replace("_", "-") for name in brought_by(extra)}


def test_every_extra_of_a_message_exists():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"""ddu\[(\w+)\]|"?extra"?[=:] ?"(\w+)""" + '"', source))
    assert {a or b for a, b in named} <= EXTRAS.keys()


def test_the_readme_lists_every_extra():
    install = (ROOT / "README.md").read_text().partition("## Install")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` ", install, re.MULTILINE) == [*EXTRAS]


def test_the_readme_gives_the_oldest_versions():
    install = (ROOT / "README.md").read_text().partition("## Install")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"(Python|torch|numpy|safetensors) (\d[\d.]*\d)", install))
    bounds = dict(requirement.split(">=") for requirement in PROJECT["dependencies"])
    assert shown == {"Python": PROJECT["requires-python"].removeprefix(">="), **bounds}
