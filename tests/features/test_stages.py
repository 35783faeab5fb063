"""The ends of the stages are found in networks that nobody tuned to, and tapped as by hand."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models as tv

import ddu
from ddu.detectors import Mahalanobis
from ddu.errors import FeatureError, InputError, LayerError, NotFittedError
from ddu.features import FeatureTap, LayersTap, Place, SharedTap, extract, unwrapped
from tests.features.networks import mlp

IMAGES, SMALL, GREY = (2, 3, 64, 64), (2, 3, 32, 32), (2, 1, 28, 28)


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    found: str
    widths: list[int]


class Functional(nn.Module):
    """Activations and pooling without modules, and one ReLU that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3), nn.Conv2d(6, 8, 3)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu_(self.conv1(x)))
        x = nn.functional.max_pool2d(self.relu(self.conv2(x)), 2)
        return self.fc(self.relu(self.conv3(x)).mean((2, 3)))


class Block(nn.Module):
    """A layer of a transformer; a tuple comes back, as in many of them."""

    def __init__(self, as_tuple: bool) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)
        self.as_tuple = as_tuple

    def forward(self, hidden: Tensor) -> Any:
        hidden = hidden + torch.tanh(self.mix(self.norm(hidden)))
        return (hidden, None) if self.as_tuple else hidden


class TextClassifier(nn.Module):
    """Token ids in, a mapping out; its head sees the class token."""

    def __init__(self, as_tuple: bool) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(500, 8), nn.Embedding(2, 8)
        self.layer = nn.ModuleList(Block(as_tuple) for _ in range(8))
        self.classifier = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        hidden = self.words(input_ids) + self.kinds(torch.zeros_like(input_ids))
        for layer in self.layer:
            hidden = layer(hidden)[0] if isinstance(layer, Block) and layer.as_tuple else layer(hidden)
        return {"hidden": hidden, "logits": self.classifier(hidden[:, 0])}


def small_cnn() -> nn.Module:
    stages = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(True)]
    return nn.Sequential(*stages, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(150, 9), nn.ReLU(), nn.Linear(9, 3))


def vision_transformer() -> nn.Module:
    return tv.VisionTransformer(
        image_size=32, patch_size=8, num_layers=4, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=7
    )


def from_timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=7, **options)


