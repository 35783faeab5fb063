"""The corruptions of CIFAR-10-C at their published severities, made from any colour images.

    corrupt(images, "fog", 3)                   # bytes in, bytes out
    generate(images, labels, "CIFAR-10-C")      # all 19 at all severities, in the official layout

Different from the published set: random numbers are our own; frost is made procedurally instead of cropped from
photographs; in glass blur a pixel is swapped at most once per round, so that it never moves further than the published
displacement; results are rounded to the nearest byte.
"""

from ddu.data.corruptions.catalogue import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    STANDARD_CORRUPTIONS,
    corrupt,
    severity_constants,
)
from ddu.data.corruptions.generation import generate
from ddu.data.corruptions.pixel_error import PixelErrorTable, pixel_error_table

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SEVERITIES",
    "STANDARD_CORRUPTIONS",
    "PixelErrorTable",
    "corrupt",
    "generate",
    "pixel_error_table",
    "severity_constants",
]
