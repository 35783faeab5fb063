"""Small networks for the tests of detectors, trained by a loop of a few lines."""

import torch
from torch import Tensor, nn

from ddu.models import Classifier, create_model
from ddu.training.objectives import CrossEntropy, Objective


def trained(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    objective: Objective | None = None,
    epochs: int = 10,
    lr: float = 1e-3,
    sgd: bool = False,
    batch_size: int = 64,
    seed: int = 0,
) -> nn.Module:
    objective = objective or CrossEntropy()
    parameters = list(model.parameters())
    adam, momentum = torch.optim.Adam(parameters, lr), torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=1e-4)
    optimizer = momentum if sgd else adam
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        for _ in range(epochs):
            objective.on_epoch_start(model)
            for index in torch.randperm(len(x)).split(batch_size):
                loss, _ = objective.loss(model.train(), x[index], y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                objective.after_step(model, x[index], y[index])
    return model.eval()


def make(name: str, seed: int = 0, **options) -> Classifier:
    """`create_model` from a seed of its own."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return create_model(name, **options)
