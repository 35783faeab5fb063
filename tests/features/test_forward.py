"""One forward pass: inputs that a newcomer hands over are answered with the form that the model takes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ddu.errors import InputError
from ddu.features import FeatureTap, LayersTap, LogitsTap
from ddu.features.forward import are_log_probabilities, check_logits

IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
VECTORS = IMAGES[:, 0, 0, :4]


def mlp(*tail: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), *tail)


def convolutions(*tail: nn.Module, channels: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 6, 3), *tail)


def pooled() -> nn.Sequential:
    """Batch norm refuses a single image."""
    return convolutions(nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


class Means(nn.Module):
    """Whose logits of a single image are a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((-2, -1)))


class Viewed(Means):
    """Whose logits of a single image are a row, as it should be, and nothing fails."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).amax((-2, -1)).view(-1, 6))


def fully_convolutional() -> nn.Sequential:
    """Whose logits of a single image are a column, taken for three inputs with one class."""
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


SINGLE = "The inputs have the shape {}, that of a single input: give it a batch dimension, x[None] of shape {}."
LABELS = (
    "The inputs are 2 tensors, and the last, torch.int64 of shape (5,), is not one that the model takes. If it holds "
    "labels, pass the inputs alone: x of (x, y)."
)
INTEGERS = (
    "The inputs are torch.int64, and the model takes torch.float32: convert and scale them as in training, for "
    "instance x.float()."
)


@pytest.mark.parametrize("as_array", [False, True], ids=["tensor", "array"])
@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        pytest.param(mlp(), VECTORS[0], SINGLE.format("(4,)", "(1, 4)"), id="vector"),
        pytest.param(mlp(nn.BatchNorm1d(3)), VECTORS[0], SINGLE.format("(4,)", "(1, 4)"), id="vector, batch norm"),
        pytest.param(pooled(), IMAGES[0], SINGLE.format("(3, 8, 8)", "(1, 3, 8, 8)"), id="image, batch norm"),
        pytest.param(Means(), IMAGES[0], SINGLE.format("(3, 8, 8)", "(1, 3, 8, 8)"), id="image, logits a vector"),
        pytest.param(Viewed(), IMAGES[0], SINGLE.format("(3, 8, 8)", "(1, 3, 8, 8)"), id="image, nothing fails"),
        pytest.param(
            fully_convolutional(), IMAGES[0], SINGLE.format("(3, 8, 8)", "(1, 3, 8, 8)"), id="image, logits a column"
        ),
        pytest.param(
            convolutions(nn.AdaptiveAvgPool2d(1), nn.Flatten(), channels=1),
            IMAGES[:, 0],
            "The inputs have the shape (5, 8, 8), without channels: pass x[:, None] of shape (5, 1, 8, 8).",
            id="no channels",
        ),
        pytest.param(
            pooled(),
            IMAGES.movedim(1, -1),
            "The inputs have the shape (5, 8, 8, 3), with their channels last, and the model takes them first: pass "
            "x.permute(0, 3, 1, 2) of shape (5, 3, 8, 8).",
            id="channels last",
        ),
        pytest.param(mlp(), VECTORS.long(), INTEGERS, id="integers"),
        pytest.param(pooled(), IMAGES.long(), INTEGERS, id="images of integers"),
    ],
)
def test_inputs_in_another_form_are_answered_with_the_form_that_the_model_takes(
    model: nn.Module, inputs: Tensor, message: str, as_array: bool
) -> None:
    with pytest.raises(InputError) as error:
        LogitsTap(model)(inputs.numpy() if as_array else inputs)
    assert str(error.value) == message


@pytest.mark.parametrize("kind", [tuple, list])
def test_labels_beside_the_inputs_are_refused(kind: Any) -> None:
    with pytest.raises(InputError) as error:
        LogitsTap(mlp())(kind([VECTORS, torch.arange(5)]))
    assert str(error.value) == LABELS


class Scaled(nn.Module):
    """A second input is optional, and has a form of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.head(x if scale is None else x * scale)


def test_labels_in_the_place_of_an_optional_input_are_refused_where_they_do_not_fit() -> None:
    with pytest.raises(InputError) as error:
        LogitsTap(Scaled())((VECTORS, torch.arange(5)))
    assert str(error.value) == LABELS


class Embedded(nn.Module):
    """Takes a class for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        return self.head(x + self.table(kind))


def test_a_second_input_in_the_form_of_labels_is_taken_by_a_model_that_wants_it() -> None:
    model, kinds = Embedded(), torch.arange(5)
    assert torch.equal(LogitsTap(model)((VECTORS, kinds)).logits, model(VECTORS, kinds))


def test_a_list_of_single_inputs_is_to_be_stacked() -> None:
    with pytest.raises(InputError) as error:
        LogitsTap(pooled())(list(IMAGES))
    assert str(error.value) == (
        "The inputs are a list of 5 tensors of shape (3, 8, 8), which is taken for as many arguments of the model: "
        "pass one batch, torch.stack(x)."
    )


def sequence_first() -> nn.Module:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][-1])

    return Recurrent()


def test_a_model_that_takes_its_batch_second_is_left_in_peace() -> None:
    model, x = sequence_first(), torch.randn(7, 2, 4)
    assert LogitsTap(model)(x).logits.shape == (2, 3)
    assert FeatureTap(model)(x).features.shape == (2, 6)


class FirstTwo(nn.Linear):
    """Runs on inputs of any number of dimensions, and always returns two rows."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.reshape(-1, 4)[:2])


