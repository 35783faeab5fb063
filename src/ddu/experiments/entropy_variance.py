"""How much the softmax entropies of equally trained networks scatter, and whether a Dirichlet distribution predicts it.

    ddu reproduce entropy-variance

Many networks are trained alike from different seeds. For each input they have a mean prediction p̄ and a mutual
information I; the Dirichlet distribution with both (`ddu.theory.fit_dirichlet`) predicts the variance of their
entropies, which the paper finds to be a lower bound of the empirical one, with less than 2 % violations. In numbers, on
test data and on an OoD set:

- violations: the share of inputs whose empirical variance is below the predicted one, with the corrected theorem and,
  for comparison, with the paper's as printed, which is smaller (`docs/theory.md`), and of networks that are draws from
  the Dirichlets, for which the prediction is right, so that only chance decides;
- the median ratio of predicted and empirical variance;
- the deviation between networks of the mean entropy of the set, which the histograms show;
- how far the distribution of entropies drawn from the Dirichlets is from the empirical one: the largest difference
  between the two cumulative distributions, of all inputs together (Kolmogorov-Smirnov).

Inputs on which all networks agree to six digits have no Dirichlet, and are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.special import polygamma

from ddu import data, measures
from ddu.data import ArrayDataset
from ddu.data.registry import Root
from ddu.experiments.experiment import Say, silent
from ddu.experiments.reproduction import Judgement, Work, mean_value, only_one, training_samples
from ddu.experiments.seeds import Measured, OneFigure, measure_seeds
from ddu.experiments.trained import limited, load_ood
from ddu.experiments.training_pool import network_job, trained_networks
from ddu.files import FilePath
from ddu.messages import require
from ddu.report.figures import COLOURS, draw_histograms, dress, legend_above
from ddu.results import Row
from ddu.runs import RunSpec, data_digest
from ddu.theory import entropy_variance, fit_dirichlet
from ddu.training import RECIPES, Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Inputs with less mutual information are those on which all networks agree
_AGREED = 1e-6
_STRIDE = 1000  # between the seeds of the networks
_SHOWN = 8  # histograms of single networks


@dataclass(frozen=True)
class EntropyVariance(OneFigure):
    """The specification.

    Attributes:
        data: What the networks are trained on.
        ood: A set that is out of distribution.
        model: The architecture.
        recipe: How the networks are trained.
        networks: How many there are.
        options: For `create_model`.
        limit: Use only so many training samples; None uses all.
        inputs: Test inputs, and OoD inputs, that are looked at.
        seeds: All networks are trained once per seed.
    """

    figure: ClassVar[str] = "entropies.png"

    data: str = "cifar10"
    ood: str = "svhn"
    model: str = "wide_resnet28_10"
    recipe: Recipe = RECIPES["cifar"]
    networks: int = 30
    options: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    inputs: int = 10_000
    seeds: tuple[int, ...] = (0,)

    def work(self) -> list[Work]:
        """The networks of one seed."""
        return [Work(self._spec(0, 0), training_samples(self.data, self.limit), self.networks, (self.ood,))]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains and measures the networks of each seed that has no rows yet; see `Experiment.measure`.

        Networks that are trained are kept, in `networks/`.
        """
        (ood,) = load_ood([self.ood], self.data, data_root).values()
        everything, test = data.load_parts(self.data, root=data_root)
        sets = {"test": limited(test, self.inputs), self.ood: limited(ood, self.inputs)}
        samples = min(self.limit or len(everything), len(everything))

        def measure(seed: int) -> Measured:
            logits = self._logits(folder, sets, seed, data_root, command, say)
            say(f"Seed {seed}: fit {sum(map(len, sets.values())):,} Dirichlet distributions")
            scatters = {name: scatter(one, seed) for name, one in logits.items()}
            values = [
                {"ood": None if name == "test" else name, "metric": metric, "value": value}
                for name, one in scatters.items()
                for metric, value in one.summary().items()
            ]
            arrays = {f"{name}, {what}": a.float().numpy() for name, one in scatters.items() for what, a in one.shown()}
            return Measured(values, arrays)

        return measure_seeds(
            self,
            "entropy-variance",
            folder,
            measure,
            last={"ood": self.ood, "metric": "entropy_distance"},
            digest=data_digest(everything, test, ood),
            command=command,
            data=self.data,
            detector="softmax entropy",
            network=self._spec(0, 0).label,
            members=self.networks,
            reductions=self._reductions(samples),
        )

    def draw(self, arrays: Mapping[str, np.ndarray]) -> "Figure":
        """Entropies of single networks; predicted against empirical variances; their ratio; entropies of draws.

        Args:
            arrays: The content of arrays.npz.
        """
        figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce entropy-variance")
        figure = figure_module.Figure(figsize=(13, 3.6), layout="constrained")
        single, variances, ratios, drawn = figure.subplots(1, 4)
        entropies = arrays[f"{self.ood}, entropies"]
        top = float(max(entropies.max(), arrays[f"{self.ood}, drawn"].max()))
        for one in entropies[:_SHOWN]:
            share, edges = np.histogram(one, bins=30, range=(0, top))
            single.stairs(share / len(one), edges, linewidth=1.2, alpha=0.8)
        dress(single, f"softmax entropy on {self.ood}\n{len(entropies[:_SHOWN])} networks, one line each", "share")
        for index, name in enumerate(("test", self.ood)):
            predicted, empirical = arrays[f"{name}, predicted"], arrays[f"{name}, empirical"]
            variances.loglog(
                predicted, empirical, ".", markersize=2, alpha=0.4, color=COLOURS[index], label=name, rasterized=True
            )
        low, high = variances.get_xlim()
        variances.plot([low, high], [low, high], color="black", linewidth=0.8, linestyle=(0, (2, 2)))
        variances.set(xlabel="variance by the Dirichlet (dashed: the same)", ylabel="empirical variance of the entropy")
        variances.spines[["top", "right"]].set_visible(False)
        legend_above(variances)
        for handle in variances.get_legend().legend_handles:
            handle.set(markersize=6, alpha=1)
        logs = {
            name: np.log10(arrays[f"{name}, predicted"] / arrays[f"{name}, empirical"]) for name in ("test", self.ood)
        }
        dress(ratios, "log10 of predicted / empirical", "share of the set")
        draw_histograms(ratios, logs, -2, 1)
        ratios.axvline(0, color="black", linewidth=0.8, linestyle=(0, (2, 2)))
        legend_above(ratios)
        dress(drawn, f"softmax entropy on {self.ood}", "share")
        draw_histograms(
            drawn, {"networks": entropies.ravel(), "Dirichlets": arrays[f"{self.ood}, drawn"].ravel()}, 0, top
        )
        legend_above(drawn)
        return figure

    def _logits(
        self, folder: FilePath, sets: Mapping[str, ArrayDataset], seed: int, data_root: Root, command: str, say: Say
    ) -> dict[str, Tensor]:
        """What all networks say of each set, (network, input, class); networks that are missing are trained."""
        jobs = [
            network_job(folder, f"seed{seed}-network{number}", self._spec(seed, number))
            for number in range(self.networks)
        ]
        found: dict[str, list[Tensor]] = {name: [] for name in sets}
        for network in trained_networks(jobs, sets, data_root=data_root, command=command, say=say):
            for name, batches in found.items():
                batches.append(torch.cat([batch.logits for batch in network.logits(name)]))
        return {name: torch.stack(one).double() for name, one in found.items()}

    def _spec(self, seed: int, number: int) -> RunSpec:
        """How a network is trained; all networks of a seed hold out the same samples."""
        return RunSpec(
            self.model,
            self.data,
            self.recipe,
            None,
            seed + _STRIDE * number,
            self.limit,
            options=self.options,
            split_seed=seed if number else None,
        )

    def _reductions(self, samples: int) -> str | None:
        fewer = [f"networks 30 -> {self.networks}"] if self.networks < 30 else []
        return "; ".join([one for one in (self._spec(0, 0).reductions(samples),) if one] + fewer) or None


