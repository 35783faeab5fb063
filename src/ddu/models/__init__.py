"""The paper's networks. Each returns its features and has a linear head.

`create_model` builds them by name and `list_models` gives the names. Each family has one file, with its differences
from the original at the top. The classes take `Layers`, the callables that make their convolutions, norms and
shortcuts.
"""

from ddu.models._factory import create_model as create_model
from ddu.models._factory import list_models as list_models
from ddu.models._factory import register_model as register_model
from ddu.models._factory import takes_images as takes_images
from ddu.models._layers import PLAIN as PLAIN
from ddu.models._layers import Classifier as Classifier
from ddu.models._layers import Layers as Layers
from ddu.models.densenet import DenseNet as DenseNet
from ddu.models.lenet import LeNet as LeNet
from ddu.models.mlp import MLP as MLP
from ddu.models.resnet import ResNet as ResNet
from ddu.models.vgg import VGG as VGG
from ddu.models.wide_resnet import WideResNet as WideResNet

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
