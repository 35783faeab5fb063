"""Figures: what they draw, read back from the axes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc
from torch import Tensor

from ddu.errors import InputError
from ddu.metrics import auroc, risk_coverage
from ddu.report import (
    corruption_figure,
    corruption_panels,
    entropy_histogram,
    epistemic_histogram,
    inline_svg,
    promise_figure,
    reliability_diagram,
    risk_coverage_figure,
    roc_figure,
    score_histogram,
)
from ddu.report.figures import line_style
from ddu.results import Row


def outlines(axes: Any) -> list[Any]:
    return [patch for patch in axes.patches if patch.get_label()]


def spread(count: int, mean: float, std: float) -> Tensor:
    return mean + std * torch.randn(count, generator=torch.Generator().manual_seed(count))


def test_every_set_is_a_histogram_of_shares_with_the_threshold_marked():
    sets = {"clean": spread(300, 0.2, 0.05), "ambiguous": spread(200, 0.8, 0.1), "photos": spread(1000, 1.0, 0.3)}
    axes: Any = entropy_histogram(sets, threshold=0.6, num_classes=10).axes[0]
    drawn = shares(axes)
    assert list(drawn) == ["clean", "ambiguous", "photos"]
    for name, values in drawn.items():
        assert values.sum() == pytest.approx(1)
        want, _ = np.histogram(sets[name].clamp(0, np.log(10)), bins=len(values), range=(0, np.log(10)))
        np.testing.assert_allclose(
            values, want / len(sets[name]), atol=0.011
        )  # float32 at a bin's edge: a sample or two
    assert [line.get_xdata()[0] for line in axes.lines] == [0.6]
    assert [text.get_text() for text in axes.texts] == ["ambiguous above 0.60 →"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["clean", "ambiguous", "photos"]
    assert axes.get_xlim() == (0, pytest.approx(np.log(10)))


def test_the_far_tail_of_scores_is_counted_in_the_last_bar_and_the_axis_says_so():
    sets = {"digits": torch.linspace(-100, 0, 101), "photos": torch.tensor([1e9, 5000.0, 100.0, -50.0])}
    axes = epistemic_histogram(sets, threshold=0.0).axes[0]
    assert axes.get_xlim() == (-100, 300)
    assert axes.get_xlabel() == "epistemic score\n2 of 105 inputs are above 300,\nall in the last bar"
    assert shares(axes)["photos"][-1] == 0.5
    assert shares(axes)["photos"].sum() == pytest.approx(1)
    assert [text.get_text() for text in axes.texts] == ["out of distribution above 0.0 →"]


def test_without_a_far_tail_the_axis_covers_everything_and_says_nothing():
    axes = epistemic_histogram({"digits": torch.linspace(-100, 20, 50)}, threshold=10.0).axes[0]
    assert axes.get_xlim() == (-100, 20)
    assert axes.get_xlabel() == "epistemic score"
    assert [text.get_text() for text in axes.texts] == ["out of distribution above 10.0 →"]


def test_sets_are_told_apart_by_their_lines_and_not_by_colour_alone():
    axes = entropy_histogram({name: torch.rand(9) for name in "abc"}, threshold=0.5, num_classes=3).axes[0]
    assert len({str(patch.get_linestyle()) for patch in outlines(axes)}) == 3
    assert len({patch.get_edgecolor() for patch in outlines(axes)}) == 3


@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3, 1e12])
def test_scores_of_any_magnitude_are_drawn(magnitude):
    axes = epistemic_histogram({"digits": noise(50, 0, 1) * magnitude}, threshold=2 * magnitude).axes[0]
    assert shares(axes)["digits"].sum() == pytest.approx(1)


def test_values_that_are_all_equal_are_drawn():
    axes = epistemic_histogram({"digits": torch.full((5,), 3.0)}, threshold=3.0).axes[0]
    assert shares(axes)["digits"].sum() == pytest.approx(1)


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(InputError) as caught:
        epistemic_histogram({"digits": torch.tensor([1.0, float("nan"), float("-inf")])}, threshold=0.0)
    assert str(caught.value) == (
        "A histogram needs finite values, at least one per set. 'digits' has 3, of which 2 are NaN or infinite."
    )


def noise(count: int, mean: float = 0.0, seed: int = 0) -> Tensor:
    return mean + torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named_lines(axes: Any) -> dict[str, np.ndarray]:
    """The curves that have a name, (point, 2)."""
    return {line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")}


def bars(axes: Any) -> list[tuple[float, float, float]]:
    """Left edge, width and height of each bar."""
    return [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches]


def shares(axes: Any) -> dict[str, np.ndarray]:
    return {patch.get_label(): patch.get_data().values for patch in axes.patches if patch.get_label()}


def legend(axes: Any) -> list[str]:
    found = axes.get_legend() or axes.figure.legends[0]
    return [text.get_text() for text in found.get_texts()]


def test_score_histograms_are_shares_of_each_set():
    sets = {"mnist": noise(400), "kmnist": noise(300, mean=2, seed=1)}
    axes: Any = score_histogram(sets, "negative log-density").axes[0]
    low, high = axes.get_xlim()
    everything = torch.cat(list(sets.values()))
    assert (low, high) == (float(everything.min()), float(everything.max()))
    for name, drawn in shares(axes).items():
        want, _ = np.histogram(sets[name], bins=len(drawn), range=(low, high))
        np.testing.assert_allclose(drawn, want / len(sets[name]))
    assert legend(axes) == ["mnist", "kmnist"]
    assert axes.get_xlabel() == "negative log-density"


def test_infinite_scores_are_further_out_than_all_others():
    known, unknown = noise(400), torch.cat([noise(98, mean=2, seed=1), torch.tensor([torch.inf, -torch.inf])])
    axes: Any = score_histogram({"mnist": known, "kmnist": unknown}).axes[0]
    finite = torch.cat([known, unknown[:98]])
    assert axes.get_xlim() == (float(finite.min()), float(finite.max()))
    assert axes.get_xlabel() == "uncertainty\n2 of 500 further out, in the outermost bars"
    assert sum(shares(axes)["kmnist"]) == pytest.approx(1)
    for nowhere in ({"mnist": torch.full((3,), torch.inf)}, {"mnist": torch.full((3,), torch.inf), "kmnist": known}):
        assert score_histogram(nowhere).axes[0].get_xlabel().startswith("uncertainty\n3 of ")
    roc_figure({"ddu": (known, unknown)})
    with pytest.raises(InputError) as caught:
        score_histogram({"mnist": torch.tensor([0.0, torch.nan])})
    assert str(caught.value) == "A histogram needs numbers, at least one per set. 'mnist' has 2, of which 1 are NaN."


def test_scores_far_out_are_counted_in_the_outermost_bars_and_the_axis_says_so():
    sets = {"mnist": torch.linspace(0, 10, 11), "far": torch.tensor([-1e9, 5.0, 31.0, 1e12])}
    axes: Any = score_histogram(sets).axes[0]
    assert axes.get_xlim() == (-20, 30)
    assert axes.get_xlabel() == "uncertainty\n3 of 15 further out, in the outermost bars"
    assert shares(axes)["far"][0] == 0.25
    assert shares(axes)["far"][-1] == 0.5
    assert shares(axes)["far"].sum() == 1


def test_a_roc_curve_has_the_area_that_its_name_says():
    known = noise(3000)
    scores = {"ddu": (known, noise(2000, mean=2, seed=1)), "softmax": (known, noise(2000, mean=1, seed=2))}
    axes: Any = roc_figure(scores).axes[0]
    drawn = named_lines(axes)
    assert list(drawn) == [f"{name}: {auroc(*pair):.3f}" for name, pair in scores.items()]
    for (name, pair), curve in zip(scores.items(), drawn.values(), strict=True):
        assert curve[0].tolist() == [0, 0], name
        assert curve[-1].tolist() == [1, 1], name
        assert len(curve) <= 400
        # Thinned to 400 points, the area moves in the fourth decimal
        assert auc(curve[:, 0], curve[:, 1]) == pytest.approx(auroc(*pair), abs=1e-3)


def test_a_roc_curve_of_few_scores_is_drawn_point_by_point():
    axes: Any = roc_figure({"ddu": (torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))}).axes[0]
    assert named_lines(axes)["ddu: 0.875"].tolist() == [[0, 0], [0, 0.5], [0.5, 1], [1, 1]]


@pytest.fixture(scope="module")
def predictions() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (2 * logits).softmax(1), labels


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_reliability_diagram_draws_scikit_learns_calibration_curve(predictions, adaptive):
    probs, labels = predictions
    confidence, predicted = probs.max(1)
    upper, lower = reliability_diagram(probs, labels, bins=10, adaptive=adaptive).axes
    # scikit-learn leaves out bins without samples
    accuracy, mean_confidence = calibration_curve(
        (predicted == labels).numpy(), confidence.numpy(), n_bins=10, strategy="quantile" if adaptive else "uniform"
    )
    points = named_lines(upper)["at mean confidence"]
    # With quantile bins, a sample on an edge may be counted on either side of it
    tolerance = 0.01 if adaptive else 1e-9
    np.testing.assert_allclose(points[:, 0], mean_confidence, atol=tolerance)
    np.testing.assert_allclose(points[:, 1], accuracy, atol=tolerance)
    heights = [height for _, _, height in bars(upper)]
    np.testing.assert_allclose(heights, points[:, 1])
    assert sum(height for _, _, height in bars(lower)) == pytest.approx(1)
    assert named_lines(upper)["calibrated"].tolist() == [[0, 0], [1, 1]]


def test_a_reliability_diagram_says_the_calibration_error():
    confidence = torch.tensor([0.95, 0.95, 0.75, 0.75], dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    upper, lower = reliability_diagram(probs, torch.tensor([0, 1, 0, 0]), bins=10).axes
    assert [text.get_text() for text in upper.texts] == ["ECE 35.00%"]
    assert bars(upper) == [
        (pytest.approx(0.7), pytest.approx(0.1), 1.0),
        (pytest.approx(0.9), pytest.approx(0.1), 0.5),
    ]
    assert [height for _, _, height in bars(lower)] == [0, 0, 0, 0, 0, 0, 0, 0.5, 0, 0.5]


def test_long_names_of_many_detectors_leave_the_panel_its_size():
    known, unknown = torch.zeros(10), torch.ones(10)
    few = roc_figure({"ddu": (known, unknown)})
    many = roc_figure({f"a detector with a long name, number {i}": (known, unknown) for i in range(16)})
    for figure in (few, many):
        figure.draw_without_rendering()
        panel: Any = figure.axes[0]
        bounds = panel.get_window_extent()
        assert min(bounds.width, bounds.height) > 2 * figure.dpi
        names = figure.legends[0].get_window_extent()
        assert names.y1 < bounds.y0
        assert figure.bbox.x0 < names.x0 < names.x1 < figure.bbox.x1
        assert figure.bbox.y0 < names.y0
    assert few.get_size_inches()[0] == 4.6  # a page scales the figure to its width, and the text with it


def test_risk_coverage_curves_are_drawn_with_their_areas():
    correct = torch.arange(1000) < 900
    curves = {"ddu": risk_coverage(torch.arange(1000.0), correct), "random": risk_coverage(torch.zeros(1000), correct)}
    axes: Any = risk_coverage_figure(curves).axes[0]
    drawn = named_lines(axes)
    assert list(drawn) == [f"ddu: {curves['ddu'].area:.4f}", "random: 0.1000"]
    np.testing.assert_allclose(drawn["random: 0.1000"][:, 1], 0.1)
    knowing = drawn[f"ddu: {curves['ddu'].area:.4f}"]
    assert knowing[-1].tolist() == pytest.approx([1.0, 0.1])
    np.testing.assert_allclose(knowing[:, 1], np.maximum(0, 1 - 0.9 / knowing[:, 0]), atol=1e-9)


def test_a_promise_is_drawn_against_what_came_of_it():
    axes: Any = promise_figure("error rate", [0.02, 0.05], {"wrong": [0.01, 0.03], "ambiguous": [0.5, 0.2]}).axes[0]
    drawn = named_lines(axes)
    assert {name: line.tolist() for name, line in drawn.items() if not name.startswith("_")} == {
        "wrong": [[0.02, 0.01], [0.05, 0.03]],
        "ambiguous": [[0.02, 0.5], [0.05, 0.2]],
    }
    assert axes.lines[0].get_xydata().tolist() == [[0.02, 0.02], [0.05, 0.05]]
    assert axes.get_xlabel() == "error rate"


def corrupted(detector: str, corruption: str, severity: int, seed: int, value: float, **facts) -> Row:
    return Row(
        **{
            "detector": detector,
            "network": "resnet18+sn",
            "data": "cifar10",
            "seed": seed,
            "run": "12ab",
            "severity": severity,
        }
        | {"ood": f"cifar10_c/{corruption}", "metric": "auroc", "value": value}
        | facts
    )


ROWS = [
    corrupted(detector, corruption, severity, seed, start + 0.05 * severity + 0.02 * seed + extra)
    for detector, start in (("ddu", 0.6), ("softmax", 0.5))
    for corruption, extra in (("fog", 0.0), ("snow", 0.1))
    for severity in (1, 3, 5)
    for seed in (0, 1)
]


def error_bars(axes: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points (severity, mean) and half-lengths of their error bars, by name."""
    found = {}
    for container in axes.containers:
        line, _, (bar,) = container.lines
        lengths = [segment[1, 1] - segment[0, 1] for segment in bar.get_segments()]
        found[container.get_label()] = (line.get_xydata(), np.array(lengths) / 2)
    return found


