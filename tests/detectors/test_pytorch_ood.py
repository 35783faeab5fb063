"""The detectors of pytorch-ood as ours, and ours as theirs."""

import inspect
import sys

import numpy as np
import pytest
import torch
from pytorch_ood import api
from pytorch_ood import detector as theirs
from pytorch_ood.metrics import OODMetrics
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.metrics import roc_auc_score
from torch import nn

import ddu
from ddu.detectors import Energy, Mahalanobis, Softmax, as_pytorch_ood, from_pytorch_ood
from ddu.errors import InputError, MissingExtraError, NotSupportedError
from ddu.features import FeatureTap, extract
from ddu.layers import RBFHead
from ddu.metrics import auroc
from ddu.testing import check_detector
from ddu.testing.contract import blobs
from ddu.testing.detectors import classifier

TRAIN, NEW = blobs(600, seed=0), blobs(200, seed=1)
FAR = NEW[0] + 20 * nn.functional.normalize(NEW[0])

# What cannot be inferred from the model: feature layers, text embeddings, weights
NEED_MORE = {"Gram", "MahalanobisODIN", "MCM", "MultiMahalanobis", "NACUE", "RankFeat", "WeightedEBO"}
ALONE = sorted({name for name in theirs.__all__ if inspect.isclass(getattr(theirs, name))} - NEED_MORE)


@pytest.fixture(scope="module")
def model():
    return classifier(*TRAIN)


# Theirs as ours


# Not RMD and ViM: they decompose covariances in single precision, where the size of a batch shows in the fourth digit
# on some processors and with some versions of torch
@pytest.mark.parametrize("name", ["KNN", "ReAct", "ODIN", "GMM", "DICE", "SHE", "MaxSoftmax"])
def test_an_adapter_keeps_to_the_contract(name):
    check_detector(lambda model: from_pytorch_ood(name, model), distance_aware=name == "GMM")


@pytest.mark.parametrize("name", ALONE)
def test_every_detector_of_theirs_can_be_entered_by_name(model, name):
    detector = from_pytorch_ood(name.lower(), model).fit([TRAIN]).calibrate([NEW], false_alarm_rate=0.1)
    prediction = detector.predict(torch.cat([NEW[0], FAR]))
    assert torch.isfinite(prediction.epistemic).all()
    assert prediction.epistemic.unique().numel() > 10
    assert prediction.log_density is None
    assert set(prediction.verdict) <= set(ddu.Verdict)


def test_scores_are_theirs_on_our_features(model):
    batch = FeatureTap(model)(TRAIN[0])
    reference = theirs.KNN(None, k=7).fit_features(batch.features, TRAIN[1])
    expected = reference.predict_features(FeatureTap(model)(NEW[0]).features)
    found = from_pytorch_ood("KNN", model, k=7).fit([TRAIN]).predict(NEW[0])
    np.testing.assert_allclose(found.epistemic, expected, rtol=1e-6)
    torch.testing.assert_close(found.probs, torch.softmax(FeatureTap(model)(NEW[0]).logits, 1))


def test_what_they_need_of_the_head_is_found_there(model):
    features = FeatureTap(model)
    head = model[-1]
    z, new = features(TRAIN[0]).features, features(NEW[0]).features
    vim = theirs.ViM(None, d=8, w=head.weight.detach(), b=head.bias.detach()).fit_features(z, TRAIN[1])
    found = from_pytorch_ood("ViM", model).fit([TRAIN]).predict(NEW[0])
    np.testing.assert_allclose(found.epistemic, vim.predict_features(new), rtol=1e-5)
    react = theirs.ReAct(None, lambda z: head(z), percentile=0.8).fit_feature_maps(z, TRAIN[1])
    found = from_pytorch_ood("ReAct", model, percentile=0.8).fit([TRAIN]).predict(NEW[0])
    np.testing.assert_allclose(found.epistemic, react.predict_feature_maps(new), rtol=1e-5)


@pytest.mark.parametrize("name", ["KNN", "ViM", "EnergyBased"])
def test_batches_extracted_before_are_shared(model, name):
    """By a tap of their own: the adapter has run nothing, and finds the head all the same."""
    train, new = (list(extract(FeatureTap(model), [data])) for data in (TRAIN, NEW))
    cached = from_pytorch_ood(name, model).fit(train).predict(new[0])
    fresh = from_pytorch_ood(name, model).fit([TRAIN]).predict(NEW[0])
    assert torch.equal(cached.epistemic, fresh.epistemic)