@dataclass(frozen=True)
class Scatter:
    """How the entropies of the networks scatter on one set.

    Attributes:
        entropies: Of each network and each input, (network, input).
        predicted: The variance by the fitted Dirichlet, (input,).
        as_printed: The same by the paper's theorem as printed, (input,).
        empirical: The unbiased variance over the networks, (input,).
        drawn: Entropies of one draw from each Dirichlet per network, (network, input).
        agreed: The number of inputs that were left out.
    """

    entropies: Tensor
    predicted: Tensor
    as_printed: Tensor
    empirical: Tensor
    drawn: Tensor
    agreed: int

    def summary(self) -> dict[str, float]:
        """The metrics of the set."""
        return {
            "entropy_deviation": float(self.entropies.mean(1).std()),
            "agreed_share": self.agreed / self.entropies.shape[1],
            "variance_violations": float((self.empirical < self.predicted).double().mean()),
            "variance_violations_printed": float((self.empirical < self.as_printed).double().mean()),
            "variance_violations_by_chance": float((self.drawn.var(0) < self.predicted).double().mean()),
            "variance_ratio": float((self.predicted / self.empirical).median()),
            "entropy_distance": _distance(self.entropies, self.drawn),
        }

    def shown(self) -> list[tuple[str, Tensor]]:
        """What the figures show, at most 2,000 inputs of it."""
        kept = {"entropies": self.entropies[:_SHOWN], "drawn": self.drawn[:_SHOWN]}
        return [
            *((name, one[:, :2000]) for name, one in kept.items()),
            ("predicted", self.predicted[:2000]),
            ("empirical", self.empirical[:2000]),
        ]


