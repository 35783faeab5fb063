"""Who should predict: the softmax, or the Gaussians that are fitted to the features?

    ddu reproduce objective-mismatch

The second half of the objective mismatch, on real networks: accuracy and ECE of the softmax, and of the classes given
the features by the Gaussians of the paper's density. Both as they are, without temperature scaling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddu import data
from ddu.data.registry import Root
from ddu.detectors import DDU
from ddu.experiments.compare import NetworkSetup
from ddu.experiments.experiment import Say, silent
from ddu.experiments.reproduction import Work, mean_value, training_samples
from ddu.experiments.seeds import Measured, measure_seeds
from ddu.experiments.trained import TrainedNetwork
from ddu.experiments.training_pool import network_job, trained_networks
from ddu.files import FilePath
from ddu.metrics import accuracy, expected_calibration_error
from ddu.results import Row
from ddu.runs import RunSpec, data_digest

SOFTMAX, GAUSSIANS = "softmax", "gaussian_classifier"


@dataclass(frozen=True)
class SoftmaxOrGaussians:
    """The specification.

    Attributes:
        data: What the networks are trained on.
        networks: The networks, by name.
        limit: Use only so many training samples; None uses all.
        seeds: All networks are trained once per seed.
    """

    data: str
    networks: Mapping[str, NetworkSetup]
    limit: int | None = None
    seeds: tuple[int, ...] = (0,)

    def work(self) -> list[Work]:
        """The networks of one seed."""
        samples = training_samples(self.data, self.limit)
        return [Work(self._spec(name, 0), samples, scored=samples + 10_000) for name in self.networks]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains and measures the networks of each seed that has no rows yet; see `Experiment.measure`."""
        everything, test = data.load_parts(self.data, root=data_root)
        options: dict[str, Any] = {"data_root": data_root, "command": command, "say": say}

        def measure(seed: int) -> Measured:
            jobs = [network_job(folder, f"{name}-seed{seed}", self._spec(name, seed)) for name in self.networks]
            values = [
                {"network": job.spec.label, "detector": classifier, "metric": metric, "value": value}
                for job, network in zip(jobs, trained_networks(jobs, {}, **options), strict=True)
                for classifier, found in predictions(network).items()
                for metric, value in found.items()
            ]
            return Measured(values, {"seed": np.array(seed)})

        last = self._spec([*self.networks][-1], 0)
        return measure_seeds(
            self,
            "softmax-or-gaussians",
            folder,
            measure,
            last={"network": last.label, "detector": GAUSSIANS, "metric": "ece_uncalibrated"},
            digest=data_digest(everything, test),
            command=command,
            data=self.data,
            reductions=last.reductions(training_samples(self.data, self.limit)),
        )

    def write_page(self, folder: FilePath) -> list[Path]:
        """No figures: the paper has a table."""
        return []

    def _spec(self, name: str, seed: int) -> RunSpec:
        setup = self.networks[name]
        return RunSpec(setup.model, self.data, setup.recipe, None, seed, self.limit, options=setup.options)


def predictions(network: TrainedNetwork) -> dict[str, dict[str, float]]:
    """Accuracy and ECE on the test set, of the softmax and of the Gaussians."""
    detector = DDU.paper(network.model)
    detector.fit(network.batches("train", detector), progress=False)
    test = list(network.batches("test", detector))
    labels = torch.cat([batch.labels for batch in test])
    probs = {
        SOFTMAX: torch.cat([batch.logits for batch in test]).double().softmax(1),
        GAUSSIANS: detector.density.posterior(torch.cat([batch.features for batch in test]).double()),
    }
    return {
        name: {
            "accuracy": accuracy(one, labels),
            "ece_uncalibrated": expected_calibration_error(one, labels),
        }
        for name, one in probs.items()
    }


def judged(rows: Sequence[Row]) -> dict[str, bool]:
    """Whether the softmax predicts better than the Gaussians; nothing where the networks have not been trained yet."""
    parts: dict[str, bool] = {}
    for network in dict.fromkeys(row.network for row in rows if row.detector == GAUSSIANS):
        right = {name: mean_value(rows, "accuracy", detector=name, network=network) for name in (SOFTMAX, GAUSSIANS)}
        error = {
            name: mean_value(rows, "ece_uncalibrated", detector=name, network=network) for name in (SOFTMAX, GAUSSIANS)
        }
        parts[
            f"Accuracy on {network}: softmax {right[SOFTMAX]:.2%}, Gaussians {right[GAUSSIANS]:.2%}; asked: the "
            "softmax higher"
        ] = right[SOFTMAX] > right[GAUSSIANS]
        parts[
            f"Calibration error on {network}: softmax {error[SOFTMAX]:.2%}, Gaussians {error[GAUSSIANS]:.2%}; asked: "
            "the softmax lower"
        ] = error[SOFTMAX] < error[GAUSSIANS]
    return parts
