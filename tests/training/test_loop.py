"""Training: against a bare loop, with the order of samples and random numbers that a seed gives."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddu import create_model, data
from ddu.errors import InputError, TrainingError
from ddu.training import CrossEntropy, DUQObjective, Objective, Recipe, fit
from ddu.training.loop import _EpochSampler, settled_precision

sys.path.insert(0, str(Path(__file__).parent))
from moons import Forgetful, network, points, same, train


def test_fit_is_the_bare_loop():
    recipe = Recipe(epochs=4, batch_size=16, lr=0.2, milestones=(2,), nesterov=True, drop_last=True)
    samples, ours, bare = points(100), network(), network()
    history = fit(ours, samples, recipe=recipe, seed=3).history

    optimiser = torch.optim.SGD(bare.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sampler = DistributedSampler(samples, 1, 0, seed=3, drop_last=True)
    losses = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        optimiser.param_groups[0]["lr"] = 0.2 if epoch < 2 else 0.02
        total = 0.0
        for x, y in DataLoader(samples, 16, sampler=sampler, drop_last=True):
            optimiser.zero_grad()
            loss = cross_entropy(bare(x), y)
            loss.backward()
            optimiser.step()
            total += loss.item()
        losses.append(total / 6)
    assert same(ours, bare)
    assert [row["train_loss"] for row in history] == pytest.approx(losses, rel=1e-6)


def test_the_seed_decides_everything():
    one, again, other = (train(None, epochs=1, seed=seed).model for seed in (1, 1, 2))
    assert same(one, again)
    assert not same(one, other)


def test_the_model_is_returned_in_evaluation_mode_and_history_tells_each_epoch():
    result = train(None, epochs=2)
    assert not result.model.training
    assert [row["epoch"] for row in result.history] == [1, 2]
    assert set(result.history[0]) == {
        "epoch",
        "lr",
        "train_loss",
        "train_accuracy",
        "val_loss",
        "val_accuracy",
        "seconds",
    }
    test = data.load("two_moons", "test").subset(range(64))
    (inputs, labels), *_ = data.loader(test, len(test))
    with torch.no_grad():
        logits = result.model(inputs)
    last = result.history[-1]
    assert last["val_accuracy"] == float((logits.argmax(1) == labels).double().mean())
    assert last["val_loss"] == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-5)


class _Recording(CrossEntropy):
    """Keeps what it is shown, and a random number of each epoch."""

    def __init__(self):
        super().__init__()
        self.trained_on, self.validated_on, self.drawn = [], [], []

    def on_epoch_start(self, model):
        self.drawn.append(float(torch.rand(())))

    def loss(self, model, inputs, labels):
        (self.trained_on if torch.is_grad_enabled() else self.validated_on).append(inputs.detach().clone())
        return super().loss(model, inputs, labels)


@pytest.mark.parametrize("changes", [{}, {"samples_per_epoch": 32}])
def test_training_images_are_padded_with_black_and_validation_images_are_left_alone(changes):
    info = data.DataInfo("white", (3, 6, 6), ("a", "b"), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
    white = data.ArrayDataset(np.full((32, 6, 6, 3), 255, np.uint8), np.arange(32) % 2, info)
    linear, seen = nn.Sequential(nn.Flatten(), nn.Linear(108, 2)), _Recording()
    fit(linear, white, white, recipe=Recipe(epochs=1, augmentation="crop_flip", **changes), objective=seen)
    mean, std = (torch.tensor(values)[:, None, None] for values in (info.mean, info.std))
    pixels = torch.cat(seen.trained_on) * std + mean
    padded = (pixels < 0.5).all(1, keepdim=True).expand_as(pixels)
    assert 0.1 < float(padded.double().mean()) < 0.9
    torch.testing.assert_close(pixels[padded], torch.zeros(int(padded.sum())), rtol=0, atol=1e-6)
    torch.testing.assert_close(pixels[~padded], torch.ones(int((~padded).sum())))
    assert torch.equal(torch.cat(seen.validated_on), white.__getitems__(range(32))[0])


def test_images_of_unknown_normalisation_are_padded_with_zeros():
    ones, seen = TensorDataset(torch.ones(32, 3, 6, 6), torch.arange(32) % 2), _Recording()
    linear = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    fit(linear, ones, recipe=Recipe(epochs=1, augmentation="crop_flip"), objective=seen)
    assert torch.cat(seen.trained_on).unique().tolist() == [0, 1]


def test_each_epoch_has_random_numbers_and_an_order_of_its_own_whatever_was_drawn_before():
    runs = _Recording(), _Recording()
    for number, seen in enumerate(runs):
        model = network()
        torch.manual_seed(number)
        fit(model, points(32), recipe=Recipe(epochs=3, batch_size=32), objective=seen, progress=False)
    first, second = runs
    assert len(set(first.drawn)) == 3
    assert first.drawn == second.drawn
    for one, other in zip(first.trained_on, second.trained_on, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.trained_on[0], first.trained_on[1])
    assert not torch.equal(first.trained_on[1], first.trained_on[2])


def test_workers_and_ranks_draw_different_numbers_in_each_epoch():
    drawn = set()
    for rank in (0, 1):
        order = _EpochSampler(points(8), 2, rank, seed=3)
        for epoch in (0, 1):
            order.set_epoch(epoch)
            drawn.add(float(torch.rand(())))
            for worker in (0, 1):
                order.seed_worker(worker)
                drawn.add(float(torch.rand(())))
    assert len(drawn) == 12


@pytest.mark.parametrize("output", [None, "run"])
def test_the_best_epoch_is_a_copy_not_a_reference(output, tmp_path):
    options = {"recipe": "two_moons", "batch_size": 16, "epochs": 4, "output": output and tmp_path / output}
    last = fit(network(), points(), points(64, 1), objective=Forgetful(), **options)
    assert last.epoch == 4
    assert all(float(p.detach().abs().max()) == 0 for p in last.model.parameters())
    options["output"] = output and tmp_path / "other"
    best = fit(network(), points(), points(64, 1), objective=Forgetful(), select="best", **options)
    assert best.epoch in (1, 2)
    assert all(float(p.detach().abs().max()) > 0 for p in best.model.parameters())


def test_samples_are_repeated_equally_often():
    seen = []

    class Counting(CrossEntropy):
        def loss(self, model, inputs, labels):
            if torch.is_grad_enabled():
                seen.append(inputs[:, 0])
            return super().loss(model, inputs, labels)

    x = torch.arange(7.0)[:, None].repeat(1, 2) / 10
    few = TensorDataset(x, torch.arange(7) % 2)
    fit(network(), few, recipe=Recipe(epochs=1, batch_size=8, samples_per_epoch=24), objective=Counting())
    counts = np.unique(torch.cat(seen).numpy(), return_counts=True)[1]
    assert counts.tolist() == [4, 4, 4, 3, 3, 3, 3]


def test_a_loss_that_is_not_a_number_stops_with_step_and_learning_rate():
    x = torch.ones(64, 2)
    x[40:] = torch.nan
    with pytest.raises(
        TrainingError,
        match=r"^The loss became nan at step \d+ \(epoch 1 of 3\) with a learning rate of 0\.5: lower lr, or add "
        r"warmup_epochs\.$",
    ):
        fit(network(), TensorDataset(x, torch.zeros(64).long()), recipe=Recipe(epochs=3, batch_size=8, lr=0.5))


def _images(count=32):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) % 2)


def _image_network(dropout=0.0):
    torch.manual_seed(0)
    return create_model("wide_resnet10_1", num_classes=2, width=0.25, dropout=dropout)


class _Layouts:
    """Stops in the epoch that it is given, and says whether the weights were in the layout for speed."""

    def __init__(self, stop=None):
        super().__init__()
        self.stop, self.epoch, self.layouts = stop, 0, set()

    def on_epoch_start(self, model):
        self.epoch += 1
        kernels = [p for p in model.parameters() if p.dim() == 4]
        self.layouts.add(all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels))
        if self.epoch == self.stop:
            raise RuntimeError("stopped")


class _Watching(_Layouts, CrossEntropy):
    pass


class _WatchingDUQ(_Layouts, DUQObjective):
    pass


def test_the_layout_for_speed_ends_with_the_training_and_leaves_the_result_within_rounding():
    ours, bare, seen = _image_network(), _image_network(), _Watching()
    recipe = Recipe(epochs=1, batch_size=8, lr=0.01, schedule="constant", weight_decay=0.0)
    fit(ours, _images(), recipe=recipe, objective=seen, progress=False)
    assert seen.layouts == {True}
    assert all(tensor.is_contiguous() for tensor in ours.state_dict().values())

    optimiser = torch.optim.SGD(bare.parameters(), lr=0.01, momentum=0.9)
    for x, y in DataLoader(_images(), 8, sampler=DistributedSampler(_images(), 1, 0, seed=0)):
        optimiser.zero_grad()
        cross_entropy(bare(x), y).backward()
        optimiser.step()
    for name, weight in bare.named_parameters():
        # Rounding of 1e-7 grows through ten layers with batch-norm of 8 samples, four times
        torch.testing.assert_close(ours.get_parameter(name), weight, rtol=1e-3, atol=1e-5)


def test_an_objective_with_second_derivatives_keeps_the_default_layout():
    seen = _WatchingDUQ()
    model = create_model("wide_resnet10_1", num_classes=2, width=0.25, head="duq")
    fit(model, _images(), recipe=Recipe(epochs=1, batch_size=8), objective=seen, progress=False)
    assert seen.layouts == {False}


def test_images_in_the_layout_for_speed_resume_exactly(tmp_path):
    options = {"recipe": Recipe(epochs=3, batch_size=8, augmentation="crop_flip"), "progress": False}
    stopped, whole, again = (_image_network(dropout=0.3) for _ in range(3))
    with pytest.raises(RuntimeError, match="stopped"):
        fit(stopped, _images(), output=tmp_path, objective=_Watching(stop=3), **options)
    assert all(tensor.is_contiguous() for tensor in stopped.state_dict().values())
    resumed = fit(again, _images(), output=tmp_path, **options)
    assert len(resumed.history) == 3
    assert same(resumed.model, fit(whole, _images(), **options).model)


def test_a_network_that_flattens_by_view_keeps_its_layout():
    class Flattening(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 2)

        def forward(self, x):
            return self.head(self.conv(x).view(len(x), -1))

    seen = _Watching()
    fit(Flattening(), _images(), recipe=Recipe(epochs=1), objective=seen, progress=False)
    assert seen.layouts == {False}


def test_mixed_precision_trains():
    result = fit(network(), points(), points(64, 1), recipe=Recipe(epochs=3, batch_size=16, precision="bf16-mixed"))
    assert all(parameter.dtype == torch.float32 for parameter in result.model.parameters())
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_auto_is_bfloat16_exactly_where_the_processor_multiplies_it():
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        pytest.skip("the system does not tell what its processor can do")
    native = {"avx512_bf16", "amx_bf16"} & set(info.read_text(encoding="utf-8").split())
    assert settled_precision("auto", "cpu") == ("bf16-mixed" if native else "32-true")
    assert settled_precision("16-mixed", "cpu") == "16-mixed"


def test_auto_trains_like_the_precision_that_it_stands_for():
    recipes = [Recipe(epochs=2, batch_size=16, precision=one) for one in ("auto", settled_precision("auto", "cpu"))]
    assert same(*(fit(network(), points(), recipe=recipe, accelerator="cpu").model for recipe in recipes))


def test_samples_that_come_one_by_one_are_stacked():
    images = [(torch.full((1, 4, 4), float(i % 2)), i % 2) for i in range(32)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    assert fit(model, images, recipe=Recipe(epochs=20, batch_size=8)).history[-1]["train_accuracy"] == 1


# An objective without class scores


class _Reconstruction(Objective):
    """The mean squared error of an autoencoder; in every epoch after the second it also ruins the network."""

    epoch = 0

    def loss(self, model, inputs, labels):
        return mse_loss(model(inputs), inputs), None

    def on_epoch_start(self, model):
        self.epoch += 1

    def after_step(self, model, inputs, labels):
        if self.epoch > 2:
            with torch.no_grad():
                next(model.parameters()).add_(1)


@pytest.mark.parametrize("output", [None, "run"])
def test_an_autoencoder_has_losses_and_no_accuracies(output, tmp_path):
    folder = output and tmp_path / output
    recipe = Recipe(epochs=4, batch_size=16, optimiser="adam", lr=1e-2, schedule="constant", select="best")
    result = fit(network(), points(), points(64, 1), recipe=recipe, objective=_Reconstruction(), output=folder)
    assert set(result.history[0]) == {"epoch", "lr", "train_loss", "val_loss", "seconds"}
    losses = [row["val_loss"] for row in result.history]
    assert losses[1] < losses[0] < losses[2]
    assert result.epoch == 2, "the best epoch is the one with the lowest validation loss"
    inputs = points(64, 1).tensors[0]
    with torch.no_grad():
        assert float(mse_loss(result.model(inputs), inputs)) == pytest.approx(losses[1], rel=1e-5)


# Mistakes, before the first epoch


def test_mistakes_are_named_before_the_first_epoch(tmp_path):
    samples, model = points(), network()
    with pytest.raises(InputError, match=r"^A recipe has no field 'epoch'\. Did you mean 'epochs'\?$"):
        fit(model, samples, epoch=3)
    with pytest.raises(InputError, match=r"^The validation set is empty\.$"):
        fit(model, samples, TensorDataset(torch.zeros(0, 2), torch.zeros(0).long()))
    with pytest.raises(InputError, match=r"^96 training samples do not fill a batch of 128, and drop_last "):
        fit(model, samples, drop_last=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file is a file, or inside one: choose a folder\.$"):
        fit(model, samples, output=tmp_path / "file")
    with pytest.raises(InputError, match=r"^Training on 2 devices needs an output folder"):
        fit(model, samples, devices=2)
    with pytest.raises(
        InputError,
        match=r"^Cannot train with accelerator='quick' and devices=1: .* Set accelerator to 'cpu' or 'auto'\.$",
    ):
        fit(model, samples, accelerator="quick")
    assert same(model, network())


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="needs to be without a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(InputError) as caught:
        fit(network(), points(), accelerator="gpu")
    assert str(caught.value) == (
        "Cannot train with accelerator='gpu' and devices=1: No supported gpu backend found! "
        "Set accelerator to 'cpu' or 'auto'."
    )


@pytest.mark.skipif(os.geteuid() != 0 and not os.access("/proc", os.R_OK), reason="needs a folder nobody can write to")
def test_an_unwritable_folder_is_named():
    with pytest.raises(InputError, match=r"^Cannot write to /proc/ddu: "):
        fit(network(), points(), output="/proc/ddu")
