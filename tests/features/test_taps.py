"""The tap finds the head of real networks, gives what it sees, and leaves the network as it was."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torchvision import models as tv

from ddu.errors import InputError, LayerError, NotFittedError
from ddu.features import FeatureBatch, FeatureTap, LogitsTap
from tests.features.networks import Sum, mlp


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Everything about a model that a look at it must not change."""

    def state() -> list[Any]:
        return [
            [(name, m.training, sorted(vars(m))) for name, m in model.named_modules()],
            [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
            [(p.data_ptr(), p._version, p.requires_grad) for p in model.parameters()],
        ]

    def tensors() -> list[Tensor]:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return [t.clone() for t in (*grads, *model.buffers(), torch.get_rng_state())]

    state_before, tensors_before = state(), tensors()
    try:
        yield
    finally:
        assert state() == state_before
        after = tensors()
        assert len(after) == len(tensors_before)
        assert all(torch.equal(a, b) for a, b in zip(tensors_before, after, strict=True))


class TwoHeads(nn.Module):
    """The mean of two classifiers: neither gives the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.left = nn.Linear(8, 3)
        self.right = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return (self.left(z) + self.right(z)) / 2


class Bert(nn.Module):
    """Token ids and a mask in, a mapping out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.pooler = nn.Linear(6, 5)
        self.classifier = nn.Linear(5, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        states = self.embed(input_ids)
        if attention_mask is not None:
            states = states * attention_mask[..., None]
        pooled = torch.tanh(self.pooler(states[:, 0]))
        return {"hidden": pooled, "logits": self.classifier(pooled)}


class Returns(nn.Module):
    """A head whose logits come back in a wrapping of choice."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.fc(x))


# Automatic location in real networks


def vision_transformer() -> nn.Module:
    return tv.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=7
    )


ZOO = {
    "torchvision resnet18": (lambda: tv.resnet18(num_classes=7), "fc", 512),
    "torchvision densenet121": (lambda: tv.densenet121(num_classes=7), "classifier", 1024),
    "torchvision vgg11_bn": (lambda: tv.vgg11_bn(num_classes=7, init_weights=False), "classifier.6", 4096),
    "torchvision efficientnet_b0": (lambda: tv.efficientnet_b0(num_classes=7), "classifier.1", 1280),
    "torchvision convnext_tiny": (lambda: tv.convnext_tiny(num_classes=7), "classifier.2", 768),
    "torchvision mobilenet_v3_small": (lambda: tv.mobilenet_v3_small(num_classes=7), "classifier.3", 1024),
    "torchvision vit": (vision_transformer, "heads.head", 32),
    "timm resnet18": (lambda: timm.create_model("resnet18", num_classes=7), "fc", 512),
    "timm vit_tiny": (
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=7),
        "head",
        192,
    ),
    "timm convnext_atto": (lambda: timm.create_model("convnext_atto", num_classes=7), "head.fc", 320),
}


@pytest.mark.parametrize("name", ZOO)
def test_the_head_of_a_real_network_is_found_and_the_network_left_alone(name: str) -> None:
    make, layer, width = ZOO[name]
    model = make()
    head = model.get_submodule(layer)
    nn.init.normal_(head.weight, std=0.1)  # vision transformers start with a head of zeros
    images = torch.randn(2, 3, 32, 32)
    model.eval()
    with torch.no_grad():
        expected = model(images)
    model.train()
    frozen = next((m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.LayerNorm)), head)
    frozen.eval()  # one module in another mode than the rest
    head.bias.grad = torch.ones(7)

    tap = FeatureTap(model)
    assert tap.layer is None
    assert not tap.is_located
    with untouched(model):
        first, second = tap(images), tap(images)
    for batch in (first, second):
        assert batch.features.shape == (2, width)
        assert torch.equal(batch.logits, expected)
        with torch.no_grad():
            assert torch.equal(head(batch.features), batch.logits)
    assert tap.is_located
    assert tap.layer == layer
    assert tap.describe() == {"kind": "input", "layer": layer}


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (nn.Linear(4, 3), ""),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), "1"),
        (mlp(4, 8, 3), "2"),
        (mlp(4, 3, 3, 3), "4"),  # hidden layers as wide as the logits: values decide
        (mlp(4, 8, 3, tail=(nn.LogSoftmax(1),)), "2"),
        (mlp(4, 8, 3, tail=(nn.Softmax(1),)), "2"),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), spectral_norm(nn.Linear(8, 3))), "2"),
    ],
    ids=["linear", "flatten", "mlp", "equal widths", "log-softmax", "softmax", "parametrized"],
)
def test_the_head_of_a_plain_network_is_found(model: nn.Module, layer: str) -> None:
    tap, x = FeatureTap(model), torch.randn(5, 4)
    with untouched(model):
        features, logits, labels = tap(x)
    assert tap.layer == layer
    assert labels is None
    tail = list(model)[int(layer) :] if isinstance(model, nn.Sequential) else [model]
    model.eval()
    assert torch.equal(nn.Sequential(*tail)(features), logits)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(widths=st.lists(st.integers(1, 4), min_size=2, max_size=5), rows=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_last_layer_of_any_tanh_network_is_its_head(widths: list[int], rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.Tanh())]
    model = nn.Sequential(*layers[:-1])
    tap = FeatureTap(model)
    batch = tap(torch.randn(rows, widths[0]))
    assert tap.layer == str(len(model) - 1)
    assert torch.equal(model[-1](batch.features), batch.logits)


def test_logits_that_are_not_a_number_still_point_at_their_head() -> None:
    model = mlp(4, 3, 3)
    tap = FeatureTap(model)
    tap(torch.full((2, 4), torch.nan))
    assert tap.layer == "2"


def test_a_row_that_is_not_a_number_does_not_hide_the_head() -> None:
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(4, 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).clone()

    tap = FeatureTap(Copies())
    tap(torch.cat([torch.randn(5, 4), torch.full((1, 4), torch.nan)]))
    assert tap.layer == "layers.2"


class Upcast(TwoHeads):
    """Two heads, of which one gives the logits, in double precision."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        self.left(z)
        return self.right(z).double()


def test_a_head_in_another_precision_than_the_logits_is_found() -> None:
    tap = FeatureTap(Upcast())
    assert tap(torch.randn(2, 4)).logits.dtype == torch.float64
    assert tap.layer == "right"


def test_token_ids_in_a_mapping_reach_the_model_as_integers() -> None:
    model = Bert()
    batch = {"input_ids": torch.randint(11, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    tap = FeatureTap(model)
    with untouched(model):
        features, logits, _ = tap(batch)
    output = model(**batch)
    assert tap.layer == "classifier"
    assert torch.equal(features, output["hidden"])
    assert torch.equal(logits, output["logits"])


def test_several_candidates_are_listed() -> None:
    with pytest.raises(LayerError) as error:
        FeatureTap(TwoHeads())(torch.randn(5, 4))
    assert str(error.value) == (
        "2 layers of the TwoHeads could be the head that gives its logits of shape (5, 3):\n"
        "  left: Linear(8 -> 3)\n"
        "  right: Linear(8 -> 3)\n"
        "Pass features= a layer's name, a module, or a callable that returns (N, d) features."
    )


def test_a_network_without_linear_layers_says_so() -> None:
    model, images = nn.Sequential(nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(2, 3, 8, 8)
    with untouched(model), pytest.raises(LayerError) as error:
        FeatureTap(model)(images)
    assert str(error.value) == (
        "No linear layer of the Sequential gives its logits of shape (2, 7). No linear layer ran.\n"
        "Pass features= a layer's name, a module, or a callable that returns (N, d) features."
    )


def test_linear_layers_that_are_no_head_are_listed() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (8, 1)), nn.Conv1d(8, 3, 1), nn.Flatten())
    with pytest.raises(LayerError) as error:
        FeatureTap(model)(torch.randn(2, 4))
    assert str(error.value) == (
        "No linear layer of the Sequential gives its logits of shape (2, 3). The last linear layers that ran:\n"
        "  0: Linear(4 -> 8)\n"
        "Pass features= a layer's name, a module, or a callable that returns (N, d) features."
    )


def test_squeezenet_has_no_linear_head_and_takes_its_classifier_by_name() -> None:
    model = tv.squeezenet1_1(num_classes=7).eval()
    images = torch.randn(2, 3, 64, 64)
    with pytest.raises(LayerError, match=r"No linear layer of the SqueezeNet gives its logits of shape \(2, 7\)\."):
        FeatureTap(model)(images)
    tap = FeatureTap(model, "classifier")
    with untouched(model):
        features = tap(images).features
    assert tap.describe() == {"kind": "input", "layer": "classifier"}
    with torch.no_grad():
        torch.testing.assert_close(features, model.features(images).mean((2, 3)))


# A named layer


def test_naming_the_head_gives_what_it_sees_and_naming_another_layer_gives_what_it_says() -> None:
    model, x = mlp(4, 8, 6, 3), torch.randn(5, 4)
    automatic = FeatureTap(model)(x)
    by_name, by_module = FeatureTap(model, "4"), FeatureTap(model, model[4])
    for tap in (by_name, by_module):
        assert torch.equal(tap(x).features, automatic.features)
        assert tap.describe() == {"kind": "input", "layer": "4"}
    embedding = FeatureTap(model, "2")
    batch = embedding(x)
    assert torch.equal(batch.features, model[:3](x))
    assert torch.equal(batch.logits, automatic.logits)
    assert embedding.describe() == {"kind": "output", "layer": "2"}


def test_an_embedding_as_wide_as_the_logits_is_not_taken_for_the_head() -> None:
    model, x = mlp(4, 3, 3), torch.randn(5, 4)
    assert torch.equal(FeatureTap(model, "0")(x).features, model[0](x))


def test_an_activation_before_a_softmax_is_not_taken_for_the_head() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Softmax(1)), torch.randn(5, 4)
    assert torch.equal(FeatureTap(model, "1")(x).features, model[:2](x))


def test_naming_the_head_before_a_softmax_gives_what_it_sees() -> None:
    model, x = mlp(4, 8, 3, tail=(nn.LogSoftmax(1),)), torch.randn(5, 4)
    assert torch.equal(FeatureTap(model, "2")(x).features, model[:2](x))


def test_a_candidate_from_the_list_can_be_named() -> None:
    model, x = TwoHeads(), torch.randn(5, 4)
    assert torch.equal(FeatureTap(model, "left")(x).features, model.body(x))


def test_a_head_that_is_no_linear_layer_can_be_named() -> None:
    head = nn.Conv2d(6, 3, 1)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.AdaptiveAvgPool2d(1), head, nn.Flatten())
    x = torch.randn(2, 1, 8, 8)
    batch = FeatureTap(model, head)(x)
    torch.testing.assert_close(batch.features, model[:2](x).flatten(1))


def test_maps_are_averaged_over_their_positions() -> None:
    model, images = tv.resnet18(num_classes=7).eval(), torch.randn(2, 3, 64, 64)
    pooled, head = FeatureTap(model, "layer4"), FeatureTap(model)
    # the network's own average pooling sums in another order
    torch.testing.assert_close(pooled(images).features, head(images).features)
    assert pooled.describe() == {"kind": "output", "layer": "layer4"}


def test_an_in_place_layer_after_the_tap_does_not_reach_the_features() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    x = torch.randn(5, 4)
    features = FeatureTap(model, "0")(x).features
    assert features.min() < 0
    assert torch.equal(features, model[0](x))


class ByKeyword(TwoHeads):
    def forward(self, x: Tensor) -> Tensor:
        return self.left(input=self.body(x))


def test_a_head_called_by_keyword_is_tapped() -> None:
    model, x = ByKeyword(), torch.randn(5, 4)
    assert torch.equal(FeatureTap(model)(x).features, model.body(x))


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    model = tv.resnet18(num_classes=7)
    with pytest.raises(LayerError) as error:
        FeatureTap(model, "layer5")(torch.randn(2, 3, 32, 32))
    assert str(error.value) == "ResNet has no layer 'layer5'. The closest are ['layer4', 'layer3', 'layer2']."
    with pytest.raises(LayerError) as error:
        FeatureTap(TwoHeads(), "classifier")(torch.randn(2, 4))
    assert str(error.value) == "TwoHeads has no layer 'classifier'. It has ['body', 'left', 'right']."


class Awkward(nn.Module):
    """A network with a layer for every way in which a layer can disappoint."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)
        self.twice = nn.Linear(4, 4)
        self.tokens = nn.Unflatten(1, (2, 2))
        self.rnn = nn.RNN(2, 4, batch_first=True)
        self.rows = nn.Linear(2, 6)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(self.twice(self.twice(x)))
        self.rows(tokens.flatten(0, 1))
        return self.fc(self.rnn(tokens)[0][:, -1])


REMEDY = "pass another layer, or a callable that returns (N, d)."
RUNS = f" in a forward pass of the Awkward, and features need a layer that runs once: {REMEDY}"
SHAPE = f". Features must be (N, d), or maps (N, d, H, W) to average over positions: {REMEDY}"


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("unused", "The layer 'unused' (Linear) does not run" + RUNS),
        ("twice", "The layer 'twice' (Linear) runs 2 times" + RUNS),
        ("tokens", "The output of the layer 'tokens' (Unflatten) is a Tensor of shape (5, 2, 2)" + SHAPE),
        ("rnn", "The output of the layer 'rnn' (RNN) is a tuple of [Tensor, Tensor]" + SHAPE),
        ("rows", f"The features from 'rows' of the Awkward have 10 rows, and the logits 5: {REMEDY}"),
        ("", "features= is the whole Awkward: pass one of its layers."),
        (nn.Linear(4, 3), "The Linear given as features= is not part of the Awkward."),
        (lambda x: x[None], "What <lambda> returns is a Tensor of shape (1, 5, 4)" + SHAPE),
        (lambda x: None, "What <lambda> returns is a None" + SHAPE),
    ],
)
def test_a_layer_without_usable_features_is_refused_in_words(features: Any, message: str) -> None:
    model, x = Awkward(), torch.randn(5, 4)
    with untouched(model), pytest.raises(LayerError) as error:
        FeatureTap(model, features)(x)
    assert str(error.value) == message


# A callable


def test_a_callable_sees_the_model_in_evaluation_mode_and_its_inputs_as_the_model_would() -> None:
    model = timm.create_model("resnet18", num_classes=7)
    model.train()
    images = np.random.default_rng(0).normal(size=(2, 3, 32, 32))
    forward_features: Any = model.forward_features
    tap = FeatureTap(model, forward_features)
    with untouched(model):
        features, logits, _ = tap(images)
        expected = FeatureTap(model)(images)
    torch.testing.assert_close(features, expected.features)
    assert torch.equal(logits, expected.logits)
    assert tap.layer == "ResNet.forward_features"
    assert tap.describe() == {"kind": "callable", "layer": "ResNet.forward_features"}


def test_a_callable_gets_keyword_arguments_where_the_model_does() -> None:
    model, ids = Bert(), torch.randint(11, (2, 7))
    tap = FeatureTap(model, lambda input_ids: model.embed(input_ids).mean(1))
    assert torch.equal(tap({"input_ids": ids}).features, model.embed(ids).mean(1))


# Inputs and outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_features_follow_the_precision_of_the_model(dtype: torch.dtype) -> None:
    model = mlp(4, 8, 3).to(dtype)
    array = np.random.default_rng(0).normal(size=(5, 4))
    features, logits, _ = FeatureTap(model)(array)
    assert features.dtype == logits.dtype == dtype
    assert torch.equal(logits, model(torch.from_numpy(array).to(dtype)))


def test_inputs_and_features_follow_the_device_of_the_model() -> None:
    model = mlp(4, 8, 3).to("meta")
    batch = FeatureTap(model, {"kind": "input", "layer": "2"})(np.zeros((5, 4)))
    assert batch.features.device.type == batch.logits.device.type == "meta"
    assert batch.features.shape == (5, 8)


def test_arrays_that_are_read_only_or_run_backwards_are_taken() -> None:
    model, array = mlp(4, 8, 3), np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    array.setflags(write=False)
    batch = FeatureTap(model)(array[::-1])
    assert torch.equal(batch.logits, model(torch.tensor(array.tolist()).flip(0)))


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.numpy()], ids=["tensor", "array"])
def test_a_model_that_works_in_place_does_not_reach_the_inputs(convert: Callable[[Tensor], Any]) -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 8), nn.Linear(8, 3))
    x = torch.randn(5, 4)
    before = x.clone()
    FeatureTap(model)(convert(x))
    FeatureTap(model, lambda x: x.sub_(1))(convert(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", [tuple, list, lambda pair: dict(zip("ab", pair, strict=True))])
def test_several_inputs_go_in_by_position_or_by_name(kind: Callable[[Any], Any]) -> None:
    a, b = torch.randn(2, 5, 4, dtype=torch.float64)
    features = FeatureTap(Sum())(kind([a, b.numpy()])).features
    assert torch.equal(features, a.float() + b.float())


def test_the_only_entry_of_a_mapping_goes_in_by_position_if_no_argument_has_its_name() -> None:
    model, x = mlp(4, 8, 3), torch.randn(5, 4)
    assert torch.equal(FeatureTap(model)({"image": x}).logits, model(x))
    assert torch.equal(FeatureTap(model)({"input": x}).logits, model(x))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"a": torch.zeros(2, 4), "image": torch.zeros(2, 4)},
            "Sum takes (a, b). Got inputs with keys ['a', 'image'] instead.",
        ),
        (
            np.zeros((2, 3, 8, 8), np.uint8),
            "The inputs are uint8, of shape (2, 3, 8, 8): scale them to floats as in training, for instance "
            "images.float() / 255. If the model takes bytes and scales them itself, pass images.int().",
        ),
        (
            [[0.0, 1.0], [2.0, 3.0]],
            "The inputs must be a tensor or an array, or a tuple, list or mapping of them. "
            "Got list of [list, list] instead.",
        ),
        (
            np.array(["a", "b"]),
            "The inputs must be numbers. Got an array of <U1 instead.",
        ),
    ],
)
def test_inputs_that_cannot_be_meant_are_refused(inputs: Any, message: str) -> None:
    model = Sum()
    with untouched(model), pytest.raises(InputError) as error:
        FeatureTap(model)(inputs)
    assert str(error.value) == message


def test_bytes_for_a_model_that_scales_them_go_in_as_integers() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model.register_forward_pre_hook(lambda module, args: (args[0].float() / 255,))
    images = torch.randint(256, (5, 2, 2), dtype=torch.uint8)
    assert torch.equal(FeatureTap(model)(images.int()).features, images.flatten(1) / 255)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: {"loss": None, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
        lambda logits: (logits, torch.zeros(3)),
        lambda logits: [None, logits],
    ],
    ids=["mapping", "object", "tuple", "list"],
)
def test_logits_are_found_in_what_the_model_returns(wrap: Callable[[Tensor], Any]) -> None:
    model, x = Returns(wrap), torch.randn(5, 4)
    features, logits, _ = FeatureTap(model)(x)
    assert torch.equal(features, x)
    assert torch.equal(logits, model.fc(x))


RETURN = (
    "The model must return its logits: a tensor, a mapping or an object with 'logits', or a tuple that starts with "
    "them. Got {} instead."
)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda logits: {"scores": logits}, RETURN.format("dict with keys ['scores']")),
        (lambda logits: None, RETURN.format("None")),
        (lambda logits: (None, 1), RETURN.format("tuple of [NoneType, int]")),
        (
            lambda logits: logits[0],
            "The model's logits must have the shape (N, C). Got (3,) instead: return one logit per class for each "
            "input, also where there are two classes.",
        ),
    ],
)
def test_a_return_value_without_logits_is_refused(wrap: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        FeatureTap(Returns(wrap))(torch.randn(5, 4))
    assert str(error.value) == message


def test_arguments_of_other_types_are_refused_at_once() -> None:
    with pytest.raises(InputError) as error:
        FeatureTap("resnet18")  # pyright: ignore[reportArgumentType]
    assert str(error.value) == "model= must be a torch.nn.Module. Got str instead."
    with pytest.raises(InputError) as error:
        FeatureTap(nn.Linear(4, 3), 3)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == (
        "features= must be a layer's name, a module of the model, a callable, a description or None. Got int instead."
    )


# The model is left as it was


class Fails(nn.Module):
    """Runs its head, then fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout())
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.fc(self.body(x))
        torch.rand(1)
        if not x.isfinite().all():
            raise RuntimeError("the forward pass failed")
        return logits