def test_ours_and_theirs_of_one_method_agree(model):
    pairs = [
        (Softmax(model, score="confidence"), "MaxSoftmax"),
        (Softmax(model), "Entropy"),
        (Energy(model), "EnergyBased"),
        (Mahalanobis(model), "Mahalanobis"),
        (Mahalanobis(model, relative=True), "RMD"),
    ]
    for ours, name in pairs:
        ours.fit([TRAIN])
        adapted = from_pytorch_ood(name, model).fit([TRAIN])
        mine, others = (auroc(d.predict(NEW[0]).epistemic, d.predict(FAR).epistemic) for d in (ours, adapted))
        # theirs inverts in single precision, and RMD is a small difference of large distances
        assert mine == pytest.approx(others, abs=6e-3 if name == "RMD" else 1e-3), name


def test_a_typo_is_answered_with_the_closest_names(model):
    with pytest.raises(InputError) as caught:
        from_pytorch_ood("kn", model)
    assert str(caught.value) == "pytorch-ood has no detector 'kn'. The closest are KNN."
    with pytest.raises(InputError, match="It has ASH, DICE, EnergyBased, Entropy, fDBD"):
        from_pytorch_ood("oracle", model)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("GMM", {"k": 3}, "GMM has no option 'k'; it takes encoder, reg."),
        (
            "WeightedEBO",
            {},
            "WeightedEBO needs weights, which cannot be inferred from the model: pass it as an option.",
        ),
        (
            "Gram",
            {},
            "Gram needs head, feature_layers, num_classes, which cannot be inferred from the model: pass it as an "
            "option.",
        ),
        ("ODIN", {"features": "0"}, "ODIN runs the model itself, and has no use for features=."),
    ],
)
def test_options_are_checked_before_anything_runs(model, name, options, message):
    with pytest.raises(InputError) as caught:
        from_pytorch_ood(name, model, **options)
    assert str(caught.value) == message


def test_options_that_no_model_tells_can_be_given(model):
    weighted = from_pytorch_ood("WeightedEBO", model, weights=torch.ones(1, 3)).fit([TRAIN]).predict(NEW[0])
    plain = Energy(model).predict(NEW[0])
    np.testing.assert_allclose(weighted.epistemic, plain.epistemic, rtol=1e-5)


def test_inputs_are_needed_where_theirs_run_the_model(model):
    detector = from_pytorch_ood("ODIN", model).fit([TRAIN])
    with pytest.raises(InputError) as caught:
        detector.predict(FeatureTap(model)(NEW[0]))
    assert str(caught.value) == "ODIN needs the inputs themselves, not extracted features."


def test_a_head_that_is_not_linear_is_named():
    network = nn.Sequential(nn.Linear(4, 8), RBFHead(8, 3))
    with pytest.raises(InputError) as caught:
        from_pytorch_ood("ViM", network, features="0").fit([(TRAIN[0], network(TRAIN[0]).argmax(1))])
    assert str(caught.value) == (
        "ViM needs a linear head from 8 features to 3 logits, and the Sequential has 0 there: take the features before "
        "its head."
    )


def test_feature_maps_that_are_averaged_cannot_be_taken_apart(model):
    with pytest.raises(NotSupportedError) as caught:
        from_pytorch_ood("RankFeat", model)
    assert str(caught.value) == "RankFeat takes whole feature maps apart, and here they are averaged over positions."


def test_saving_is_refused_in_words(model, tmp_path):
    with pytest.raises(NotSupportedError) as caught:
        from_pytorch_ood("KNN", model).fit([TRAIN]).save(tmp_path)
    assert str(caught.value) == (
        "A KNN of pytorch-ood cannot be saved, since it does not expose what it learned: fit it again where you need "
        "it."
    )


def test_without_pytorch_ood_the_error_names_the_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_ood.detector", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "pytorch_ood.api", None)
    for act in (lambda: from_pytorch_ood("KNN", model), lambda: as_pytorch_ood(ddu.DDU(model))):
        with pytest.raises(MissingExtraError) as caught:
            act()
        assert str(caught.value) == (
            "Exchange with pytorch-ood needs the 'compare' extra: pip install 'ddu[compare]', or in a clone: "
            "pip install '.[compare]'."
        )


# Ours as theirs


