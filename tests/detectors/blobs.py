"""Three classes in four dimensions, and a classifier that needs no training to tell them."""

import torch
from torch import Tensor, nn


def blobs(samples: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three unit Gaussians in 4-d whose means are two apart from the origin."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 3
    return torch.randn(samples, 4, generator=generator) + 2 * torch.eye(3, 4)[y], y


def blob_classifier() -> nn.Sequential:
    """Logit c is the c-th input, squashed; the other features are random."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        model.get_parameter("0.weight")[:3] = torch.eye(3, 4)
        model.get_parameter("2.weight").copy_(torch.eye(3, 8))
        return model
