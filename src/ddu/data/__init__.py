"""Data sets by name, their splits, and the preprocessing that makes raw images a network's input."""

from ddu.data.dataset import ArrayDataset as ArrayDataset
from ddu.data.dataset import Batch as Batch
from ddu.data.dataset import DataInfo as DataInfo
from ddu.data.dataset import collated as collated
from ddu.data.dataset import loader as loader
from ddu.data.huggingface import HuggingFaceDataset as HuggingFaceDataset
from ddu.data.huggingface import from_huggingface as from_huggingface
from ddu.data.mixed_pairs import MixedPairs as MixedPairs
from ddu.data.mixed_pairs import mix_pairs as mix_pairs
from ddu.data.preprocessing import Preprocessing as Preprocessing
from ddu.data.registry import data_root as data_root
from ddu.data.registry import fetch as fetch
from ddu.data.registry import info as info
from ddu.data.registry import list_data as list_data
from ddu.data.registry import list_splits as list_splits
from ddu.data.registry import load as load
from ddu.data.registry import load_ood as load_ood
from ddu.data.registry import load_parts as load_parts
from ddu.data.registry import register as register_data
from ddu.data.sources.folder import FolderDataset as FolderDataset
from ddu.data.splits import draw as draw
from ddu.data.splits import load_splits as load_splits
from ddu.data.splits import save_splits as save_splits
from ddu.data.splits import split as split
from ddu.data.splits import stratified_split as stratified_split

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
