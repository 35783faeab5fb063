"""Training: against a bare loop, and through interruptions."""

import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddu import data
from ddu.errors import ArtifactError, CheckpointWarning, InputError, TrainingError
from ddu.training import CrossEntropy, Recipe, fit
from ddu.training import _progress as progress_module
from ddu.training._fit import _EpochSampler

sys.path.insert(0, str(Path(__file__).parent))
from moons import EPOCHS, train

MOONS = Path(__file__).parent / "moons.py"


def _points(count=96, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def _network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


def _same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_fit_is_the_bare_loop():
    recipe = Recipe(epochs=4, batch_size=16, lr=0.2, milestones=(2,), nesterov=True, drop_last=True)
    points, ours, bare = _points(100), _network(), _network()
    history = fit(ours, points, recipe=recipe, seed=3).history

    optimiser = torch.optim.SGD(bare.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sampler = DistributedSampler(points, 1, 0, seed=3, drop_last=True)
    losses = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        optimiser.param_groups[0]["lr"] = 0.2 if epoch < 2 else 0.02
        total = 0.0
        for x, y in DataLoader(points, 16, sampler=sampler, drop_last=True):
            optimiser.zero_grad()
            loss = cross_entropy(bare(x), y)
            loss.backward()
            optimiser.step()
            total += loss.item()
        losses.append(total / 6)
    assert _same(ours, bare)
    assert [row["train_loss"] for row in history] == pytest.approx(losses, rel=1e-6)


def test_the_seed_decides_everything():
    one, again, other = (train(None, epochs=1, seed=seed).model for seed in (1, 1, 2))
    assert _same(one, again)
    assert not _same(one, other)


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
    network, seen = nn.Sequential(nn.Flatten(), nn.Linear(108, 2)), _Recording()
    fit(network, white, white, recipe=Recipe(epochs=1, augmentation="crop_flip", **changes), objective=seen)
    mean, std = (torch.tensor(values)[:, None, None] for values in (info.mean, info.std))
    pixels = torch.cat(seen.trained_on) * std + mean
    padded = (pixels < 0.5).all(1, keepdim=True).expand_as(pixels)
    assert 0.1 < float(padded.double().mean()) < 0.9
    torch.testing.assert_close(pixels[padded], torch.zeros(int(padded.sum())), rtol=0, atol=1e-6)
    torch.testing.assert_close(pixels[~padded], torch.ones(int((~padded).sum())))
    assert torch.equal(torch.cat(seen.validated_on), white.__getitems__(range(32))[0])


def test_images_of_unknown_normalisation_are_padded_with_zeros():
    ones, seen = TensorDataset(torch.ones(32, 3, 6, 6), torch.arange(32) % 2), _Recording()
    network = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    fit(network, ones, recipe=Recipe(epochs=1, augmentation="crop_flip"), objective=seen)
    assert torch.cat(seen.trained_on).unique().tolist() == [0, 1]


def test_each_epoch_has_random_numbers_and_an_order_of_its_own_whatever_was_drawn_before():
    runs = _Recording(), _Recording()
    for number, seen in enumerate(runs):
        network = _network()
        torch.manual_seed(number)
        fit(network, _points(32), recipe=Recipe(epochs=3, batch_size=32), objective=seen, progress=False)
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
        order = _EpochSampler(_points(8), 2, rank, seed=3)
        for epoch in (0, 1):
            order.set_epoch(epoch)
            drawn.add(float(torch.rand(())))
            for worker in (0, 1):
                order.seed_worker(worker)
                drawn.add(float(torch.rand(())))
    assert len(drawn) == 12


class _Forgetful(CrossEntropy):
    """Ruins the network in every epoch after the second."""

    def __init__(self, done=0):
        super().__init__()
        self.epoch = done

    def on_epoch_start(self, model):
        self.epoch += 1

    def after_step(self, model, inputs, labels):
        if self.epoch > 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()


@pytest.mark.parametrize("output", [None, "run"])
def test_the_best_epoch_is_a_copy_not_a_reference(output, tmp_path):
    options = {"recipe": "two_moons", "batch_size": 16, "epochs": 4, "output": output and tmp_path / output}
    last = fit(_network(), _points(), _points(64, 1), objective=_Forgetful(), **options)
    assert last.epoch == 4
    assert all(float(p.detach().abs().max()) == 0 for p in last.model.parameters())
    options["output"] = output and tmp_path / "other"
    best = fit(_network(), _points(), _points(64, 1), objective=_Forgetful(), select="best", **options)
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
    fit(_network(), few, recipe=Recipe(epochs=1, batch_size=8, samples_per_epoch=24), objective=Counting())
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
        fit(_network(), TensorDataset(x, torch.zeros(64).long()), recipe=Recipe(epochs=3, batch_size=8, lr=0.5))


def test_mixed_precision_trains():
    result = fit(_network(), _points(), _points(64, 1), recipe=Recipe(epochs=3, batch_size=16, precision="bf16-mixed"))
    assert all(parameter.dtype == torch.float32 for parameter in result.model.parameters())
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_samples_that_come_one_by_one_are_stacked():
    images = [(torch.full((1, 4, 4), float(i % 2)), i % 2) for i in range(32)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    assert fit(model, images, recipe=Recipe(epochs=20, batch_size=8)).history[-1]["train_accuracy"] == 1


# Mistakes, before the first epoch


def test_mistakes_are_named_before_the_first_epoch(tmp_path):
    points, model = _points(), _network()
    with pytest.raises(InputError, match=r"^A recipe has no field 'epoch'\. Did you mean 'epochs'\?$"):
        fit(model, points, epoch=3)
    with pytest.raises(InputError, match=r"^The validation set is empty\.$"):
        fit(model, points, TensorDataset(torch.zeros(0, 2), torch.zeros(0).long()))
    with pytest.raises(InputError, match=r"^96 training samples do not fill a batch of 128, and drop_last "):
        fit(model, points, drop_last=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file is a file, or inside one, and a run is written to a folder\.$"):
        fit(model, points, output=tmp_path / "file")
    with pytest.raises(InputError, match=r"^Training on 2 devices needs an output folder"):
        fit(model, points, devices=2)
    with pytest.raises(
        InputError,
        match=r"^Cannot train with accelerator='quick' and devices=1: .* Set accelerator to 'cpu' or 'auto'\.$",
    ):
        fit(model, points, accelerator="quick")
    assert _same(model, _network())


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="needs to be without a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(InputError) as caught:
        fit(_network(), _points(), accelerator="gpu")
    assert str(caught.value) == (
        "Cannot train with accelerator='gpu' and devices=1: No supported gpu backend found! "
        "Set accelerator to 'cpu' or 'auto'."
    )


@pytest.mark.skipif(os.geteuid() != 0 and not os.access("/proc", os.R_OK), reason="needs a folder nobody can write to")
def test_an_unwritable_folder_is_named():
    with pytest.raises(InputError, match=r"^Cannot write to /proc/ddu: "):
        fit(_network(), _points(), output="/proc/ddu")


# Progress


def test_off_a_terminal_there_are_lines_with_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    monkeypatch.setattr(progress_module, "_SECONDS_PER_LINE", 0)
    train(None, epochs=3, progress=None)
    number = r"\d+\.\d"
    shown = rf"loss {number}+, accuracy {number}%, validation {number}%"
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    for epoch, line in enumerate(lines[:2], start=1):
        assert re.fullmatch(rf"epoch {epoch} of 3: {shown}, \d+ s left", line)
    assert re.fullmatch(rf"epoch 3 of 3: {shown}", lines[2])


def test_short_epochs_are_one_line_and_no_progress_is_none(capsys, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    fit(_network(), _points(), recipe=Recipe(epochs=4, batch_size=96))
    out, err = capsys.readouterr()
    assert re.fullmatch(r"epoch 4 of 4: loss \d\.\d{3}, accuracy \d+\.\d%\n", err)
    fit(_network(), _points(), recipe=Recipe(epochs=4, batch_size=96), progress=False)
    assert capsys.readouterr().err == out == ""


@pytest.mark.parametrize(("progress", "terminal"), [(True, False), (None, True)])
def test_a_bar_is_shown_on_a_terminal_or_when_asked_for(progress, terminal, capsys, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: terminal)
    fit(_network(), _points(), recipe=Recipe(epochs=4, batch_size=96), progress=progress)
    assert "4/4 [" in capsys.readouterr().err


# Interruptions


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train(folder), folder


class _Stopping(CrossEntropy):
    """Stops in the second batch of an epoch."""

    def __init__(self, epoch, stop):
        super().__init__()
        self.epoch, self.stop, self.batches = epoch, stop, 0

    def on_epoch_start(self, model):
        self.epoch, self.batches = self.epoch - 1, 0

    def after_step(self, model, inputs, labels):
        self.batches += 1
        if (self.epoch, self.batches) == (0, 2):
            self.stop()


def _fail():
    raise RuntimeError("stopped")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a training with three finished epochs, to be copied."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(RuntimeError, match="stopped"):
        train(folder, objective=_Stopping(4, _fail))
    return folder


@pytest.fixture
def resumable(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "moved")


def _epochs(folder):
    with (Path(folder) / "history.csv").open() as file:
        return len(list(csv.DictReader(file)))


def _assert_ends_like(folder, uninterrupted):
    """Resumes in a folder, and compares everything with a training that was never interrupted."""
    resumed, (whole, expected) = train(folder), uninterrupted
    assert _same(resumed.model, whole.model)
    assert [row | {"seconds": 0} for row in resumed.history] == [row | {"seconds": 0} for row in whole.history]
    assert _epochs(folder) == EPOCHS
    for name in ("best.ckpt", "last.ckpt", "previous.ckpt"):
        ours, theirs = (torch.load(path / name, weights_only=True) for path in (Path(folder), expected))
        assert ours["epoch"] == theirs["epoch"]
        assert all(torch.equal(ours["state_dict"][name], theirs["state_dict"][name]) for name in theirs["state_dict"])
    assert {path.name for path in Path(folder).iterdir()} == {path.name for path in expected.iterdir()}


def test_a_training_that_failed_ends_with_the_same_weights(resumable, uninterrupted):
    assert _epochs(resumable) == 3
    _assert_ends_like(resumable, uninterrupted)


def test_the_best_epoch_is_remembered_where_the_folder_was_moved(tmp_path):
    options = {"recipe": "two_moons", "batch_size": 16, "epochs": 4, "select": "best", "progress": False}

    class StoppingLater(_Forgetful):
        def on_epoch_start(self, model):
            super().on_epoch_start(model)
            if self.epoch == 4:
                _fail()

    with pytest.raises(RuntimeError, match="stopped"):
        fit(_network(), _points(), _points(64, 1), objective=StoppingLater(), output=tmp_path / "here", **options)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = fit(_network(), _points(), _points(64, 1), objective=_Forgetful(3), output=tmp_path / "there", **options)
    assert moved.epoch in (1, 2)
    scores = [row["val_accuracy"] for row in moved.history]
    assert scores[moved.epoch - 1] == max(scores) > scores[3]
    assert all(float(p.detach().abs().max()) > 0 for p in moved.model.parameters())


@pytest.mark.parametrize("content", [b"", b"PK", b"no checkpoint", None], ids=["empty", "start", "text", "half"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over_for_the_one_before(content, resumable, uninterrupted):
    last = resumable / "last.ckpt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2] if content is None else content)
    with pytest.warns(
        CheckpointWarning, match=r"last\.ckpt cannot be read\. Resuming from previous\.ckpt, after epoch 2\.$"
    ):
        _assert_ends_like(resumable, uninterrupted)


def test_a_broken_checkpoint_never_replaces_the_one_before_it(resumable):
    (resumable / "last.ckpt").write_bytes(b"")
    before = (resumable / "previous.ckpt").read_bytes()
    with pytest.warns(CheckpointWarning), pytest.raises(RuntimeError, match="stopped"):
        train(resumable, objective=_Stopping(1, _fail))
    assert not (resumable / "last.ckpt").exists()
    assert (resumable / "previous.ckpt").read_bytes() == before


def test_without_a_readable_checkpoint_the_way_to_start_again_is_named(resumable, uninterrupted):
    for name in ("last.ckpt", "previous.ckpt"):
        (resumable / name).write_bytes(b"")
    with pytest.raises(
        ArtifactError,
        match=r"^No checkpoint in .*moved can be read\. "
        r"Delete last\.ckpt and previous\.ckpt to start again from epoch 1\.$",
    ):
        train(resumable)
    for name in ("last.ckpt", "previous.ckpt"):
        (resumable / name).unlink()
    _assert_ends_like(resumable, uninterrupted)


def test_a_best_epoch_that_cannot_be_read_is_named_before_the_next_epoch(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        train(tmp_path, select="best", objective=_Stopping(2, _fail))
    (tmp_path / "best.ckpt").write_bytes(b"")
    with pytest.raises(
        ArtifactError,
        match=r"^The checkpoint of the best epoch, .*best\.ckpt, cannot be read\. "
        r"Delete last\.ckpt to start again from epoch 1\.$",
    ):
        train(tmp_path, select="best")
    assert _epochs(tmp_path) == 1


def test_a_full_disk_leaves_the_last_checkpoint(resumable, uninterrupted):
    size, (soft, hard) = (resumable / "last.ckpt").stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.raises(
            TrainingError,
            match=r"^Cannot write to .*moved: File too large\. "
            r"The last checkpoint is kept: free some space and run the same again to resume\.$",
        ):
            train(resumable)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _assert_ends_like(resumable, uninterrupted)


def test_what_worker_processes_draw_does_not_depend_on_interruptions(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        train(tmp_path, epochs=2, workers=1, objective=_Stopping(2, _fail))
    resumed, whole = train(tmp_path, epochs=2, workers=1), train(None, epochs=2, workers=1)
    assert _same(resumed.model, whole.model)


def test_a_finished_training_is_not_repeated(uninterrupted):
    whole, folder = uninterrupted
    again = train(folder)
    assert _same(again.model, whole.model)
    assert again.history == whole.history


def test_another_recipe_cannot_go_on_with_a_checkpoint(uninterrupted):
    with pytest.raises(
        InputError,
        match=r"^The training to go on with was started with lr=0\.001, and this one has lr=0\.1: give the same, or "
        r"start again in another folder\.$",
    ):
        train(uninterrupted[1], lr=0.1)


def test_logs_are_left_for_tensorboard(uninterrupted):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    whole, folder = uninterrupted
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("val_accuracy")]
    assert logged == pytest.approx([row["val_accuracy"] for row in whole.history])


# Signals


@pytest.fixture
def sigterm():
    """A process that SIGTERM ends."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_the_program_with_its_code_and_a_line(sigterm, tmp_path, uninterrupted, capsys):
    with pytest.raises(SystemExit) as caught:
        train(tmp_path, objective=_Stopping(3, lambda: signal.raise_signal(signal.SIGTERM)))
    assert caught.value.code == 143
    assert capsys.readouterr().err == "Terminated in epoch 3 of 5. Run the same again to resume.\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    _assert_ends_like(tmp_path, uninterrupted)


def test_sigterm_is_left_to_a_caller_who_handles_it(sigterm):
    calls = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    train(None, epochs=1, objective=_Stopping(1, lambda: signal.raise_signal(signal.SIGTERM)))
    assert calls == [signal.SIGTERM]


def test_control_c_stays_a_keyboard_interrupt(tmp_path, uninterrupted):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, objective=_Stopping(3, lambda: signal.raise_signal(signal.SIGINT)))
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    _assert_ends_like(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "arguments", "code", "line"),
    [
        (signal.SIGKILL, [], -signal.SIGKILL, ""),
        (signal.SIGINT, [], -signal.SIGINT, "KeyboardInterrupt"),
        (signal.SIGTERM, [], 143, "Terminated in epoch 3 of 5. Run the same again to resume."),
        (signal.SIGTERM, ["--thread"], -signal.SIGTERM, ""),
    ],
    ids=["SIGKILL", "SIGINT", "SIGTERM", "SIGTERM in a thread"],
)
def test_a_process_ended_by_a_signal_is_resumed_to_the_same_weights(
    how, arguments, code, line, uninterrupted, tmp_path
):
    command = [sys.executable, MOONS, tmp_path, "--paused-in", "3", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "paused\n", process.stderr.read()
        process.send_signal(how)
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == code
    assert errors.splitlines()[-1:] == ([line] if line else [])
    assert how == signal.SIGINT or len(errors.splitlines()) <= 1
    assert _epochs(tmp_path) == 2
    _assert_ends_like(tmp_path, uninterrupted)