@pytest.mark.parametrize("features", [None, "fc", "body.0"])
def test_a_failing_forward_pass_leaves_no_trace(features: str | None) -> None:
    model = Fails()
    model.body[1].eval()
    tap = FeatureTap(model, features)
    broken = torch.full((5, 4), torch.nan)
    with untouched(model), pytest.raises(RuntimeError, match="the forward pass failed"):
        tap(broken)  # while searching
    tap(torch.randn(5, 4))
    with untouched(model), pytest.raises(RuntimeError, match="the forward pass failed"):
        tap(broken)  # once the place is known


class AlwaysDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, training=True)


def test_a_network_that_draws_random_numbers_in_evaluation_mode_leaves_the_generator_alone() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), AlwaysDropout(), nn.Linear(8, 3)), torch.randn(5, 4)
    with untouched(model):
        features = FeatureTap(model)(x).features
    assert (features == 0).any()


def test_a_train_method_with_a_will_of_its_own_is_not_called() -> None:
    class Stubborn(nn.Sequential):
        def train(self, mode: bool = True) -> "Stubborn":
            raise AssertionError("the mode was changed through the model's own method")

    model = Stubborn(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3))
    with untouched(model):
        features = FeatureTap(model)(torch.ones(5, 4)).features
    assert (features != 0).all()


