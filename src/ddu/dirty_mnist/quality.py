"""Is the set what it should be? A fresh network is asked, which had no part in making it."""

import json
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ddu.data import ArrayDataset, DataInfo, loader
from ddu.data.dirty_mnist_format import numbers, read_arrays, read_manifest
from ddu.data.sources.dirty_mnist import NOISE, SoftLabelled, load_dirty, with_noise
from ddu.dirty_mnist.autoencoder import pixel_rows
from ddu.dirty_mnist.fitting import Progress, adam, train
from ddu.dirty_mnist.make import load_autoencoder
from ddu.dirty_mnist.mixtures import Mixer, Mixtures
from ddu.files import FilePath, write_json
from ddu.measures import entropy
from ddu.metrics import accuracy, auroc
from ddu.training import Recipe

RECIPE = adam(epochs=2, milestones=(1,))
"""How the fresh network learns by default."""

_FILE = "quality.json"
_BINS = 6


@dataclass(frozen=True)
class Quality:
    """What a fresh network says of the test images, and how all images are spread.

    Attributes:
        network: What the fresh network is called.
        samples: How many samples of Dirty-MNIST it was trained on.
        epochs: Passes over them.
        accuracy_clean: Its accuracy on MNIST.
        auroc_clean: AUROC of its entropy, ambiguous images against MNIST.
        auroc_redrawn: AUROC of its entropy, ambiguous images against MNIST as the autoencoder draws it: what is left
            when the autoencoder's handwriting cannot give the ambiguous images away.
        same_readings: Share of the ambiguous images of which it finds the two likeliest labels, in any order.
        accuracy_ambiguous: Its accuracy on ambiguous images, against one drawn label each.
        accuracy_ambiguous_best: The best possible: the mean of the soft labels' maxima.
        divergence: Mean of KL(soft label ‖ its probabilities) on ambiguous images, in nats.
        filter_results: Share of all mixtures that were kept, plain, muddled, junk or faint, for each split.
        entropy_edges: Bins of the soft labels' entropy.
        entropy_histogram: Images in each bin, for each split and likeliest class.
    """

    network: str
    samples: int
    epochs: int
    accuracy_clean: float
    auroc_clean: float
    auroc_redrawn: float
    same_readings: float
    accuracy_ambiguous: float
    accuracy_ambiguous_best: float
    divergence: float
    filter_results: dict[str, dict[str, float]]
    entropy_edges: list[float]
    entropy_histogram: dict[str, list[list[int]]]


