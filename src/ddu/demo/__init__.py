"""The whole method on embedded data: train, fit, calibrate, judge, and show it on one page."""

from ddu.demo._network import DigitsNet as DigitsNet
from ddu.demo._network import load_network as load_network
from ddu.demo._run import EPOCHS as EPOCHS
from ddu.demo._run import DemoResult as DemoResult
from ddu.demo._run import run_demo as run_demo
from ddu.demo._scores import Scores as Scores

__all__ = ["EPOCHS", "DemoResult", "DigitsNet", "Scores", "load_network", "run_demo"]
