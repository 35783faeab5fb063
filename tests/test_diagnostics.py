"""The doctor: its numbers against dense references, and its findings on networks that are known to be good or bad."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.data import TensorDataset

import ddu
from ddu.diagnostics import SEVERITIES, Diagnosis, Finding
from ddu.diagnostics.changes import changed, far_outside, random_phases, shuffled_columns, shuffled_pixels
from ddu.diagnostics.lipschitz import local_ratios, pair_ratios, perturbations
from ddu.diagnostics.norms import layer_norms
from ddu.diagnostics.spectrum import dead_features, spectrum, within_classes
from ddu.errors import InputError, NotFittedError
from ddu.features import FeatureTap
from ddu.layers import spectral_norm

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # of networks that nobody trained


# Spectra, against numpy


@pytest.mark.parametrize(("samples", "width", "rank"), [(200, 12, 12), (200, 12, 5), (8, 30, 7), (300, 40, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rank_condition_and_effective_dimension_are_those_of_numpys_covariance(samples, width, rank, dtype):
    z = (torch.randn(samples, rank, dtype=torch.float64) @ torch.randn(rank, width, dtype=torch.float64)).to(dtype)
    found = spectrum(z - z.mean(0))
    values = np.linalg.eigvalsh(np.cov(z.double().numpy().T))[::-1]
    own = min(rank, samples - 1)
    assert found.rank == own == np.linalg.matrix_rank((z - z.mean(0)).numpy())
    assert found.condition == pytest.approx(values[0] / values[own - 1], rel=1e-3)
    assert found.effective_dimension == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-5)


def test_equal_variances_have_as_many_effective_dimensions_as_features():
    q = torch.linalg.qr(torch.randn(50, 6, dtype=torch.float64)).Q
    assert spectrum(q).effective_dimension == pytest.approx(6)
    assert spectrum(q).condition == pytest.approx(1)


def test_a_spectrum_does_not_depend_on_the_scale_of_the_features():
    z = torch.randn(40, 5, dtype=torch.float64)
    np.testing.assert_allclose(spectrum(1e-6 * z), spectrum(1e6 * z), rtol=1e-9)


def test_features_without_variance_have_no_rank():
    assert spectrum(torch.zeros(5, 3)) == (0, math.inf, 0.0)


def test_dead_features_are_those_that_never_change():
    z = torch.randn(20, 6)
    z[:, 1], z[:, 4] = 0.0, 1000.1
    assert dead_features(z) == 2


def test_within_classes_the_differences_of_means_are_gone():
    z, y = torch.randn(60, 4), torch.arange(60) % 3
    centred = within_classes(z + 100 * y[:, None], y)
    for label in range(3):
        np.testing.assert_allclose(centred[y == label].mean(0), 0, atol=1e-5)
    assert centred.abs().max() < 10


# Lipschitz estimates, on linear maps


def test_a_scaled_isometry_has_one_ratio():
    q = torch.linalg.qr(torch.randn(6, 6)).Q
    x = torch.randn(50, 6)
    np.testing.assert_allclose(pair_ratios(x, 3 * x @ q), 3, rtol=1e-5)
    moved = perturbations(x)
    np.testing.assert_allclose(local_ratios(x, 3 * x @ q, moved, 3 * moved @ q), 3, rtol=1e-3)  # small differences


def test_ratios_of_a_linear_map_lie_between_its_singular_values_and_reach_them():
    left, right = (torch.linalg.qr(torch.randn(2, 2)).Q for _ in range(2))
    a = left @ torch.diag(torch.tensor([5.0, 0.2])) @ right
    x = torch.randn(400, 2)
    moved = perturbations(x)
    for found in (pair_ratios(x, x @ a.T), local_ratios(x, x @ a.T, moved, moved @ a.T)):
        assert 0.199 < found.lower < 0.3
        assert 4.9 < found.upper < 5.001


def test_a_collapsed_direction_has_a_ratio_near_zero():
    x = torch.randn(400, 2)
    assert pair_ratios(x, x[:, :1]).lower < 0.05
    assert pair_ratios(x, torch.ones(400, 3)) == (0, 0, 0)


def test_perturbations_are_small_beside_the_distance_between_inputs():
    x = torch.randn(64, 3, 8, 8)
    usual = torch.pdist(x.flatten(1)).median()
    np.testing.assert_allclose((perturbations(x) - x).flatten(1).norm(dim=1), 0.02 * usual, rtol=1e-2)


# Norms, against the dense operator


def dense_norm(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """The largest singular value of a layer without its bias, column by column."""
    units = torch.eye(math.prod(shape)).view(-1, *shape)
    with torch.no_grad():
        columns = (layer(units) - layer(torch.zeros(1, *shape))).flatten(1)
    return float(torch.linalg.matrix_norm(columns.double(), 2))


def test_norms_are_those_of_the_dense_operators_with_and_without_spectral_norm():
    first, second, head = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(4, 3, 3, padding=1), nn.Linear(48, 3)
    with torch.no_grad():
        second.weight.mul_(20)
    model = nn.Sequential(first, nn.ReLU(), spectral_norm(second, 2.0), nn.Flatten(), head).eval()
    found = layer_norms(FeatureTap(model), torch.randn(1, 2, 8, 8))
    assert [(one.layer, one.bound) for one in found] == [("0", None), ("2", 2.0), ("4", None)]
    references = [dense_norm(first, (2, 8, 8)), dense_norm(second, (4, 4, 4)), dense_norm(head, (48,))]
    np.testing.assert_allclose([one.norm for one in found], references, rtol=0.02)  # what Lanczos promises
    assert found[1].norm == pytest.approx(2.0, rel=0.02)
    assert [one.kind for one in found] == ["Conv2d", "Conv2d", "Linear"]
    assert parametrize.is_parametrized(second)
    assert not model._forward_pre_hooks
    assert not first._forward_pre_hooks


def test_a_convolution_with_padding_of_its_own_is_left_out():
    class Padded(nn.Conv2d):
        def forward(self, input):
            return super().forward(nn.functional.pad(input, (2, 2, 2, 2)))

    model = nn.Sequential(Padded(1, 2, 5), nn.Flatten(), nn.Linear(32, 2)).eval()
    assert [one.layer for one in layer_norms(FeatureTap(model), torch.randn(1, 1, 4, 4))] == ["2"]


# Changed inputs


def smooth_images(count: int, channels: int = 1, side: int = 16) -> torch.Tensor:
    return nn.functional.interpolate(torch.randn(count, channels, side // 4, side // 4), side, mode="bilinear")


def test_shuffled_pixels_keep_every_pixel_and_all_its_channels():
    images = torch.rand(5, 3, 8, 8)
    found = shuffled_pixels(images)
    assert not torch.equal(found, images)
    for before, after in zip(images.flatten(2), found.flatten(2), strict=True):
        assert {*map(tuple, before.T.tolist())} == {*map(tuple, after.T.tolist())}


@pytest.mark.parametrize("side", [16, 15])
def test_random_phases_keep_amplitudes_and_mean_where_nothing_is_cut_off(side):
    images = smooth_images(6, 3, 16)[..., :side, :side].clone()
    images[0, 0, 0, 0], images[0, 0, 0, 1] = 100, -100  # so that the range cuts nothing off the others
    found = random_phases(images)
    before, after = (torch.fft.fft2(one[1:].double()).abs() for one in (images, found))
    np.testing.assert_allclose(after, before, atol=1e-3)
    np.testing.assert_allclose(found[1:].mean((2, 3)), images[1:].mean((2, 3)), atol=1e-5)
    assert (found[1:] - images[1:]).abs().mean() > 0.1


def test_shuffled_columns_keep_every_column_and_far_points_are_far():
    x = torch.randn(50, 3)
    assert torch.equal(shuffled_columns(x).sort(0).values, x.sort(0).values)
    np.testing.assert_allclose((far_outside(x) - x).abs(), (10 * x.std(0)).expand(50, 3), rtol=1e-4)


def test_the_changes_suit_the_inputs():
    assert [*changed(smooth_images(16))] == [
        "flat images",
        "images of noise",
        "images with shuffled patches",
        "images with shuffled pixels",
        "images with random phases",
    ]
    assert [*changed(torch.randn(16, 1, 16, 16))] == ["flat images"]  # noise is what such data looks like
    assert [*changed(torch.randn(16, 4))] == ["vectors with shuffled columns", "vectors far outside"]
    assert changed(torch.ones(16, 4, dtype=torch.int64)) == {}


# Findings


class Bowl(nn.Module):
    """Features of images: all pixels, or, collapsed, the brightness of two halves alone."""

    def __init__(self, collapsed: bool):
        super().__init__()
        self.collapsed = collapsed
        self.features = nn.Linear(64, 16)
        self.head = nn.Linear(16, 2)
        with torch.no_grad():
            self.features.weight.copy_(torch.linalg.qr(torch.randn(64, 16)).Q.T)
            if collapsed:
                self.features.weight.copy_(torch.randn(16, 1) * _difference()[None])
            self.features.bias.zero_()
            towards_right = self.features.weight @ _difference()
            self.head.weight.copy_(torch.stack([-towards_right, towards_right]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(nn.functional.avg_pool2d(x, 2).flatten(1)))


def _difference() -> torch.Tensor:
    """The right half less the left one, of 8 x 8 pixels."""
    return torch.cat([-torch.ones(8, 4), torch.ones(8, 4)], 1).flatten() / 64


def halves(count: int, contrast: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images 16 x 16 that are brighter on the left or on the right, with smooth shapes on them."""
    labels = torch.arange(count) % 2
    ramp = contrast * (2 * labels - 1)[:, None, None] * torch.linspace(-1, 1, 16).expand(count, 16, 16)
    return ramp[:, None] + 0.3 * smooth_images(count), labels


