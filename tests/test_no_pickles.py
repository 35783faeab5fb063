"""Nothing is unpickled, anywhere in the package."""

import ast
from pathlib import Path

import pytest

import ddu

# CIFAR comes as pickles; tests/data/sources/test_cifar.py shows that its unpickler builds arrays and nothing else
_SOURCES = sorted(path for path in Path(ddu.__file__).parent.rglob("*.py") if path.name != "cifar.py")
_UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def unsafe_uses(source):
    """Imports of modules that unpickle, torch.load without weights_only=True, numpy.load with allow_pickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in _UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            only_the_error = [name.name for name in node.names] == ["UnpicklingError"]
            found += [node.module] * ((node.module or "").split(".")[0] in _UNSAFE_MODULES and not only_the_error)
            found += [f"{node.module}.load"] * (
                node.module in ("torch", "numpy") and any(name.name == "load" for name in node.names)
            )
        elif isinstance(node, ast.Call):
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if ast.unparse(node.func) == "torch.load" and options.get("weights_only") != "True":
                found.append("torch.load")
            if "allow_pickle" in options and options["allow_pickle"] != "False":
                found.append("allow_pickle")
            if ast.unparse(node.func) in ("eval", "exec"):
                found.append(ast.unparse(node.func))
    return found


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: path.name)
def test_no_module_unpickles(path):
    assert unsafe_uses(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from joblib import load", ["joblib"]),
        ("from pickle import UnpicklingError", []),
        ("from pickle import UnpicklingError, load", ["pickle"]),
        ("import torch\ntorch.load('x')", ["torch.load"]),
        ("torch.load('x', weights_only=False)", ["torch.load"]),
        ("torch.load('x', weights_only=True)", []),
        ("from torch import load", ["torch.load"]),
        ("np.load('x', allow_pickle=True)", ["allow_pickle"]),
        ("eval('1')", ["eval"]),
        ("model.eval()", []),
    ],
)
def test_the_search_for_pickles_finds_them(source, found):
    assert unsafe_uses(source) == found
