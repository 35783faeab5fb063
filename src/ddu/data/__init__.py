"""Data by name, and what comes with the library's dependencies: digits, ambiguous digits, and what is neither."""

from ddu.data._dataset import ArrayDataset as ArrayDataset
from ddu.data._dataset import Batch as Batch
from ddu.data._dataset import DataInfo as DataInfo
from ddu.data._dataset import collated as collated
from ddu.data._dataset import loader as loader
from ddu.data._dataset import split as split
from ddu.data._digits import DigitsDemoData as DigitsDemoData
from ddu.data._digits import LabelledImages as LabelledImages
from ddu.data._digits import ambiguous_digits as ambiguous_digits
from ddu.data._digits import digits as digits
from ddu.data._digits import digits_demo_data as digits_demo_data
from ddu.data._digits import photo_patches as photo_patches
from ddu.data._digits import stratified_split as stratified_split
from ddu.data._sources import data_root as data_root
from ddu.data._sources import info as info
from ddu.data._sources import list_data as list_data
from ddu.data._sources import load as load

__all__ = [
    "ArrayDataset",
    "Batch",
    "DataInfo",
    "DigitsDemoData",
    "LabelledImages",
    "ambiguous_digits",
    "collated",
    "data_root",
    "digits",
    "digits_demo_data",
    "info",
    "list_data",
    "load",
    "loader",
    "photo_patches",
    "split",
    "stratified_split",
]