ZOO = {
    "torchvision resnet18": Case(
        lambda: tv.resnet18(num_classes=7),
        IMAGES,
        "ResNet, outputs of 'layer1', 'layer2', 'layer3', input of 'fc'",
        [64, 128, 256, 512],
    ),
    "torchvision vgg11_bn": Case(
        lambda: tv.vgg11_bn(num_classes=7, init_weights=False),
        SMALL,
        "VGG, outputs of 'features.6', 'features.13', 'features.20', 'features.27', input of 'classifier.6'",
        [128, 256, 512, 512, 4096],
    ),
    "torchvision mobilenet_v2": Case(
        lambda: tv.mobilenet_v2(num_classes=7),
        IMAGES,
        "MobileNetV2, outputs of 'features.3', 'features.6', 'features.13', input of 'classifier.1'",
        [24, 32, 96, 1280],
    ),
    "torchvision densenet121": Case(
        lambda: tv.densenet121(num_classes=7),
        IMAGES,
        "DenseNet, outputs of 'features.denseblock1', 'features.denseblock2', 'features.denseblock3', input of "
        "'classifier'",
        [256, 512, 1024, 1024],
    ),
    "torchvision efficientnet_b0": Case(
        lambda: tv.efficientnet_b0(num_classes=7),
        IMAGES,
        "EfficientNet, outputs of 'features.2', 'features.3', 'features.5', input of 'classifier.1'",
        [24, 40, 112, 1280],
    ),
    "torchvision convnext_tiny": Case(
        lambda: tv.convnext_tiny(num_classes=7),
        IMAGES,
        "ConvNeXt, outputs of 'features.1', 'features.3', 'features.5', 'features.7', input of 'classifier.2'",
        [96, 192, 384, 768, 768],
    ),
    "torchvision swin_t, channels last": Case(
        lambda: tv.swin_t(num_classes=7),
        IMAGES,
        "SwinTransformer, output tokens of 'features.1', 'features.3', 'features.5', input of 'head'",
        [96, 192, 384, 768],
    ),
    "torchvision vit": Case(
        vision_transformer,
        SMALL,
        "VisionTransformer, output tokens of 'encoder.layers.encoder_layer_0', 'encoder.layers.encoder_layer_1', "
        "'encoder.layers.encoder_layer_2', input of 'heads.head'",
        [32, 32, 32, 32],
    ),
    "torchvision squeezenet, no linear head": Case(
        lambda: tv.squeezenet1_1(num_classes=7),
        IMAGES,
        "SqueezeNet, outputs of 'features.1', 'features.4', 'features.7', 'features.12'",
        [64, 128, 256, 512],
    ),
    "timm resnet18, blocks that start as the identity": Case(
        from_timm("resnet18"),
        IMAGES,
        "ResNet, outputs of 'layer1', 'layer2', 'layer3', input of 'fc'",
        [64, 128, 256, 512],
    ),
    "timm efficientnet_lite0": Case(
        from_timm("efficientnet_lite0"),
        IMAGES,
        "EfficientNet, outputs of 'blocks.1', 'blocks.2', 'blocks.4', input of 'classifier'",
        [24, 40, 112, 1280],
    ),
    "timm vit_tiny": Case(
        from_timm("vit_tiny_patch16_224", img_size=32),
        SMALL,
        "VisionTransformer, output tokens of 'blocks.2', 'blocks.5', 'blocks.8', input of 'head'",
        [192, 192, 192, 192],
    ),
    "timm mixer": Case(
        from_timm("mixer_s32_224", img_size=64),
        IMAGES,
        "MlpMixer, output tokens of 'blocks.1', 'blocks.3', 'blocks.5', input of 'head'",
        [512, 512, 512, 512],
    ),
    "timm resnetv2_50, a convolution as its head": Case(
        from_timm("resnetv2_50"),
        IMAGES,
        "ResNetV2, outputs of 'stages.0', 'stages.1', 'stages.2', 'norm'",
        [256, 512, 1024, 2048],
    ),
    "small CNN": Case(small_cnn, GREY, "Sequential, outputs of '1', '5', input of '10'", [4, 6, 9]),
    "functional CNN": Case(Functional, GREY, "Functional, inputs of 'pool', 'conv3', 'fc'", [4, 6, 8]),
    "MLP": Case(lambda: mlp(4, 8, 7, 6, 3), (5, 4), "Sequential, outputs of '1', '3', input of '6'", [8, 7, 6]),
    "MLP of like layers": Case(
        lambda: mlp(4, *[8] * 11, 3),
        (5, 4),
        "Sequential, outputs of '5', '11', '17', input of '22'",
        [8, 8, 8, 8],
    ),
    "only a head": Case(lambda: nn.Linear(4, 3), (5, 4), "Linear, only input of ''", [4]),
    "signals": Case(
        lambda: nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)),
        (2, 1, 10),
        "Sequential, only input of '3'",
        [32],
    ),
    "transformer": Case(
        lambda: TextClassifier(False),
        (4, 9),
        "TextClassifier, output tokens of 'layer.1', 'layer.3', 'layer.5', input of 'classifier'",
        [8, 8, 8, 8],
    ),
    "transformer whose layers return tuples": Case(
        lambda: TextClassifier(True),
        (4, 9),
        "TextClassifier, input tokens of 'layer.2', 'layer.4', 'layer.6', input of 'classifier'",
        [8, 8, 8, 8],
    ),
}


def network(case: Case) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = case.make().eval()
        for module in model.modules():
            if isinstance(module, nn.Linear) and not module.weight.any():  # some heads start with zeros
                nn.init.normal_(module.weight, std=0.1)
        x = torch.randint(500, case.shape) if isinstance(model, TextClassifier) else torch.randn(case.shape)
    return model, x


