"""Data that comes with the library's dependencies: digits, ambiguous digits, and what is neither."""

from ddu.data._digits import DigitsDemoData as DigitsDemoData
from ddu.data._digits import LabelledImages as LabelledImages
from ddu.data._digits import ambiguous_digits as ambiguous_digits
from ddu.data._digits import digits as digits
from ddu.data._digits import digits_demo_data as digits_demo_data
from ddu.data._digits import photo_patches as photo_patches
from ddu.data._digits import stratified_split as stratified_split

__all__ = [
    "DigitsDemoData",
    "LabelledImages",
    "ambiguous_digits",
    "digits",
    "digits_demo_data",
    "photo_patches",
    "stratified_split",
]
