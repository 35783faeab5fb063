import pytest

from ddu.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    STANDARD_CORRUPTIONS,
    severity_constants,
)
from ddu.data.corruptions._registry import find_corruption
from ddu.errors import InputError


def test_there_are_fifteen_standard_corruptions_and_four_extra_ones():
    assert STANDARD_CORRUPTIONS == (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    )
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert CORRUPTIONS == STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS
    assert SEVERITIES == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("name", "severity", "constants"),
    [
        ("gaussian_noise", 4, (0.09,)),
        ("shot_noise", 3, (100,)),
        ("impulse_noise", 4, (0.05,)),
        ("speckle_noise", 3, (0.12,)),
        ("gaussian_blur", 2, (0.6,)),
        ("glass_blur", 1, (0.05, 1, 1)),
        ("glass_blur", 4, (0.25, 1, 2)),
        ("defocus_blur", 3, (0.5, 0.6)),
        ("defocus_blur", 5, (1.5, 0.1)),
        ("motion_blur", 1, (6, 1)),
        ("motion_blur", 4, (8, 2)),
        ("zoom_blur", 5, (1.26,)),
        ("fog", 3, (0.75, 2.5)),
        ("frost", 5, (0.75, 0.45)),
        ("snow", 1, (0.1, 0.2, 1, 0.6, 8, 3, 0.95)),
        ("snow", 2, (0.1, 0.2, 1, 0.5, 10, 4, 0.9)),
        ("snow", 3, (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9)),
        ("snow", 4, (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85)),
        ("snow", 5, (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
        ("spatter", 1, (0.62, 0.1, 0.7, 0.7, 0.5, 0)),
        ("spatter", 2, (0.65, 0.1, 0.8, 0.7, 0.5, 0)),
        ("spatter", 3, (0.65, 0.3, 1, 0.69, 0.5, 0)),
        ("spatter", 4, (0.65, 0.1, 0.7, 0.69, 0.6, 1)),
        ("spatter", 5, (0.65, 0.1, 0.5, 0.68, 0.6, 1)),
        ("contrast", 5, (0.15,)),
        ("brightness", 4, (0.2,)),
        ("saturate", 2, (0.1, 0)),
        ("saturate", 5, (2.5, 0.2)),
        ("jpeg_compression", 3, (58,)),
        ("pixelate", 3, (0.85,)),
        ("elastic_transform", 1, (0, 0, 0.08)),
        ("elastic_transform", 3, (0.08, 0.06, 0.06)),
    ],
)
def test_constants_are_the_published_ones(name, severity, constants):
    assert tuple(severity_constants(name, severity).values()) == constants


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_constant_has_five_severities(name):
    assert {len(values) for values in find_corruption(name).constants.values()} == {5}


@pytest.mark.parametrize("severity", [0, 6, -1, 2.0, "3", None])
def test_other_severities_are_refused(severity):
    with pytest.raises(InputError) as caught:
        severity_constants("fog", severity)
    assert str(caught.value) == f"The severity of a corruption must be 1, 2, 3, 4 or 5. Got {severity!r}."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "gausian_noise",
            "There is no corruption 'gausian_noise'. The closest names are 'gaussian_noise', 'gaussian_blur', "
            "'shot_noise'; ddu.data.corruptions.CORRUPTIONS has them all.",
        ),
        (
            "fogg",
            "There is no corruption 'fogg'. The closest names are 'fog'; "
            "ddu.data.corruptions.CORRUPTIONS has them all.",
        ),
        ("", "There is no corruption ''. ddu.data.corruptions.CORRUPTIONS has them all."),
    ],
)
def test_a_misspelt_name_is_answered_with_the_closest_ones(name, message):
    with pytest.raises(InputError) as caught:
        severity_constants(name, 1)
    assert str(caught.value) == message