def by_hand(model: nn.Module, places: tuple[Place, ...], x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The averages at some places, and the logits, with plain hooks."""
    kept: dict[Place, Tensor] = {}

    def keep(place: Place, value: Tensor) -> None:
        axes = (2, 3) if place.kind in ("input", "output") else range(1, value.ndim - 1)
        kept[place] = value.mean(tuple(axes)) if value.ndim > 2 else value.clone()

    with ExitStack() as hooks, torch.no_grad():
        for place in places:
            layer = model.get_submodule(place.layer)
            if place.kind.startswith("input"):
                hooks.enter_context(layer.register_forward_pre_hook(lambda _, args, p=place: keep(p, args[0])))
            else:
                hooks.enter_context(layer.register_forward_hook(lambda _, args, output, p=place: keep(p, output)))
        output = model(x.clone())
    return [kept[place] for place in places], output["logits"] if isinstance(output, dict) else output


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("name", ZOO)
def test_the_stages_of_a_network_are_found_and_tapped_as_by_hand(name: str) -> None:
    case = ZOO[name]
    model, x = network(case)
    hooks = hooks_of(model)
    tap = LayersTap(model, "stages")
    batch = tap(x)
    assert repr(tap) == f"LayersTap({case.found})"
    assert tap.widths == case.widths
    assert hooks_of(model) == hooks

    parts, logits = by_hand(model, tap.places, x)
    assert torch.equal(batch.logits, logits)
    for part, own in zip(batch.features.split(case.widths, 1), parts, strict=True):
        torch.testing.assert_close(part, own)

    saved = json.loads(json.dumps([one.describe() for one in tap.taps]))
    restored = LayersTap(model, saved)
    assert restored.places == tap.places
    assert torch.equal(restored(x).features, batch.features)


@pytest.mark.parametrize(
    ("name", "spectral_norm"), [*((name, None) for name in ddu.list_models()), ("resnet18", 3.0), ("resffn4_128", 3.0)]
)
def test_the_stages_of_our_own_networks_are_found(name: str, spectral_norm: float | None) -> None:
    is_mlp = name in ("fc_net4_128", "resffn4_128")
    options = {"in_features": 5} if is_mlp else {}
    model = ddu.create_model(name, num_classes=3, width=0.125, spectral_norm=spectral_norm, **options)
    container, layers = {
        "densenet121": ("blocks", ["0", "2", "4"]),
        "lenet": ("convs", ["1", "4"]),
        "vgg16": ("stages", ["1", "2", "3"]),
        "wide_resnet28_10": ("groups", ["0", "1"]),
    }.get(name, ("blocks" if is_mlp else "stages", ["0", "1", "2"]))
    tap = LayersTap(model, "stages")
    tap(torch.randn(2, 5) if is_mlp else torch.randn(2, 1 if name == "lenet" else 3, 32, 32))
    places = [Place("output", f"{container}.{layer}") for layer in layers]
    assert tap.places == (*places, Place("input", "head"))


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrappers_are_taken_off(wrap: Callable[[nn.Module], Any]) -> None:
    model, x = network(ZOO["small CNN"])
    tap = LayersTap(wrap(model), "stages")
    assert torch.equal(tap(x).features, LayersTap(model, "stages")(x).features)
    assert unwrapped(tap.model) is model


def test_a_module_around_the_network_changes_only_the_names() -> None:
    model, x = network(ZOO["small CNN"])
    tap = LayersTap(nn.Sequential(nn.Identity(), model, nn.Identity()), "stages")
    tap(x)
    assert tap.places == (Place("output", "1.1"), Place("output", "1.5"), Place("input", "1.10"))


def test_images_that_are_not_square_have_the_same_stages() -> None:
    model, _ = network(ZOO["torchvision swin_t, channels last"])
    tap = LayersTap(model, "stages")
    tap(torch.randn(1, 3, 96, 32))
    assert repr(tap) == f"LayersTap({ZOO['torchvision swin_t, channels last'].found})"


@pytest.mark.parametrize("name", ["small CNN", "MLP"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bad_input_in_the_first_batch_does_not_change_the_stages(name: str, value: float) -> None:
    model, x = network(ZOO[name]) if name in ZOO else (mlp(4, 8, 3), torch.randn(5, 4))
    good, bad = (LayersTap(model, "stages") for _ in range(2))
    good(x)
    broken = torch.cat([x, torch.full_like(x[:1], value)])
    bad(broken)
    assert bad.places == good.places
    bad = LayersTap(model, "stages")
    with pytest.raises(FeatureError, match=f"The logits of all {len(x)} inputs are NaN or infinite, and the stages of"):
        bad(torch.full_like(x, torch.nan))
    bad(x)  # what could not be found is searched again
    assert bad.places == good.places


def test_a_detector_says_which_rows_of_its_first_batch_are_bad() -> None:
    x, y = torch.randn(200, 4), torch.arange(200) % 3
    x[7, 1] = torch.nan
    detector = ddu.DDU(mlp(4, 8, 3))
    with pytest.raises(FeatureError, match="1 of 200 rows of features are not finite"):
        detector.fit([(x, y)])


def test_stages_are_known_after_the_first_call() -> None:
    tap = LayersTap(mlp(4, 8, 3), "stages")
    assert repr(tap) == "LayersTap(Sequential, layers='stages')"
    with pytest.raises(NotFittedError) as caught:
        _ = tap.places
    assert str(caught.value) == "The stages are found on the first call: run a batch through the tap first."


def test_named_layers_are_used_as_given() -> None:
    model, x = network(ZOO["small CNN"])
    tap = LayersTap(model, ["0", model.get_submodule("3"), "10"])
    assert repr(tap) == "LayersTap(Sequential, features='0', features=None, features='10')"
    tap(x)
    assert repr(tap) == "LayersTap(Sequential, outputs of '0', '3', input of '10')"


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        LayersTap(mlp(4, 3), "stage")
    assert str(caught.value) == "layers= must be a list of layers or 'stages'. Got 'stage' instead."


def test_a_network_without_head_and_stages_says_so() -> None:
    with pytest.raises(LayerError, match=r"No linear layer of the Sequential gives its logits of shape \(2, 4\)"):
        LayersTap(nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten()), "stages")(torch.randn(2, 1, 2, 2))


# Shared and saved


def test_one_pass_serves_stages_and_others() -> None:
    model, x = network(ZOO["small CNN"])
    taps = [LayersTap(model, "stages"), FeatureTap(model), LayersTap(model, ["0"])]
    shared = SharedTap(model, taps)
    assert shared.serves(taps[0])
    (batch,) = extract(shared, [(x, torch.tensor([0, 1]))])
    later = LayersTap(model, "stages")
    restored = LayersTap(model, [place._asdict() for place in (Place("output", "5"), Place("output", "1"))])
    for tap in (*taps, later, restored):
        assert shared.serves(tap)
        assert torch.equal(shared.batch_for(tap, batch).features, tap(x).features)
    assert later.places == taps[0].places == (Place("output", "1"), Place("output", "5"), Place("input", "10"))
    assert later.widths == [4, 6, 9]
    assert SharedTap(model, taps).serves(LayersTap(model, "stages"))


def test_stages_that_were_not_extracted_are_not_served() -> None:
    model, x = network(ZOO["small CNN"])
    shared = SharedTap(model, [FeatureTap(model)])
    with pytest.raises(InputError) as caught:
        shared.batch_for(LayersTap(model, "stages"), shared(x))
    assert str(caught.value) == (
        "LayersTap(Sequential, layers='stages') reads a place that was not extracted. "
        "There are [Place(kind='input', layer='10')]."
    )


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")
def test_a_saved_detector_keeps_the_stages_that_it_found(tmp_path) -> None:
    model, x = mlp(4, 8, 6, 3), torch.randn(60, 4)
    detector = Mahalanobis(model, layers="stages").fit([(x, torch.arange(60) % 3)])
    assert len(detector.densities) == 2
    detector.save(tmp_path / "detector")
    loaded = ddu.load(tmp_path / "detector", model)
    assert loaded.tap.places == detector.tap.places == (Place("output", "1"), Place("input", "4"))
    assert torch.equal(loaded.predict(x).epistemic, detector.predict(x).epistemic)


# Networks of packages that may be missing


@pytest.mark.slow  # the import alone takes seconds
def test_the_layers_of_a_text_classifier_of_transformers_are_found() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=5000, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config)
    tap = LayersTap(model, "stages")
    tap({"input_ids": torch.randint(5000, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)})
    layers = [Place("output tokens", f"bert.encoder.layer.{i}") for i in range(3)]
    assert tap.places == (*layers, Place("input", "classifier"))


def test_the_stages_of_efficientnet_lite_are_found() -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    tap = LayersTap(package.EfficientNet.from_name("efficientnet-lite0"), "stages")
    tap(torch.randn(2, 3, 64, 64))
    blocks = [Place("output", f"_blocks.{i}") for i in (2, 4, 10)]
    assert tap.places == (*blocks, Place("input", "_fc"))
    assert tap.widths == [24, 40, 112, 1280]