def test_results_are_detached_of_their_own_memory_and_usable_in_autograd() -> None:
    model = Returns(lambda logits: logits)
    kept = {}
    model.wrap = lambda logits: kept.setdefault("logits", logits)
    x = torch.randn(5, 4, requires_grad=True)
    features, logits, _ = FeatureTap(model, {"kind": "input", "layer": "fc"})(x)
    assert not features.requires_grad
    assert not logits.requires_grad
    assert logits.data_ptr() != kept["logits"].data_ptr()
    assert features.data_ptr() != x.data_ptr()
    probe = nn.Linear(4, 1)
    probe(features).sum().backward()  # tensors of inference mode could not be saved for this
    assert probe.weight.grad is not None
    torch.testing.assert_close(probe.weight.grad[0], features.sum(0))


def test_hooks_of_the_user_stay_and_count() -> None:
    model, x = mlp(4, 8, 3), torch.randn(5, 4)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    with untouched(model):
        features = FeatureTap(model)(x).features
    assert torch.equal(features, model[:2](x) * 2)  # what the head really sees


def test_threads_that_share_a_model_see_only_their_own_features() -> None:
    model = mlp(4, 64, 64, 3).eval()
    batches = [torch.randn(1 + i % 5, 4) for i in range(64)]
    tap = FeatureTap(model)
    expected = [tap(x) for x in batches]
    meet = threading.Barrier(4)

    def wait(module: nn.Module, args: Any) -> None:
        meet.wait(timeout=10)  # all four are inside the model, hooks in place, before any goes on

    hook = model[0].register_forward_pre_hook(wait)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(tap, batches))
    hook.remove()
    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got.features, want.features)
        assert torch.equal(got.logits, want.logits)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_model_stays_in_evaluation_mode_until_the_last_thread_leaves_it() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).train()
    model[1].eval()  # which it was before, and stays
    x = torch.randn(5, 4)
    tap = FeatureTap(model)
    expected = tap(x).features
    second_is_inside, first_has_left = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool, untouched(model):
        second: list[Future[FeatureBatch]] = []

        def meet(module: nn.Module, args: Any) -> None:
            if threading.current_thread() is threading.main_thread():
                second.append(pool.submit(tap, x))
                assert second_is_inside.wait(timeout=10)
            else:
                second_is_inside.set()
                assert first_has_left.wait(timeout=10)

        with model[0].register_forward_pre_hook(meet):
            assert torch.equal(tap(x).features, expected)
            first_has_left.set()
            assert torch.equal(second[0].result().features, expected)
    assert [layer.training for layer in model] == [True, False, True, True]


