import pytest
import torch
from torch import nn

from ddu.errors import InputError
from ddu.layers import AvgPoolShortcut


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_every_pixel_counts_and_the_size_is_that_of_a_3x3_convolution_at_every_size(stride: int) -> None:
    shortcut, convolution = AvgPoolShortcut(2, 3, stride), nn.Conv2d(2, 3, 3, stride, padding=1)
    for height in range(1, 34):
        width = 34 - height
        x = torch.randn(1, 2, height, width, requires_grad=True)
        y = shortcut(x)
        assert y.shape == convolution(x).shape
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert (gradient > 0).all()


def test_cells_are_means_of_the_pixels_that_are_there() -> None:
    x = torch.arange(9.0).view(1, 1, 3, 3)
    expected = torch.tensor([[(0 + 1 + 3 + 4) / 4, (2 + 5) / 2], [(6 + 7) / 2, 8.0]])
    torch.testing.assert_close(AvgPoolShortcut(1, 1, stride=2)(x), expected.view(1, 1, 2, 2))


def test_constant_inputs_stay_constant_up_to_the_border() -> None:
    y = AvgPoolShortcut(1, 1, stride=4)(torch.ones(1, 1, 7, 9))
    torch.testing.assert_close(y, torch.ones(1, 1, 2, 3))


def test_new_channels_are_zeros_at_the_end() -> None:
    x = torch.randn(2, 3, 4, 4)
    y = AvgPoolShortcut(3, 5, stride=1)(x)
    assert torch.equal(y[:, :3], x)
    assert torch.equal(y[:, 3:], torch.zeros(2, 2, 4, 4))


def test_no_input_is_stretched() -> None:
    shortcut = AvgPoolShortcut(1, 2, stride=3)
    matrix = shortcut(torch.eye(35).view(35, 1, 5, 7)).flatten(1)
    assert torch.linalg.matrix_norm(matrix, 2) <= 1 + 1e-6


def test_channels_cannot_be_dropped() -> None:
    with pytest.raises(InputError) as error:
        AvgPoolShortcut(4, 3, stride=2)
    assert str(error.value) == (
        "AvgPoolShortcut can add channels but not drop them. Got in_channels=4 and out_channels=3; "
        "use a 1x1 convolution."
    )


def test_stride_must_be_positive() -> None:
    with pytest.raises(InputError) as error:
        AvgPoolShortcut(1, 1, stride=0)
    assert str(error.value) == "The 'stride' parameter of AvgPoolShortcut must be 1 or more. Got 0 instead."
