"""The corruptions of CIFAR-10-C at their published severities, made from any colour images.

    corrupt(images, "fog", 3)                   # bytes in, bytes out

Different from the published set, whose random numbers nobody can repeat: frost is made procedurally instead of cropped
from photographs; in glass blur a pixel is swapped at most once a round, so that it never moves further than the
published displacement; results are rounded to the nearest byte.
"""

from ddu.data.corruptions._corrupt import corrupt as corrupt
from ddu.data.corruptions._registry import CORRUPTIONS as CORRUPTIONS
from ddu.data.corruptions._registry import EXTRA_CORRUPTIONS as EXTRA_CORRUPTIONS
from ddu.data.corruptions._registry import SEVERITIES as SEVERITIES
from ddu.data.corruptions._registry import STANDARD_CORRUPTIONS as STANDARD_CORRUPTIONS
from ddu.data.corruptions._registry import severity_constants as severity_constants

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SEVERITIES",
    "STANDARD_CORRUPTIONS",
    "corrupt",
    "severity_constants",
]
