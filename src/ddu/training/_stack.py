"""Networks of one architecture as one module, its samples and its loss: what `fit` needs to train them at once.

The parameters of k networks are stacked, and one vectorised forward pass (`torch.func`) gives the logits of all. The
loss is the sum of the members' losses. The gradient of a member is that of its own loss, and SGD and Adam treat every
weight by itself, so each member takes the steps that it would take alone, but for rounding.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from ddu.data import collated
from ddu.data.dataset import read_samples
from ddu.training.objectives import CrossEntropy


class Stack(nn.Module):
    """The parameters of several networks side by side, and one forward pass through all of them.

    Args:
        members: Networks of one architecture without buffers. Their weights are copied; `unstack` writes them back.

    >>> members = [nn.Linear(4, 3), nn.Linear(4, 3)]
    >>> Stack(members)(torch.zeros(5, 2, 4)).shape
    torch.Size([5, 3, 2])
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.size = len(members)
        # The first network in form: each of its parameters is replaced by those of all members, (member, ...)
        self.network = copy.deepcopy(members[0])
        for name, parameter in self.network.named_parameters():
            parameter.data = torch.stack([member.get_parameter(name).data for member in members])

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits (batch, class, member) of inputs (batch, member, ...)."""
        run = vmap(self._run_member, in_dims=(0, 1), out_dims=2)
        return run(dict(self.network.named_parameters()), inputs)

    def _run_member(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(self.network, parameters, (inputs,))

    @torch.no_grad()
    def unstack(self, members: Sequence[nn.Module]) -> list[nn.Module]:
        """Copies the weights of each member into a network of its own; returns these, in evaluation mode."""
        for name, parameters in self.network.named_parameters():
            for member, weights in zip(members, parameters, strict=True):
                member.get_parameter(name).copy_(weights)
        return [member.eval() for member in members]


class StackedSamples(Dataset[Any]):
    """The batches of all members side by side: inputs (batch, member, ...) and labels (batch, member).

    An index is a tuple with one index per member, or one for all of them.

    Args:
        dataset: The samples.
        seeds: A seed per member, which decides the order of its samples.
    """

    def __init__(self, dataset: Any, seeds: Sequence[int]) -> None:
        self.dataset, self.seeds = dataset, seeds

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int] | list[tuple[int, ...]]) -> tuple[Tensor, ...]:
        members = len(self.seeds)
        rows = [index if isinstance(index, tuple) else (index,) * members for index in indices]
        batch = collated(read_samples(self.dataset, [index for row in rows for index in row]))
        return tuple(part.unflatten(0, (len(rows), members)) for part in batch)


class StackedCrossEntropy(CrossEntropy):
    """The sum of the members' cross-entropies, of which the mean is reported.

    It remembers the best epoch of each member, by its own validation accuracy.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__(label_smoothing)
        self._most_right = self._right = torch.zeros(1, dtype=torch.int64)  # (member,), of the validation samples
        self._best: dict[str, Tensor] = {}

    def on_epoch_start(self, model: nn.Module) -> None:
        self._right = torch.zeros(_size(model), dtype=torch.int64)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(inputs)
        if not torch.is_grad_enabled():
            self._right += (logits.argmax(1) == labels).sum(0).cpu()
        # Its mean is over samples and members
        return _size(model) * cross_entropy(logits, labels, label_smoothing=self.label_smoothing), logits

    def reported(self, loss: Tensor) -> Tensor:
        return loss / len(self._right)

    def on_epoch_end(self, model: nn.Module) -> None:
        # Of equally good epochs the first, as for a single network
        better = self._right > self._most_right if self._best else torch.ones_like(self._right, dtype=torch.bool)
        for name, weights in model.named_parameters():
            best = self._best.setdefault(name, weights.detach().clone())
            best[better] = weights.detach()[better]
        self._most_right = torch.where(better, self._right, self._most_right)

    @torch.no_grad()
    def load_best(self, model: nn.Module) -> None:
        """Loads the weights of each member's best epoch."""
        for name, weights in model.named_parameters():
            weights.copy_(self._best[name])


def _size(model: nn.Module) -> int:
    assert isinstance(model, Stack)
    return model.size