def detectors(collapsed: bool, **options) -> tuple[ddu.DDU, tuple, tuple]:
    torch.manual_seed(3)
    train, held_out = (halves(count, 0.15 if collapsed else 1.0) for count in (800, 400))
    detector = ddu.DDU(Bowl(collapsed), features=None, view="raw", energy=False, **options)
    return detector.fit([train]).calibrate([held_out], 0.05), train, held_out


def finding(diagnosis: Diagnosis, check: str) -> Any:
    (found,) = (one for one in diagnosis.findings if one.check == check)
    return found


def test_a_collapsed_feature_map_is_told_from_one_that_keeps_its_inputs():
    good, train, held_out = detectors(False)
    healthy = ddu.diagnose(good, [held_out], train=[train])
    bad, train, held_out = detectors(True)
    collapsed = ddu.diagnose(bad, [held_out], train=[train])
    assert finding(healthy, "probes").severity == "ok"
    assert finding(collapsed, "probes").severity == "problem"
    assert finding(collapsed, "probes").value < 0.75 < finding(healthy, "probes").value
    assert finding(healthy, "rank").value == 16
    assert finding(collapsed, "rank").value == 1
    assert finding(collapsed, "rank").severity == finding(collapsed, "effective dimension").severity == "warning"
    assert collapsed.findings[0].severity == collapsed.severity == "problem"
    assert all(one.remedy for one in collapsed.at_least("warning"))