def test_corruption_curves_are_means_over_corruptions_with_errors_over_seeds():
    axes: Any = corruption_figure(ROWS).axes[0]
    drawn = error_bars(axes)
    assert list(drawn) == ["ddu", "softmax"]
    for name, start in (("ddu", 0.6), ("softmax", 0.5)):
        points, errors = drawn[name]
        # Seeds differ by 0.02, so their mean has a standard error of 0.01
        np.testing.assert_allclose(points, [[s, start + 0.05 * s + 0.01 + 0.05] for s in (1, 3, 5)])
        np.testing.assert_allclose(errors, 0.01)
    assert axes.get_xlabel() == "severity of corruption\nmean over 2 corruptions, ± standard error over 2 seeds"
    assert axes.get_ylabel() == "AUROC"
    assert axes.get_xticks().tolist() == [1, 3, 5]


def test_each_corruption_has_a_panel_with_the_mean_over_seeds():
    fog, snow = corruption_panels(ROWS).axes
    assert [axes.get_title() for axes in (fog, snow)] == ["cifar10 c/fog", "cifar10 c/snow"]
    for axes, extra in ((fog, 0.0), (snow, 0.1)):
        assert [line.get_label() for line in axes.lines] == ["ddu", "softmax"]
        for line, start in zip(axes.lines, (0.6, 0.5), strict=True):
            np.testing.assert_allclose(
                np.asarray(line.get_xydata()), [[s, start + 0.05 * s + 0.01 + extra] for s in (1, 3, 5)]
            )