def test_ours_is_one_of_theirs(model):
    adapted = as_pytorch_ood(ddu.DDU.paper(model))
    assert isinstance(adapted, api.Detector)
    assert adapted.requires_fit
    assert not as_pytorch_ood(Softmax(model)).requires_fit
    with pytest.raises(api.RequiresFittingException, match="This DDU detector is not fitted yet"):
        adapted.predict(NEW[0])
    with pytest.raises(api.RequiresFittingException, match="This DDU detector is not fitted yet"):
        adapted.predict_features(torch.zeros(2, 16))


def test_ours_in_their_metrics_scores_the_same(model):
    detector = ddu.DDU(model)
    unknown = torch.cat([TRAIN[0], FAR]), torch.cat([TRAIN[1], torch.full((200,), -1)])
    adapted = as_pytorch_ood(detector).to("cpu").fit(zip(*(part.split(90) for part in unknown), strict=True))
    expected = ddu.DDU(model).fit([TRAIN])
    np.testing.assert_allclose(
        adapted(NEW[0]), expected.predict(NEW[0]).epistemic, rtol=1e-6
    )  # the unknown are left out
    metrics = OODMetrics()
    metrics.update(adapted(NEW[0]), NEW[1])
    metrics.update(adapted(FAR), torch.full((200,), -1))
    known, far = (expected.predict(x).epistemic for x in (NEW[0], FAR))
    assert metrics.compute()["AUROC"] == pytest.approx(auroc(known, far), abs=1e-6)


def test_ours_scores_features_alone(model):
    z, new = (FeatureTap(model)(x).features for x in (TRAIN[0], NEW[0]))
    adapted = as_pytorch_ood(ddu.DDU.paper(model)).fit_features(z, TRAIN[1])
    density = ddu.GaussianDensity("full", shrinkage=None, regularization=1e-9).fit(z, TRAIN[1])
    np.testing.assert_allclose(adapted.predict_features(new), -density.log_density(new))
    with pytest.raises(NotSupportedError) as caught:
        as_pytorch_ood(Energy(model)).predict_features(new)
    assert str(caught.value) == "The Energy detector does not score features alone: use fit(loader) and predict(x)."


# One density, three ways


def three_ways(z, y, known, unknown):
    """AUROC by ours, by pytorch-ood's and by scipy's Gaussians, one a class, weighted by its share."""
    ours = ddu.DDU.paper(nn.Linear(z.shape[1], 2)).fit_features(z, y)
    gmm = theirs.GMM(None).fit_features(z, y)
    parts = [(z[y == c].double().numpy(), float((y == c).double().mean())) for c in range(int(y.max()) + 1)]

    def scipy_score(points):
        densities = [
            np.log(share)
            + multivariate_normal(part.mean(0), np.cov(part.T) + 1e-6 * np.eye(part.shape[1])).logpdf(points)
            for part, share in parts
        ]
        return -logsumexp(np.stack(densities), axis=0)

    label = np.repeat([0, 1], [len(known), len(unknown)])
    both = torch.cat([known, unknown])
    return {
        "ddu": roc_auc_score(label, ours.score_features(both.double())),
        "pytorch-ood": roc_auc_score(label, gmm.predict_features(both)),
        "scipy": roc_auc_score(label, scipy_score(both.double().numpy())),
    }


def test_three_ways_to_one_density_agree_on_random_features():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(2000) % 4
    mixing = torch.randn(4, 10, 10, generator=generator)
    points = torch.randn(2000, 10, generator=generator)
    z = torch.einsum("nd,nde->ne", points, mixing[y]) + 3 * torch.randn(4, 10, generator=generator)[y]
    unknown = z[1500:] + 2 * torch.randn(500, 10, generator=generator)
    found = three_ways(z[:1000], y[:1000], z[1000:1500], unknown)
    assert 0.6 < found["scipy"] < 0.99
    assert found["ddu"] == pytest.approx(found["scipy"], abs=1e-3)
    assert found["pytorch-ood"] == pytest.approx(found["scipy"], abs=1e-3)


def test_three_ways_to_one_density_agree_on_features_of_mnist(real_data):
    with np.load(real_data / "features_mnist.npz") as file:
        z, y, known, unknown = (torch.from_numpy(file[name]) for name in ("z_train", "y_train", "z_test", "z_ood"))
    found = three_ways(z, y.long(), known, unknown)
    assert found["scipy"] > 0.99
    assert found["ddu"] == pytest.approx(found["scipy"], abs=1e-3)
    assert found["pytorch-ood"] == pytest.approx(found["scipy"], abs=1e-3)
