"""The shortcut of a sensitive residual network."""

from torch import Tensor, nn
from torch.nn import functional

from ddu.errors import InputError


class AvgPoolShortcut(nn.Module):
    """Average-pools by `stride` and appends channels of zeros, so that the shortcut loses no pixel and learns nothing.

    A 1x1 convolution with stride 2 looks at one pixel in four. Here each output cell is the mean of its stride x stride
    input pixels, and cells at the far border of an input that the stride does not divide average the pixels that are
    there: 7 becomes 4, the last one alone. The output is as large as that of a 3x3 convolution with padding 1 and the
    same stride, ceil(size / stride), at every size.

    >>> import torch
    >>> AvgPoolShortcut(64, 128, stride=2)(torch.ones(1, 64, 7, 7)).shape
    torch.Size([1, 128, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        if out_channels < in_channels:
            raise InputError(
                f"AvgPoolShortcut can add channels but not drop them. Got in_channels={in_channels} and "
                f"out_channels={out_channels}; use a 1x1 convolution."
            )
        if stride < 1:
            raise InputError(f"The 'stride' parameter of AvgPoolShortcut must be 1 or more. Got {stride} instead.")
        self.in_channels, self.out_channels, self.stride = in_channels, out_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        # ceil_mode keeps the pixels beyond the last whole cell; zeros outside the input do not count in their mean.
        pooled = functional.avg_pool2d(x, self.stride, ceil_mode=True, count_include_pad=False)
        return functional.pad(pooled, (0, 0, 0, 0, 0, self.out_channels - self.in_channels))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, stride={self.stride}"
