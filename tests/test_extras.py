"""A missing extra is an error with the command that brings it."""

import json

import pytest

from ddu.errors import MissingExtraError
from ddu.extras import require


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
