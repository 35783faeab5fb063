"""Monitoring a stream: has the world changed?

A camera loses its focus slowly. No single image is odd enough to be flagged, and still the stream is no longer the one
that the network was calibrated for. A `Monitor` bets against the stream being like the calibration data, and raises an
alarm when its capital reaches 100: on a stream that has not changed, that happens with a probability of at most 1 %,
however long the stream is and however often one looks.

The network knows scikit-learn's digits. The test digits are the end of the file, and not quite like its beginning:
calibrated on held-out digits of the beginning, the monitor raised an alarm on clean test digits already. So half of the
test digits, drawn at random, calibrate the detector. The stream has the other half as they are, then the same ones with
more and more blur.

    python examples/monitoring_a_stream.py
"""

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

import ddu
from ddu.monitoring import Monitor

train, test = ddu.data.load("digits"), ddu.data.load("digits", "test")
held_out, stream = (test.subset(rows) for rows in ddu.data.split(test, 0.5, seed=0))

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
for _ in range(20):
    for inputs, labels in ddu.data.loader(train, batch_size=64, shuffle=True):
        optimiser.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimiser.step()

detector = ddu.DDU(model.eval()).fit(ddu.data.loader(train)).calibrate(ddu.data.loader(held_out), 0.01)
monitor = Monitor.of(detector, false_alarm_rate=0.01)
images = torch.stack([image for image, _ in stream])


def blurred(inputs: torch.Tensor, strength: float) -> torch.Tensor:
    """The images, and a share of their mean over 3 x 3 pixels."""
    return (1 - strength) * inputs + strength * avg_pool2d(inputs, 3, stride=1, padding=1)


print(f"{'blur':>5} {'inputs':>7} {'flagged':>8} {'log10 of the capital':>21}  alarm")
for strength in (0.0, 0.1, 0.2, 0.3):
    for batch in blurred(images, strength).split(50):
        monitor.update(detector.predict(batch))
    report = monitor.report()
    flagged = report.verdict_shares[ddu.Verdict.OUT_OF_DISTRIBUTION]  # of the last 1,000
    alarm = f"at input {report.alarm_at:,}" if report.alarm else "none"
    print(f"{strength:>5} {report.inputs:>7,} {flagged:>8.1%} {report.log10_evidence:>21.2f}  {alarm}")
