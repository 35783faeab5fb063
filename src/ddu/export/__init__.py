"""A detector as one graph that needs neither ddu nor torch: from decoded pixels to the verdict.

graph.py   the detector as a module of fixed steps, and that module as ONNX and for torch.export
probes.py  inputs on which a graph has to agree with PyTorch
parity.py  whether it does
card.py    the model card
bundle.py  the folder: the graph, the detector and its weights, and a model card

`ddu.bundles` opens such a folder.
"""

from ddu.export.bundle import BUNDLE as BUNDLE
from ddu.export.bundle import DETECTOR as DETECTOR
from ddu.export.bundle import FORMAT as FORMAT
from ddu.export.bundle import FORMAT_VERSION as FORMAT_VERSION
from ddu.export.bundle import GRAPH as GRAPH
from ddu.export.bundle import PROGRAM as PROGRAM
from ddu.export.bundle import WEIGHTS as WEIGHTS
from ddu.export.bundle import export as export
from ddu.export.bundle import file_digest as file_digest
from ddu.export.bundle import open_session as open_session
from ddu.export.graph import VERDICTS as VERDICTS
from ddu.export.graph import Graph as Graph
from ddu.export.parity import Parity as Parity

__all__ = [
    "BUNDLE",
    "DETECTOR",
    "FORMAT",
    "FORMAT_VERSION",
    "GRAPH",
    "PROGRAM",
    "VERDICTS",
    "WEIGHTS",
    "Graph",
    "Parity",
    "export",
    "file_digest",
    "open_session",
]
