"""Data sets by name, their splits, and the preprocessing that makes raw images a network's input."""

from ddu.data.dataset import ArrayDataset, Batch, DataInfo, collated, loader
from ddu.data.huggingface import HuggingFaceDataset, from_huggingface
from ddu.data.mixed_pairs import MixedPairs, mix_pairs
from ddu.data.preprocessing import Preprocessing
from ddu.data.registry import data_root, fetch, info, list_data, list_derived, list_splits, load, load_ood, load_parts
from ddu.data.registry import register as register_data
from ddu.data.sources.folder import FolderDataset
from ddu.data.splits import draw, load_splits, save_splits, split, stratified_split

__all__ = [
    "ArrayDataset",
    "Batch",
    "DataInfo",
    "FolderDataset",
    "HuggingFaceDataset",
    "MixedPairs",
    "Preprocessing",
    "collated",
    "data_root",
    "draw",
    "fetch",
    "from_huggingface",
    "info",
    "list_data",
    "list_derived",
    "list_splits",
    "load",
    "load_ood",
    "load_parts",
    "load_splits",
    "loader",
    "mix_pairs",
    "register_data",
    "save_splits",
    "split",
    "stratified_split",
]
