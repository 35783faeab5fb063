"""Data by name, and what comes with the library's dependencies: digits, ambiguous digits, and what is neither."""

from ddu.data._huggingface import HuggingFaceDataset as HuggingFaceDataset
from ddu.data._huggingface import from_huggingface as from_huggingface
from ddu.data._sources import data_root as data_root
from ddu.data._sources import fetch as fetch
from ddu.data._sources import info as info
from ddu.data._sources import list_data as list_data
from ddu.data._sources import list_splits as list_splits
from ddu.data._sources import load as load
from ddu.data._sources import load_ood as load_ood
from ddu.data._sources import load_parts as load_parts
from ddu.data._splits import draw as draw
from ddu.data._splits import load_splits as load_splits
from ddu.data._splits import save_splits as save_splits
from ddu.data._splits import split as split
from ddu.data._splits import stratified_split as stratified_split
from ddu.data.dataset import ArrayDataset as ArrayDataset
from ddu.data.dataset import Batch as Batch
from ddu.data.dataset import DataInfo as DataInfo
from ddu.data.dataset import collated as collated
from ddu.data.dataset import loader as loader
from ddu.data.mixtures import Mixtures as Mixtures
from ddu.data.mixtures import mix_pairs as mix_pairs
from ddu.data.preprocessing import Preprocessing as Preprocessing
from ddu.data.sources.folder import FolderDataset as FolderDataset

__all__ = [
    "ArrayDataset",
    "Batch",
    "DataInfo",
    "FolderDataset",
    "HuggingFaceDataset",
    "Mixtures",
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
    "save_splits",
    "split",
    "stratified_split",
]