def test_a_legend_of_long_names_fits_above_two_panels():
    figure = corruption_panels([replace(one, network=f"wide_resnet28_10 of {one.detector}") for one in ROWS])
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= max(axes.get_window_extent().y1 for axes in figure.axes)


def test_every_curve_is_over_the_same_corruptions_and_other_rows_are_passed_over():
    rows = [
        *ROWS,
        *(corrupted("ddu", "frost", severity, seed, 0.99) for severity in (1, 3, 5) for seed in (0, 1)),
        Row(
            detector="ddu",
            network="resnet18+sn",
            data="cifar10",
            seed=0,
            run="12ab",
            ood="svhn",
            metric="auroc",
            value=0.1,
        ),
        corrupted("ddu", "fog", 1, 0, 0.1, metric="fpr95"),
    ]
    np.testing.assert_allclose(
        error_bars(corruption_figure(rows).axes[0])["ddu"][0], error_bars(corruption_figure(ROWS).axes[0])["ddu"][0]
    )


def test_failures_are_named_and_one_seed_has_no_error():
    one_seed = [row for row in ROWS if row.seed == 0]
    facts = {"network": "resnet18+sn", "data": "cifar10", "seed": 0, "run": "12ab"}
    failed = Row.failed("no memory", detector="ddu", ood="cifar10_c/frost", severity=3, **facts)
    axes: Any = corruption_figure([*one_seed, failed]).axes[0]
    assert legend(axes) == ["ddu (1 failed)", "softmax"]
    assert axes.get_xlabel() == "severity of corruption\nmean over 2 corruptions"
    assert not any(container.has_yerr for container in axes.containers)


