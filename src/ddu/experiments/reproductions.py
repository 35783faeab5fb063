"""All reproductions, by name. A new one is an entry in one of these files."""

from ddu.experiments.reproduced_curves import CURVES
from ddu.experiments.reproduced_tables import TABLES
from ddu.experiments.reproduced_toys import TOYS
from ddu.experiments.reproduction import Reproduction

REPRODUCTIONS: dict[str, Reproduction] = {one.name: one for one in (*TABLES, *CURVES, *TOYS)}
"""In the order of `ddu reproduce list`."""
