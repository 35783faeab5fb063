"""A small classifier, its saved detector, and the ways to change the file."""

import json

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import ddu
from ddu import artifacts
from ddu.errors import (
    ArtifactError,
)


def make_model():
    """A classifier that needs no training: logit c is the c-th input, squashed; the other features are random."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        model.get_parameter("0.weight")[:3] = torch.eye(3, 4)
        model.get_parameter("3.weight").copy_(torch.eye(3, 8))
        return model


def batches(samples=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 3
    x = torch.randn(samples, 4, generator=generator) + 2 * torch.eye(3, 4)[y]
    return [(x, y)]


def fitted(model, **options):
    detector = ddu.DDU(model, class_names=["ant", "bee", "cat"], **options).fit(batches())
    return detector.calibrate(batches(seed=1), false_alarm_rate=0.05)


def file_of(folder):
    return folder / "detector.safetensors"


def manifest_of(folder):
    with safetensors.safe_open(file_of(folder), "pt") as file:
        return json.loads(file.metadata()["ddu-detector"])


def refusal(folder, model):
    with pytest.raises(ArtifactError) as caught:
        ddu.load(folder, model)
    return str(caught.value)


def rewrite(folder, manifest, tensors=None):
    """Writes a file as it is given: the checksums are those in the manifest."""
    tensors = safetensors.torch.load_file(file_of(folder)) if tensors is None else tensors
    safetensors.torch.save_file(tensors, file_of(folder), {"ddu-detector": json.dumps(manifest)})


def sign(folder, manifest, tensors=None):
    """Writes a file with the checksums that belong to it: not tampered with, but written by another hand."""
    if tensors is not None:
        manifest["tensors"] = artifacts.fingerprint(tensors)
    manifest["sha256"] = artifacts._manifest_digest(manifest)
    rewrite(folder, manifest, tensors)
