"""The exception tree is the one drawn in its docstring."""

import inspect
import re

import pytest

from ddu import errors

CLASSES = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}


def drawn():
    """Each class of the drawing: its parents by indentation and in parentheses."""
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ((?:[│├└─ ]{4})*)(\w+)(?: \(([\w, ]+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            above = [*above[:depth], match[2]]
            yield match[2], set(above[-2:-1]) | set((match[3] or "Exception").split(", ")) - {"Exception"}


def test_every_class_is_drawn():
    assert sorted(name for name, _ in drawn()) == sorted(CLASSES)


@pytest.mark.parametrize(("name", "parents"), list(drawn()))
def test_each_class_derives_from_what_is_drawn(name, parents):
    assert {base.__name__ for base in CLASSES[name].__bases__} - {"Exception"} == parents


@pytest.mark.parametrize(
    ("error", "caught_as"),
    [
        (errors.InputError, ValueError),
        (errors.LabelError, ValueError),
        (errors.NotFittedError, RuntimeError),
        (errors.NotFittedError, AttributeError),
        (errors.NotSupportedError, NotImplementedError),
        (errors.ArtifactError, OSError),
        (errors.MissingExtraError, ImportError),
    ],
)
def test_people_can_catch_what_they_already_catch(error, caught_as):
    message = "what went wrong"
    with pytest.raises(caught_as, match=message):
        raise error(message)
    assert issubclass(error, errors.DDUError)