def test_the_last_layer_is_judged_beside_a_sum_of_parts():
    torch.manual_seed(3)
    train, held_out = halves(800, 0.15), halves(400, 0.15)
    detector = ddu.DDU(Bowl(True), features=["features", "head"]).fit([train]).calibrate([held_out], 0.05)
    diagnosis = ddu.diagnose(detector, [held_out])
    assert finding(diagnosis, "features").severity == "warning"
    for row in diagnosis.tables["probes"]:
        assert {*row["parts"]} == {"features", "input of head", "input of head (raw)", "energy"}
    assert [row["layer"] for row in diagnosis.tables["layers"]] == ["output of features", "input of head"]


def test_the_tables_have_what_the_findings_say():
    detector, train, held_out = detectors(False)
    diagnosis = ddu.diagnose(detector, [held_out], train=[train])
    first, second = diagnosis.tables["classes"]
    counts = [first[name] for name in ("samples", "looked_at", "held_out", "dead_features")]
    assert counts == [400, 400, 200, 0]
    flagged = np.asarray(detector.predict(held_out[0]).verdict) == "out_of_distribution"
    for row in (first, second):
        assert row["false_alarm_rate"] == pytest.approx(flagged[held_out[1].numpy() == row["class"]].mean())
    features = detector.tap(train[0]).features[train[1] == 1].double().numpy()
    values = np.linalg.eigvalsh(np.cov(features.T))
    assert second["condition"] == pytest.approx(values[-1] / values[0], rel=1e-3)
    assert finding(diagnosis, "false alarms").value == pytest.approx(flagged.mean())
    assert [row["layer"] for row in diagnosis.tables["norms"]] == ["features", "head"]


