"""`ddu export`: a detector as one graph."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from ddu.cli._app import DataRoot, DetectorFolder
from ddu.cli._layout import plain_table, say_dimly
from ddu.data import Preprocessing
from ddu.errors import InputError
from ddu.export import DETECTOR
from ddu.runs import load_run
from ddu.runs.run import RUN
from ddu.sources import DetectorSource, open_source

# Held-out inputs that the graph is checked on
_MOST = 256


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="What to export: the folder of a run, or of a detector that `ddu fit` wrote around a network of timm "
            "or torchvision; or module:function, which returns your network, with --detector."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write, new or empty.")],
    detector: DetectorFolder = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE ...",
            help="Images, or one .npy of inputs, to check the graph on. [default: held-out inputs of a run]",
        ),
    ] = None,
    with_examples: Annotated[
        bool,
        typer.Option(
            "--with-examples",
            help="Copy the examples that --keep-examples left beside the detector, for the page of ddu serve: whoever "
            "has the bundle sees them.",
        ),
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Write a detector as one ONNX graph that needs neither ddu nor PyTorch.

    The graph goes from decoded pixels to probabilities, both uncertainties, p-value, candidates and verdict. Before it
    is written it has to agree with PyTorch, on held-out inputs where there are some and on random, ambiguous, far-out
    and degenerate ones; where it does not, nothing is written. The folder also has the graph for torch.export, the
    detector, the weights and a model card.

    For example

    `ddu export runs/mnist --output bundle`

    `ddu export my_models:make --detector detector --inputs photos/*.jpg --output bundle`
    """
    opened = open_source(source, detector=detector)
    if not isinstance(opened, DetectorSource):
        raise InputError(f"{source} is exported already: name what it was exported from.")
    if with_examples and opened.examples is None:
        raise InputError(f"No examples are kept beside the detector of {source}: fit it with --keep-examples.")
    given = _read(inputs, opened.preprocessing) if inputs else _held_out(Path(source), data_root)
    say_dimly("Translating the network, and comparing the graph with PyTorch ...")
    parity = opened.detector.export(output, given, preprocessing=opened.preprocessing, description=opened.description)
    if with_examples and opened.examples is not None:
        opened.examples.save(output / DETECTOR)
    table = plain_table("Largest differences from PyTorch", "inputs", "", "score", "probability")
    for kind, one in parity.items():
        table.add_row(kind, str(one.inputs), f"{one.score:.1e}", f"{one.probability:.1e}")
    console = Console()
    console.print(table)
    console.print(f"The graph is {output / 'model.onnx'}; {output / 'README.md'} says how to run it.", style="dim")


def _read(files: list[Path], preprocessing: Preprocessing) -> Any:
    """Inputs from files."""
    if len(files) == 1 and files[0].suffix == ".npy":
        try:
            return np.load(files[0], allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{files[0]} cannot be read as an array: {str(error).rstrip('.')}.") from error
    if not preprocessing.is_image:
        raise InputError(f"The network takes vectors: give one .npy of them. Got {', '.join(map(str, files))} instead.")
    return files


def _held_out(folder: Path, root: Path | None) -> Any:
    """Held-out inputs of a run, as they are stored; None where they are not at hand."""
    if not (folder / RUN).is_file():
        return None
    try:
        validation = load_run(folder).load_data(root=root).validation
    except (InputError, OSError) as error:
        say_dimly(f"The graph is checked without held-out inputs: {error}")
        return None
    found = validation.inputs[np.arange(min(len(validation), _MOST))]
    return list(found) if found.dtype == object else found