# Wrapped models


def compiled_in_place(model: nn.Sequential) -> nn.Sequential:
    model.compile(backend="eager")
    return model


def compiled_in_parts(model: nn.Sequential) -> nn.Sequential:
    model[0].compile(backend="eager")
    model[2].compile(backend="eager")
    return model


@pytest.mark.parametrize("warm", [False, True], ids=["new", "run before"])
@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        lambda model: torch.compile(model, backend="eager"),
        compiled_in_place,
        compiled_in_parts,
    ],
    ids=["parallel", "compiled", "compiled in place", "compiled in parts"],
)
def test_a_wrapped_model_gives_what_the_plain_one_gives(wrap: Callable[[Any], nn.Module], warm: bool) -> None:
    model, x = mlp(4, 8, 3).eval(), torch.randn(5, 4)
    expected = FeatureTap(model)(x)
    wrapped = wrap(model)
    if warm:
        with torch.no_grad():
            wrapped(x)
    tap = FeatureTap(wrapped)
    with untouched(wrapped):
        batch = tap(x)
    assert tap.layer == "2"
    assert torch.equal(batch.features, expected.features)
    assert torch.equal(batch.logits, expected.logits)


# To a file and back


@pytest.mark.parametrize("features", [None, "2", "0"])
def test_a_described_place_is_tapped_again_without_a_search(features: str | None) -> None:
    model, x = mlp(4, 8, 3), torch.randn(5, 4)
    tap = FeatureTap(model, features)
    expected = tap(x)
    restored = FeatureTap(model, json.loads(json.dumps(tap.describe())))
    assert restored.layer == tap.layer
    assert restored.describe() == tap.describe()
    runs = []
    hook = model.register_forward_pre_hook(lambda module, args: runs.append(1))
    assert torch.equal(restored(x).features, expected.features)
    hook.remove()
    assert runs == [1]


