"""The sets that `ddu.data.load` knows: one file per origin. Importing this registers them all."""

from ddu.data.sources import cifar as cifar
from ddu.data.sources import cifar10_c as cifar10_c
from ddu.data.sources import clinc150 as clinc150
from ddu.data.sources import degenerate as degenerate
from ddu.data.sources import dirty_mnist as dirty_mnist
from ddu.data.sources import folder as folder
from ddu.data.sources import generated as generated
from ddu.data.sources import imagenet as imagenet
from ddu.data.sources import mnist as mnist
from ddu.data.sources import mnist_5k as mnist_5k
from ddu.data.sources import npz as npz
from ddu.data.sources import photos as photos
from ddu.data.sources import svhn as svhn
from ddu.data.sources import tiny_imagenet as tiny_imagenet
