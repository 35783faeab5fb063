"""A misspelt name is answered with the closest one, or with all."""

import pytest

from ddu.errors import InputError
from ddu.messages import check_name


def test_a_known_name_passes():
    check_name("seeds", ["data", "seeds"], "There is no {name!r}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sede", "A comparison has no key 'sede'. Did you mean 'seeds'?"),
        ("colour", "A comparison has no key 'colour'. There are data, seeds."),
        (3, "A comparison has no key 3. There are data, seeds."),
    ],
)
def test_an_unknown_name_is_answered(name, message):
    with pytest.raises(InputError) as caught:
        check_name(name, (known for known in ["data", "seeds"]), "A comparison has no key {name!r}")
    assert str(caught.value) == message