def test_networks_are_told_apart_where_there_are_several():
    rows = [*ROWS, corrupted("ddu", "fog", 1, 0, 0.5, network="vgg16")]
    axes: Any = corruption_figure(rows).axes[0]
    assert legend(axes) == ["ddu on resnet18+sn", "softmax on resnet18+sn", "ddu on vgg16"]


def test_rows_that_cannot_be_compared_are_refused():
    with pytest.raises(InputError) as caught:
        corruption_figure(ROWS, metric="fpr95")
    assert str(caught.value) == "No row has the metric 'fpr95' and a severity: there is nothing to draw."
    with pytest.raises(InputError) as caught:
        corruption_figure([corrupted("ddu", "fog", 1, 0, 0.6), corrupted("softmax", "snow", 1, 0, 0.5)])
    assert str(caught.value) == (
        "None of the 2 corruptions was measured for every detector, seed and severity: finish the comparison, or "
        "choose rows that belong together."
    )


def test_two_dozen_lines_are_told_apart():
    styles = {(style["color"], str(style["linestyle"])) for style in map(line_style, range(24))}
    assert len(styles) == 24


def test_every_figure_can_stand_in_a_page():
    known, unknown = noise(50), noise(50, mean=1, seed=1)
    correct = known < 1
    probs = torch.stack([known.sigmoid(), 1 - known.sigmoid()], dim=1)
    for figure in (
        score_histogram({"a": known, "b": unknown}),
        roc_figure({"ddu": (known, unknown)}),
        reliability_diagram(probs, correct.long()),
        risk_coverage_figure({"ddu": risk_coverage(known, correct)}),
        corruption_figure(ROWS),
    ):
        assert inline_svg(figure, "a figure").startswith('<svg role="img" aria-label="a figure"')
