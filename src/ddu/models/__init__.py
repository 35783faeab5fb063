"""The paper's networks. Each returns its features and has a linear head.

`create_model` builds them by name and `list_models` gives the names. Each family has one file, with its differences
from the original at the top. The classes take `Layers`, the callables that make their convolutions, norms and
shortcuts.
"""

from ddu.models._factory import create_model, list_models, register_model, takes_images
from ddu.models._layers import PLAIN, Classifier, Layers
from ddu.models.densenet import DenseNet
from ddu.models.lenet import LeNet
from ddu.models.mlp import MLP
from ddu.models.resnet import ResNet
from ddu.models.vgg import VGG
from ddu.models.wide_resnet import WideResNet

__all__ = [
    "MLP",
    "PLAIN",
    "VGG",
    "Classifier",
    "DenseNet",
    "Layers",
    "LeNet",
    "ResNet",
    "WideResNet",
    "create_model",
    "list_models",
    "register_model",
    "takes_images",
]
