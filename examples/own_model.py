"""Your own model: a detector around any PyTorch classifier.

Bring a trained network and two loaders: the data that it was trained on, and data that it was not. The network here is
a small one in plain PyTorch, trained for a few seconds on digits and on mixtures of two digits, whose label is one of
the two; nothing about it is special to ddu.

Three kinds of inputs are judged. Clean digits are what the network knows. Of a mixture it knows the kind, but more than
one class would fit: the softmax entropy says so, and the verdict is `ambiguous`. Patches of photographs are no digits
at all. The network still gives each of them a class; the epistemic score says that it has not seen anything like them.

The last lines keep the detector in a folder, and change the false-alarm rate without any data.

    python examples/own_model.py
"""

import tempfile
from collections import Counter

import numpy as np
import torch
from torch import nn

import ddu

# Your data: any loader of (inputs, labels) will do
digits, test = (ddu.data.load("dirty_mnist_5k", split) for split in ("train", "test"))
train, held_out = (digits.subset(rows) for rows in ddu.data.split(digits, 0.5, seed=0))

# Your model: any network that returns logits
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10)),
)
optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
for _ in range(3):
    for inputs, labels in ddu.data.loader(train, batch_size=64, shuffle=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
model.eval()

# The detector: one pass over the training data, one over the held-out data
detector = ddu.DDU(model, class_names="0123456789")
detector.fit(ddu.data.loader(train))
detector.calibrate(ddu.data.loader(held_out), false_alarm_rate=0.01)

images = torch.stack([image for image, _ in test])  # 1,000 clean digits, then 1,000 mixtures
known, mixed = images.split(1000)
photos = torch.stack([image for image, _ in ddu.data.load_ood("photo_patches", digits.info)])
print(detector.predict(torch.cat([known[:2], mixed[:2], photos[:2]])))

print("\nshare of verdicts")
for name, inputs in {"clean": known, "mixed": mixed, "photographs": photos}.items():
    verdicts = Counter(np.asarray(detector.predict(inputs).verdict))
    print(f"{name:>12}", {str(verdict): f"{count / len(inputs):.1%}" for verdict, count in verdicts.most_common()})

with tempfile.TemporaryDirectory() as folder:
    detector.save(folder)
    again = ddu.load(folder, model)
    again.false_alarm_rate = 0.05  # needs no data
    flagged = np.asarray(again.predict(images).verdict) == ddu.Verdict.OUT_OF_DISTRIBUTION
    print(f"\nat a false-alarm rate of 5 %, {flagged.mean():.1%} of all digits are flagged")