def test_another_form_that_gives_another_number_of_rows_explains_nothing() -> None:
    assert LogitsTap(FirstTwo(4, 3))(VECTORS).logits.shape == (2, 3)


def test_a_failure_that_no_other_form_explains_stays_what_it_was() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        LogitsTap(mlp())(torch.randn(5, 9))


@pytest.mark.parametrize("tap", [FeatureTap, LogitsTap, lambda model: LayersTap(model, ["0"])])
def test_every_tap_answers_and_leaves_the_model_as_it_was(tap: Any) -> None:
    model = pooled().train()
    with pytest.raises(InputError, match=r"give it a batch dimension, x\[None\]"):
        tap(model)(IMAGES[0])
    assert all(module.training for module in model.modules())
    assert int(model.get_buffer("1.num_batches_tracked")) == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_step_along_the_gradient_answers_too() -> None:
    with pytest.raises(InputError) as error:
        LayersTap(mlp(), ["0"]).descend(VECTORS[0], lambda z: z.sum(1), 0.1)
    assert str(error.value) == SINGLE.format("(4,)", "(1, 4)")


TRANSFORM = (
    "transform it as in training, for instance transform = torchvision.transforms.Compose([Resize(size), ToTensor(), "
    "Normalize(mean, std)]), and pass transform(image)[None], or torch.stack([transform(i) for i in images])."
)
PICTURES = f"The inputs are PIL images, and a model takes tensors: {TRANSFORM}"
TEXT = (
    "The inputs are text ('images/cat.png'), and a model takes tensors. Text goes through a tokenizer first. Of the "
    f"name of an image, open the file with PIL.Image.open(name), and {TRANSFORM}"
)
PICTURE = Image.new("RGB", (8, 8))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param(PICTURE, PICTURES, id="image"),
        pytest.param([PICTURE, PICTURE], PICTURES, id="images"),
        pytest.param((PICTURE, 3), PICTURES, id="image and label"),
        pytest.param("images/cat.png", TEXT, id="name"),
        pytest.param(Path("images/cat.png"), TEXT, id="path"),
        pytest.param(["images/cat.png", "images/dog.png"], TEXT, id="names"),
        pytest.param(
            DataLoader(TensorDataset(IMAGES)),
            "The inputs are a DataLoader, and a tap takes one batch: detector.predict(loader) runs all of them, and "
            "ddu.features.extract(tap, loader) gives their features.",
            id="loader",
        ),
        pytest.param(
            TensorDataset(IMAGES),
            "The inputs are a TensorDataset, and a tap takes one batch: detector.predict(dataset) runs all of it, and "
            "ddu.features.extract(tap, DataLoader(dataset, batch_size=...)) gives its features.",
            id="data set",
        ),
    ],
)
def test_what_is_no_tensor_is_answered_with_the_way_to_one(inputs: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        LogitsTap(pooled())(inputs)
    assert str(error.value) == message


PROBABILITIES = (
    "The model returns probabilities instead of logits: each of 5 rows sums to 1. Leave out its softmax, for instance "
    "model[:-1], or have it return log-probabilities, probs.log()."
)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_probabilities_are_not_logits(dtype: torch.dtype, classes: int, scale: float) -> None:
    logits = scale * torch.randn(5, classes, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError) as error:
        check_logits(torch.softmax(logits.to(dtype), 1))
    assert str(error.value) == PROBABILITIES


@pytest.mark.parametrize("classes", [1000, 21_841])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_probabilities_of_many_classes_are_known_in_every_row(dtype: torch.dtype, classes: int) -> None:
    """The sums of some rows are off by more than ten units of rounding."""
    logits = 5 * torch.randn(256, classes, generator=torch.Generator().manual_seed(0), dtype=dtype)
    with pytest.raises(InputError, match="The model returns probabilities instead of logits: each of 256 rows"):
        check_logits(torch.softmax(logits, 1))


@pytest.mark.parametrize(
    "logits",
    [
        torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
        torch.rand(5, 3, generator=torch.Generator().manual_seed(0)),
        torch.log_softmax(VECTORS, 1),
        torch.softmax(VECTORS, 1) * 1.001,
        torch.softmax(VECTORS, 1) - torch.tensor([0.5, -0.5, 0.0, 0.0]),
        torch.eye(4),
        torch.ones(5, 1),
        torch.zeros(0, 3),
    ],
    ids=["logits", "not negative", "log-softmax", "other sums", "negative", "zeros and ones", "one class", "none"],
)
def test_logits_are_taken_for_logits(logits: Tensor) -> None:
    check_logits(logits)


def test_text_in_an_array_is_refused_in_its_own_words() -> None:
    with pytest.raises(InputError, match=r"The inputs must be numbers\. Got an array of <U1 instead\."):
        LogitsTap(mlp())([np.array(["a", "b"]), VECTORS])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probabilities_are_told_from_logits(dtype: torch.dtype) -> None:
    logits = 20 * torch.randn(50, 4, dtype=dtype)
    assert are_log_probabilities(torch.log_softmax(logits, 1))
    assert not are_log_probabilities(logits)
    assert not are_log_probabilities(torch.log_softmax(logits, 1) + 0.01)
    assert not are_log_probabilities(torch.log_softmax(logits, 1)[:2])  # too few to tell
    assert not are_log_probabilities(torch.zeros(50, 1, dtype=dtype))
