"""The package as a whole: its surface, its imports, its docstrings and their examples."""

import doctest
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys

import pytest
import torch

import ddu

MODULES = [
    "ddu",
    *(module.name for module in pkgutil.walk_packages(ddu.__path__, "ddu.") if "__main__" not in module.name),
]
PUBLIC = [name for name in MODULES if not any(part.startswith("_") for part in name.split("."))]


def public_members(module):
    """The functions and classes that a module defines, or names in its `__all__`."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return {name: getattr(module, name) for name in names}


def test_all_is_sorted_and_every_name_of_it_is_found():
    assert ddu.__all__ == sorted(ddu.__all__)
    assert all(getattr(ddu, name) is not None for name in ddu.__all__)
    assert {*ddu.__all__, "surgery", "runs", "active", "data"} <= {*dir(ddu)}


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ddu' has no attribute 'DUU'"):
        _ = ddu.DUU


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_of_all_exists_and_is_listed_once(name):
    listed = getattr(importlib.import_module(name), "__all__", [])
    assert len(listed) == len(set(listed))  # in ruff's order: constants, classes, functions
    assert all(hasattr(importlib.import_module(name), entry) for entry in listed)


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev)\d+)?", ddu.__version__)


TOUCHED_ONE_BY_ONE = """
import json, sys
before = set(sys.modules)
import ddu
bare = set(sys.modules) - before
import torch, safetensors.torch  # torch takes tqdm along: not ours to avoid
before = set(sys.modules) - bare
ddu.DDU
core = set(sys.modules) - before
packages = [ddu.surgery.regularise.__name__, ddu.data.load.__name__, ddu.active.ActiveLearner.__name__]
print(json.dumps([sorted(bare), sorted(core), packages]))
"""


def test_the_bare_package_loads_nothing_the_core_its_three_dependencies_and_others_when_they_are_touched():
    command = [sys.executable, "-W", "error", "-c", TOUCHED_ONE_BY_ONE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    *loaded, packages = json.loads(run.stdout)
    for names in loaded:
        assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"ddu"}
        assert {"ddu.sklearn", "ddu.testing"}.isdisjoint(names)
    assert packages == ["regularise", "load", "ActiveLearner"]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_things_are_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__, name
    for entry, value in public_members(module).items():
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        assert inspect.getdoc(value), f"{name}.{entry}"
        if inspect.isclass(value) and value.__module__.startswith("ddu"):
            for method, function in vars(value).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    assert inspect.getdoc(getattr(value, method)), f"{name}.{entry}.{method}"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = sum(len(t.examples) for name in MODULES for t in finder.find(importlib.import_module(name)))
    assert examples > 30