def scatter(logits: Tensor, seed: int = 0) -> Scatter:
    """Compares the entropies of networks with those of the Dirichlet distributions of the same means and information.

    Args:
        logits: Of all networks, (network, input, class).
        seed: Of the draws.
    """
    logits = logits.double()
    mean, information = measures.log_mean_softmax(logits).exp(), measures.mutual_information(logits)
    usable = information > _AGREED
    alpha = fit_dirichlet(mean[usable], information[usable])
    entropies = measures.entropy(logits)
    return Scatter(
        entropies,
        entropy_variance(alpha),
        entropy_variance(alpha) - _lost_in_print(alpha),
        entropies[:, usable].var(0),
        _drawn_entropies(alpha, len(logits), seed),
        int((~usable).sum()),
    )


def judge(rows: Sequence[Row]) -> Judgement:
    """Whether entropies scatter, the Dirichlet bounds their variance from below, and its draws look like them."""
    ood = only_one({row.ood for row in rows if row.ood is not None}, "OoD set")

    def found(metric: str, where: str | None = ood) -> float:
        return mean_value(rows, metric, ood=where)

    violations, known = found("variance_violations"), found("variance_violations", None)
    spread, at_home, distance = found("entropy_deviation"), found("entropy_deviation", None), found("entropy_distance")
    return Judgement.of(
        {
            f"Deviation between networks of the mean entropy: {spread:.3f} nats on {ood}, {at_home:.3f} on test data; "
            f"asked: more on {ood}": spread > at_home,
            f"Dirichlet variance above the empirical one for {violations:.1%} of {ood} and {known:.1%} of the test "
            f"data (with the theorem as printed: {found('variance_violations_printed'):.1%} and "
            f"{found('variance_violations_printed', None):.1%}); asked: both less than 2 %": (
                max(violations, known) < 0.02
            ),
            f"Largest difference between the cumulative distributions of entropies on {ood}, drawn from the Dirichlets "
            f"and of the networks: {distance:.1%}; asked: at most 10 %": distance <= 0.1,
        }
    )


def _lost_in_print(alpha: Tensor) -> Tensor:
    """What the paper's theorem misses: ψ'(α₀ + 1) in the place of ψ'(α₀ + 2), for all pairs of different classes."""
    total = alpha.sum(-1)
    pairs = (total**2 - (alpha**2).sum(-1)) / (total * (total + 1))
    return pairs * (polygamma(1, total + 1) - polygamma(1, total + 2))


def _drawn_entropies(alpha: Tensor, count: int, seed: int) -> Tensor:
    """Entropies of draws from Dirichlet distributions, (draw, input)."""
    gammas = np.random.default_rng(seed).standard_gamma(alpha.numpy(), (count, *alpha.shape))
    # Where all concentrations are tiny, all gammas may underflow to 0: such a draw is sure of one class, entropy 0
    probs = gammas / gammas.sum(-1, keepdims=True).clip(np.finfo(float).tiny)
    return torch.special.entr(torch.from_numpy(probs)).sum(-1)


def _distance(first: Tensor, second: Tensor) -> float:
    """The largest difference between two cumulative distributions (Kolmogorov-Smirnov)."""
    one, other = first.flatten().sort().values, second.flatten().sort().values
    everything = torch.cat([one, other])
    shares = [torch.searchsorted(x, everything, right=True) / len(x) for x in (one, other)]
    return float((shares[0] - shares[1]).abs().max())