def test_a_class_that_is_flagged_too_often_is_found():
    detector, _, (images, labels) = detectors(False)
    images = images.clone()
    images[(labels == 1) & (torch.arange(400) % 4 == 1)] += 3
    diagnosis = ddu.diagnose(detector, [(images, labels)])
    found = finding(diagnosis, "false alarms by class")
    assert found.severity == "warning"
    assert found.value == pytest.approx(0.5, abs=0.1)
    assert "per_class=True" in found.remedy
    assert finding(diagnosis, "false alarms").severity == "problem"


def test_drift_of_new_inputs_is_found_and_its_absence_too():
    detector, _, held_out = detectors(False)
    same = ddu.diagnose(detector, [held_out], new=halves(300)[0])
    moved = ddu.diagnose(detector, [held_out], new=halves(300)[0] + 1.5)
    assert finding(same, "drift").severity == "ok"
    assert finding(moved, "drift").severity == "problem"
    assert finding(moved, "drift").value <= 0.01
    assert all(one.check != "drift" for one in ddu.diagnose(detector, [held_out]).findings)


def test_too_few_samples_are_a_problem_without_shrinkage_and_a_note_with_it():
    torch.manual_seed(3)
    train, held_out = halves(24), halves(200)
    for options, expected in (({"shrinkage": None, "covariance": "full"}, "problem"), ({}, "note")):
        detector = ddu.DDU(Bowl(False), features=None, view="raw", energy=False, density=options).fit([train])
        found = finding(ddu.diagnose(detector, [held_out]), "samples")
        assert (found.severity, found.value) == (expected, 12)
        assert "12 samples for a covariance of 16 features; 2 of 2 classes" in found.message


def test_without_held_out_data_it_says_what_was_not_asked():
    detector, _, _ = detectors(False)
    diagnosis = ddu.diagnose(detector, None)
    asked = {one.check for one in diagnosis.findings if one.value is not None}
    not_asked = {one.check for one in diagnosis.findings if one.value is None}
    assert asked == {"memory"}
    assert not_asked == {"probes", "rank", "sensitivity", "spectral norms", "false alarms", "time"}
    assert all(one.message.startswith("Not asked: ") and one.remedy for one in diagnosis.findings if one.value is None)


def test_whatever_predicts_is_asked_what_predictions_can_tell():
    detector, _, held_out = detectors(True)

    class Graph:
        false_alarm_rate = 0.05

        def predict(self, x):
            return detector.predict(x)

    diagnosis = ddu.diagnose(Graph(), [held_out], new=held_out[0])
    assert finding(diagnosis, "probes").value == finding(ddu.diagnose(detector, [held_out]), "probes").value
    assert finding(diagnosis, "rank").value is None
    assert "there is a graph alone" in finding(diagnosis, "sensitivity").message
    assert finding(diagnosis, "drift").severity == "ok"


