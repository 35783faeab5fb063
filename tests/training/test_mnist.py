"""The method on real digits: density knows clothes when it sees them, entropy less so."""

import pytest
import torch

import ddu
from ddu import data
from ddu.metrics import accuracy, auroc
from ddu.training import fit


@pytest.mark.slow
@pytest.mark.real_data
def test_density_of_digits_tells_them_from_clothes_better_than_entropy(real_data):
    torch.manual_seed(0)
    model = ddu.create_model("resnet18", in_channels=1, width=0.125)
    train = data.load("mnist", root=real_data).subset(range(5000))
    fit(model, train, recipe="quick", epochs=2, seed=0)
    detector = ddu.DDU(model).fit(data.loader(train))

    digits = data.load("mnist", "test", root=real_data)
    clothes = data.load("fashion_mnist", "test", root=real_data).like(digits.info)
    known, unknown = (
        [detector.predict(inputs) for inputs, _ in data.loader(dataset.subset(range(2000)))]
        for dataset in (digits, clothes)
    )

    def column(judged, name):
        return torch.cat([getattr(one, name) for one in judged])

    by_density, by_entropy = (auroc(column(known, name), column(unknown, name)) for name in ("epistemic", "aleatoric"))
    assert accuracy(column(known, "probs"), torch.from_numpy(digits.labels[:2000])) > 0.9
    assert by_density > 0.995
    assert by_entropy < by_density
