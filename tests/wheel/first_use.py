"""What a newcomer does after `pip install ddu`: a detector around a network of their own, saved and loaded again."""

import sys

import torch
from torch import nn

import ddu

output = sys.argv[1]
torch.manual_seed(0)
centres = 3 * torch.eye(3, 8)
labels = torch.arange(600) % 3
inputs = centres[labels] + torch.randn(600, 8)

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimiser.step()

detector = ddu.DDU(model, class_names="abc")
detector.fit([(inputs[:400], labels[:400])])
detector.calibrate([(inputs[400:], labels[400:])], false_alarm_rate=0.01)
queries = torch.cat([centres, torch.full((1, 8), -20.0)])
prediction = detector.predict(queries)
print(prediction)

detector.save(output)
again = ddu.load(output, model=model).predict(queries)
assert torch.equal(again.epistemic, prediction.epistemic)