def test_a_place_not_found_yet_cannot_be_described() -> None:
    with pytest.raises(NotFittedError) as error:
        FeatureTap(nn.Linear(4, 3)).describe()
    assert str(error.value) == "The feature layer is found on the first call: run a batch through the tap first."


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (
            {"kind": "callable", "layer": "pool"},
            "The features came from the callable 'pool', which text cannot hold: pass it again as features=.",
        ),
        (
            {"kind": "weights", "layer": "fc"},
            "A described feature layer has a 'layer', and a 'kind' that is 'input', 'output', 'input tokens', "
            "'output tokens' or 'callable'. Got {'kind': 'weights', 'layer': 'fc'} instead.",
        ),
        (
            {"kind": "input"},
            "A described feature layer has a 'layer', and a 'kind' that is 'input', 'output', 'input tokens', "
            "'output tokens' or 'callable'. Got {'kind': 'input'} instead.",
        ),
    ],
)
def test_a_description_that_names_no_place_is_refused(description: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as error:
        FeatureTap(nn.Linear(4, 3), description)
    assert str(error.value) == message


def test_a_described_layer_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(LayerError) as error:
        FeatureTap(TwoHeads(), {"kind": "input", "layer": "fc"})(torch.zeros(2, 4))
    assert str(error.value) == "TwoHeads has no layer 'fc'. It has ['body', 'left', 'right']."


def test_a_tap_shows_where_it_taps() -> None:
    model = mlp(4, 8, 3)
    tap = FeatureTap(model)
    assert repr(tap) == "FeatureTap(Sequential, features=None)"
    tap(torch.zeros(1, 4))
    assert repr(tap) == "FeatureTap(Sequential, input of '2')"


# Logits alone


def test_logits_are_found_where_no_linear_layer_gives_them() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten())
    x = torch.randn(5, 1, 2, 2)
    features, logits, labels = LogitsTap(model)(x)
    assert features is logits
    assert labels is None
    assert torch.equal(logits, model(x))
    assert not logits.requires_grad
    assert repr(LogitsTap(model)) == "LogitsTap(Sequential)"
