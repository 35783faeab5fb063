"""A network of two hidden layers that tells blobs apart without training, and a calibrated sum around it."""

from typing import Any

import torch
from torch import nn

import ddu
from tests.detectors.blobs import blobs

CLASSES, INPUTS = 3, 4


def network() -> nn.Sequential:
    """Two hidden layers that keep what the logits need: logit c is twice the c-th input where that is positive."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES))
        for name in ("0.weight", "2.weight"):
            weight = model.get_parameter(name)
            weight[:CLASSES] = torch.eye(CLASSES, weight.shape[1])
        model.get_parameter("4.weight").copy_(2 * torch.eye(CLASSES, 6))
        for name in ("0.bias", "2.bias", "4.bias"):
            model.get_parameter(name).zero_()
        return model


def calibrated(model: nn.Module, **options: Any) -> ddu.DDU:
    return ddu.DDU(model, **options).fit([blobs(600)]).calibrate([blobs(400, seed=1)], false_alarm_rate=0.05)


X = blobs(200, seed=9)[0]