def measure_quality(
    folder: FilePath,
    mnist_train: ArrayDataset,
    mnist_test: ArrayDataset,
    network: nn.Module,
    name: str,
    *,
    samples: int = 40_000,
    recipe: Recipe = RECIPE,
    seed: int = 1,
    progress: Progress = lambda stage, done, note: None,
) -> Quality:
    """Trains a fresh network on Dirty-MNIST, asks it about the test images, and leaves the answers in quality.json.

    Args:
        folder: What `make_dirty_mnist` made.
        mnist_train: MNIST's training digits.
        mnist_test: MNIST's test digits.
        network: An untrained classifier of normalised images (image, 1, 28, 28), of another architecture than the
            labellers, which are LeNets. It is trained in place.
        name: What it is called.
        samples: How many samples of Dirty-MNIST to train on, drawn at random.
        recipe: How it learns.
        seed: Decides the samples and their order.
        progress: Is told how far the work is.
    """
    folder = Path(folder)
    dirty = load_dirty(folder, "train", mnist_train)
    dirty = dirty.take(numbers(seed, "quality").permutation(len(dirty.labels))[:samples])
    samples_seen = ArrayDataset(dirty.inputs, dirty.labels, mnist_train.info)
    train(network, samples_seen, recipe, partial(progress, "Train a fresh network"), seed, "quality", "training")

    clean, ambiguous = _test_samples(folder, mnist_test)
    shown = {"clean": clean.inputs, "ambiguous": ambiguous.inputs, "redrawn": _redrawn(folder, mnist_test)}
    logits = {}
    for done, (kind, inputs) in enumerate(shown.items()):
        progress("Judge test images", done / len(shown), kind)
        logits[kind] = _judged(network, inputs, mnist_test.info)
    progress("Judge test images", 1, f"{sum(map(len, shown.values())):,} images")

    doubt = {kind: entropy(values) for kind, values in logits.items()}
    soft_labels = torch.from_numpy(ambiguous.soft_labels).double()
    manifest = read_manifest(folder)
    filters = manifest["settings"]["filters"]
    edges = np.linspace(filters["min_entropy"], filters["max_entropy"], _BINS + 1)
    quality = Quality(
        network=name,
        samples=len(dirty.labels),
        epochs=recipe.epochs,
        accuracy_clean=accuracy(logits["clean"], torch.from_numpy(clean.labels)),
        auroc_clean=auroc(doubt["clean"], doubt["ambiguous"]),
        auroc_redrawn=auroc(doubt["redrawn"], doubt["ambiguous"]),
        same_readings=float((_readings(logits["ambiguous"]) == _readings(soft_labels)).all(1).double().mean()),
        accuracy_ambiguous=accuracy(logits["ambiguous"], torch.from_numpy(ambiguous.labels)),
        accuracy_ambiguous_best=float(soft_labels.amax(1).mean()),
        divergence=float(cross_entropy(logits["ambiguous"], soft_labels) - _entropies(soft_labels).mean()),
        filter_results={
            split: {result: count / known["mixtures"] for result, count in known["filter_results"].items()}
            for split, known in manifest["splits"].items()
        },
        entropy_edges=edges.tolist(),
        entropy_histogram={split: entropy_histogram(folder, split, edges) for split in manifest["splits"]},
    )
    content = {"key": manifest["key"], "seed": seed} | asdict(quality)
    write_json(folder / _FILE, content)
    return quality


def read_quality(folder: FilePath) -> Quality | None:
    """What was measured of the set in a folder, if it was."""
    path = Path(folder) / _FILE
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    if content.pop("key") != read_manifest(Path(folder))["key"]:
        return None
    return Quality(**{field.name: content[field.name] for field in fields(Quality)})


def entropy_histogram(folder: Path, split: str, edges: np.ndarray) -> list[list[int]]:
    """How many images of each likeliest class have a soft label of which entropy."""
    soft_labels = torch.from_numpy(read_arrays(folder, split)[0]["soft_labels"]).double()
    likeliest, entropies = soft_labels.argmax(1), _entropies(soft_labels).numpy().clip(edges[0], edges[-1])
    classes = range(soft_labels.shape[1])
    return [np.histogram(entropies[likeliest.numpy() == label], edges)[0].tolist() for label in classes]


def _test_samples(folder: Path, mnist_test: ArrayDataset) -> tuple[SoftLabelled, SoftLabelled]:
    """MNIST, and one copy of every ambiguous image."""
    dirty = load_dirty(folder, "test", mnist_test)
    copies = read_manifest(folder)["settings"]["labels"]
    return dirty.take(slice(len(mnist_test))), dirty.take(slice(len(mnist_test), None, copies))


def _redrawn(folder: Path, mnist_test: ArrayDataset) -> np.ndarray:
    """MNIST as the autoencoder draws it, with the noise that all images have."""
    itself = Mixtures(np.arange(len(mnist_test))[:, None], np.ones((len(mnist_test), 1), dtype=np.float32))
    images = Mixer(load_autoencoder(folder), pixel_rows(mnist_test.inputs)).images(itself)
    bytes_ = (255 * images).round().byte().reshape(-1, 28, 28, 1).numpy()
    return with_noise(bytes_, 1, NOISE, numbers(read_manifest(folder)["seed"], "noise", "redrawn"))


@torch.no_grad()
def _judged(network: nn.Module, inputs: np.ndarray, info: DataInfo) -> Tensor:
    network.eval()
    unlabelled = ArrayDataset(inputs, np.zeros(len(inputs), np.int64), info)
    return torch.cat([network(images) for images, _ in loader(unlabelled)]).double()


def _readings(scores: Tensor) -> Tensor:
    """The two likeliest classes, the smaller first, (image, 2)."""
    return scores.topk(2, dim=1).indices.sort(dim=1).values


def _entropies(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(1)