def test_an_uncalibrated_detector_is_asked_all_but_verdicts():
    train, held_out = halves(400), halves(200)
    diagnosis = ddu.diagnose(ddu.DDU.paper(Bowl(False)).fit([train]), [held_out])
    assert finding(diagnosis, "false alarms").message == "Not asked: the detector is not calibrated."
    assert finding(diagnosis, "probes").value > 0.75
    assert diagnosis.tables["probes"][0]["flagged"] is None


def test_vectors_are_diagnosed_too_and_a_data_set_gives_what_its_loader_gives():
    x, y = torch.randn(600, 4), torch.arange(600) % 2
    x[:, 0] += 4 * y
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    detector = ddu.DDU.paper(model).fit([(x[:300], y[:300])]).calibrate([(x[300:], y[300:])], 0.05)
    by_loader = ddu.diagnose(detector, [(x[300:], y[300:])], train=[(x[:300], y[:300])])
    by_set = ddu.diagnose(detector, TensorDataset(x[300:], y[300:]), train=TensorDataset(x[:300], y[:300]))
    assert finding(by_loader, "rank").value == 4
    assert [row["probe"] for row in by_loader.tables["probes"]] == [
        "vectors with shuffled columns",
        "vectors far outside",
    ]
    assert by_set.tables["classes"] == by_loader.tables["classes"]


def test_one_kind_of_probe_is_not_compared_with_others():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 2))
    noise = [(torch.randn(200, 1, 8, 8), torch.arange(200) % 2) for _ in range(2)]
    detector = ddu.DDU.paper(model, features="1").fit(noise[:1], progress=False)
    detector.calibrate(noise[1:], 0.05, probes=False, progress=False)
    message = finding(ddu.diagnose(detector, noise[1:]), "probes").message
    assert message.startswith("The score tells flat images from ")
    assert "kinds" not in message


def test_no_more_samples_are_looked_at_than_the_limit():
    detector, _, held_out = detectors(False)
    diagnosis = ddu.diagnose(detector, TensorDataset(*held_out), limit=100)
    assert sum(row["looked_at"] for row in diagnosis.tables["classes"]) == 100


def test_a_diagnosis_leaves_the_network_and_the_random_state_alone():
    detector, _, held_out = detectors(False)
    before, state = {n: t.clone() for n, t in detector.model.state_dict().items()}, torch.random.get_rng_state()
    ddu.diagnose(detector, [held_out])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in detector.model.state_dict().items())


def test_a_diagnosis_is_json_and_prints_the_worst_first():
    diagnosis = Diagnosis(
        (Finding("ok", "time", "Fast.", 1.0), Finding("problem", "rank", "Low.", math.inf, "Add samples.")),
        {"classes": [{"condition": math.nan, "rank": 3}]},
    )
    assert json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False)) == {
        "findings": [
            {"severity": "problem", "check": "rank", "message": "Low.", "value": None, "remedy": "Add samples."},
            {"severity": "ok", "check": "time", "message": "Fast.", "value": 1.0, "remedy": None},
        ],
        "tables": {"classes": [{"condition": None, "rank": 3}]},
    }
    assert str(diagnosis).splitlines() == ["problem rank: Low. Add samples.", "ok      time: Fast."]
    assert SEVERITIES == ("ok", "note", "warning", "problem")
    assert [one.check for one in diagnosis.at_least("note")] == ["rank"]


def test_what_cannot_be_diagnosed_is_refused():
    detector, _, held_out = detectors(False)
    with pytest.raises(NotFittedError, match="This DDU detector is not fitted yet: fit it, then diagnose it"):
        ddu.diagnose(ddu.DDU(Bowl(False)), [held_out])
    with pytest.raises(InputError, match="must be an integer of at least 1"):
        ddu.diagnose(detector, [held_out], limit=0)
    with pytest.raises(InputError, match="There are no held-out inputs: the set is empty"):
        ddu.diagnose(detector, [])
