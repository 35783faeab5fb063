"""Pools are streamed: nothing but three numbers a sample is kept."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from ddu.active import Candidates, Random
from ddu.data import ArrayDataset, DataInfo
from ddu.detectors import DDU, Softmax
from ddu.errors import InputError


@pytest.mark.parametrize("kind", ["tensor", "array", "samples", "inputs", "batches"])
def test_any_kind_of_pool_is_read_in_any_batches(kind, blobs, fitted):
    info = DataInfo("blobs", (6,), tuple("abcd"))
    pool = {
        "tensor": blobs.pool,
        "array": blobs.pool.numpy(),
        "samples": TensorDataset(blobs.pool, blobs.labels),
        "inputs": list(blobs.pool),
        "batches": ArrayDataset(blobs.pool.numpy(), blobs.labels.numpy(), info),
    }[kind]
    indices = np.array([3, 119, 0, 57, 58, 59, 60])
    expected = fitted.predict(blobs.pool[indices])
    for batch_size in (1, 3, 100):
        scores = Candidates(fitted, pool, indices, batch_size=batch_size).uncertainties
        assert scores.epistemic == pytest.approx(expected.epistemic.numpy(), rel=1e-4)
        assert scores.aleatoric == pytest.approx(expected.aleatoric.numpy(), rel=1e-4, abs=1e-6)
        assert scores.label.tolist() == expected.label.tolist()


class Counting(Dataset):
    """Inputs, and how many of them were read."""

    def __init__(self, inputs):
        self.inputs, self.read = inputs, 0

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        self.read += 1
        return self.inputs[index]


def test_a_random_choice_reads_only_what_it_takes(blobs, fitted):
    pool = Counting(blobs.pool)
    candidates = Candidates(fitted, pool, np.arange(len(pool)))
    positions, _ = Random().choose(candidates, 5, np.random.default_rng(0))
    judged = candidates.judge(positions)
    assert pool.read == 5
    assert judged.epistemic == pytest.approx(candidates.uncertainties.epistemic[positions], rel=1e-4)
    assert pool.read == 5 + len(pool)
    candidates.judge(positions)
    candidates.only(positions).judge(np.arange(5))
    assert pool.read == 5 + len(pool)


def test_a_score_that_is_not_a_number_names_its_sample(blobs):
    class Broken(Softmax):
        def predict(self, x, **options):
            prediction = super().predict(x, **options)
            prediction.epistemic[x[:, 0] == blobs.pool[7, 0]] = torch.nan
            return prediction

    candidates = Candidates(Broken(torch.nn.Linear(6, 4)), blobs.pool, np.arange(5, 50))
    with pytest.raises(
        InputError,
        match=r"^The detector gave NaN for 1 of 45 samples, the first at index 7 of the pool: check the network and ",
    ):
        _ = candidates.uncertainties


@pytest.mark.filterwarnings("ignore::ddu.errors.LabelWarning")  # it is not trained
@pytest.mark.parametrize("detector", [Softmax, DDU])
def test_an_input_that_is_not_a_number_is_looked_for_in_the_pool(detector, blobs):
    made = detector(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4)))
    made.fit([blobs.test[:]])
    pool = blobs.pool.clone()
    pool[27] = torch.nan
    candidates = Candidates(made, pool, np.arange(5, 50), batch_size=10)
    with pytest.raises(
        InputError, match=r"^The detector gave NaN for 1 of 45 samples, the first at index 27 of the pool: "
    ):
        _ = candidates.uncertainties


def test_features_are_extracted_in_batches(blobs, fitted):
    sizes = []
    hook = fitted.model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    candidates = Candidates(fitted, blobs.pool, np.arange(100), batch_size=16)
    batch = candidates.features(np.arange(40))
    hook.remove()
    assert sizes == [16, 16, 8]
    torch.testing.assert_close(batch.features, fitted.tap(blobs.pool[:40]).features)


MILLION = """
import resource, sys
import numpy as np, torch
from torch import nn
from ddu.active import Candidates, Diverse
from ddu.detectors import DDU

class Lazy:
    # A million images of 32 x 32, made when they are read
    def __len__(self):
        return 1_000_000
    def __getitems__(self, indices):
        shade = torch.tensor(indices).mul(0.61803).frac()
        return shade[:, None, None, None].expand(-1, 1, 32, 32).contiguous()

network = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
torch.manual_seed(0)
x, y = torch.rand(400, 1, 32, 32), torch.arange(400) % 2
detector = DDU(network).fit([(x, y)])
pool = Lazy()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

# What it costs to run at all
Diverse().choose(Candidates(detector, pool, np.arange(20_000)), 5, np.random.default_rng(0))
before = peak()
candidates = Candidates(detector, pool, np.arange(len(pool)))
choice = Diverse().choose(candidates, 5, np.random.default_rng(0))
print(peak() - before, len(candidates.uncertainties.epistemic), len(choice.positions))
"""


@pytest.mark.slow
def test_a_million_images_are_scored_without_holding_pixels_or_features():
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, timeout=300, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    megabytes, scored, chosen = map(int, done.stdout.split())
    assert (scored, chosen) == (1_000_000, 5)
    # Pixels: 4,096 MB; features: 256 MB; three numbers a sample: 24 MB, and a few times that to sort them
    assert megabytes < 120
