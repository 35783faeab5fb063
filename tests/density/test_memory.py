"""What the system says about memory, and what a density makes of it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ddu.density import GaussianDensity, memory
from ddu.density.memory import available_memory, memory_needed
from ddu.errors import CovarianceWarning, FewSamplesWarning, OutOfMemoryError

Blobs = Callable[..., tuple[Tensor, Tensor]]
CPU = torch.device("cpu")


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets the bytes that are available."""
    return lambda size: monkeypatch.setattr("ddu.density.memory.available_memory", lambda device: size)


# What there is


def test_available_memory_is_no_more_than_there_is() -> None:
    available = available_memory(CPU)
    assert available is not None
    assert 0 < available < 2**50
    assert available_memory(torch.device("meta")) is None


@pytest.mark.parametrize(
    ("line", "limit", "used"),
    [
        ("4:memory:/box/inner", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("0::/inner", "memory.max", "memory.current"),
    ],
    ids=["version 1", "version 2"],
)
def test_the_tightest_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, limit: str, used: str
) -> None:
    def group(folder: Path, most: str, now: int, files: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{most}\n")
        (folder / used).write_text(f"{now}\n")
        (folder / "memory.stat").write_text(f"cache 7\ninactive_file {files}\n")

    name, path = line.split(":")[1:]
    group(tmp_path, "max", 900, 0)
    group(tmp_path / path.strip("/"), "1000", 700, 50)
    if path.count("/") > 1:
        group(tmp_path / "box", "800", 700, 20)
    (tmp_path / "cgroup").write_text(f"9:cpu:/\n{line}\n")
    monkeypatch.setattr(memory, "_CGROUPS", {name: (tmp_path, limit, used)})
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / Path(name).name)
    assert memory._of_cgroups() == ([350, 120] if path.count("/") > 1 else [350])


def test_a_system_that_says_nothing_is_not_refused(blobs: Blobs, room: Callable[[int | None], None]) -> None:
    room(None)
    assert GaussianDensity("full").fit(*blobs()).covariance_ == "full"
    assert GaussianDensity().fit(*blobs()).covariance_ == "full"


# What it decides


def test_with_memory_and_samples_every_class_has_its_own(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y)
    assert density.covariance_ == "full"
    assert torch.equal(density.log_density(z), GaussianDensity("full").fit(z, y).log_density(z))


def test_without_memory_the_classes_share_one_and_it_says_so(blobs: Blobs, room: Callable[[int | None], None]) -> None:
    z, y = blobs(classes=50, dim=30)
    room(2 * memory_needed("full", 50, 30, 32, pca=False) - 1)
    with pytest.warns(CovarianceWarning) as caught:
        density = GaussianDensity(num_classes=50).update(z[:100], y[:100]).update(z[100:], y[100:])
    assert [str(warning.message) for warning in caught] == [
        "All classes share one covariance (covariance='auto'): one for each of 50 classes with 30 features needs "
        "0.00133 GB, and 0.00266 GB are available. covariance='low_rank' has one per class in less memory."
    ]
    assert caught[0].filename == __file__
    assert density.covariance_ == "shared"
    assert_close(density.log_density(z), GaussianDensity("shared").fit(z, y).log_density(z))
    room(2 * memory_needed("full", 50, 30, 32, pca=False))
    assert GaussianDensity().fit(z, y).covariance_ == "full"


def test_with_a_tenth_of_the_samples_of_the_features_the_classes_share_one(blobs: Blobs) -> None:
    z, y = blobs(classes=4, per_class=3, dim=31)
    with pytest.warns(FewSamplesWarning) as caught:
        density = GaussianDensity().fit(z, y)
    assert [str(warning.message) for warning in caught] == [
        "All classes share one covariance (covariance='auto'): 12 samples of 4 classes are 3 per class, too few for 31 "
        "features. Ask for covariance='full' to have one per class all the same."
    ]
    assert caught[0].filename == __file__
    assert density.covariance_ == "shared"
    with pytest.warns(FewSamplesWarning, match="is singular"):
        assert GaussianDensity().fit(z[:, :30], y).covariance_ == "full"


@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_a_stream_is_told_how_long_it_will_be(blobs: Blobs) -> None:
    z, y = blobs(classes=4, per_class=3, dim=31)
    assert GaussianDensity().update(z, y).covariance_ == "full"
    assert GaussianDensity().update(z, y, expected_samples=12).covariance_ == "shared"
    assert GaussianDensity().update(z, y, expected_samples=400).update(z, y, expected_samples=8).covariance_ == "full"
    assert GaussianDensity(pca=3).fit(z, y).covariance_ == "full"  # 3 samples for 3 components


def test_one_class_and_ledoit_wolf_need_whole_matrices(blobs: Blobs, room: Callable[[int | None], None]) -> None:
    z, y = blobs()
    room(memory_needed("full", 3, 4, 32, pca=False))
    assert GaussianDensity(shrinkage="ledoit_wolf").fit(z, y).covariance_ == "full"
    assert GaussianDensity().fit(z[y == 0], y[y == 0]).covariance_ == "full"


def test_a_thousand_classes_in_2048_dimensions_are_not_killed_for_memory() -> None:
    """In a process that may have 4 GB of addresses beyond those that it starts with."""
    code = """
import resource, warnings, torch, ddu
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 4 * 10**9
resource.setrlimit(resource.RLIMIT_AS, (size, size))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    density = ddu.GaussianDensity(num_classes=1000).update(torch.randn(256, 2048), torch.arange(256))
print(density.covariance_, *(type(one.message).__name__ for one in caught))
try:
    ddu.GaussianDensity("full", num_classes=1000).update(torch.randn(256, 2048), torch.arange(256))
except MemoryError as error:
    print(type(error).__name__)
"""
    available = available_memory(CPU)
    if sys.platform != "linux" or available is None or available > 100e9:
        pytest.skip("one matrix per class fits here, or the size of a process is not known")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["shared", "CovarianceWarning", "OutOfMemoryError"], done.stderr


def test_what_was_asked_for_and_does_not_fit_is_refused(blobs: Blobs, room: Callable[[int | None], None]) -> None:
    z, y = blobs(classes=50, dim=30)
    room(memory_needed("full", 50, 30, 32, pca=False) - 1)
    density = GaussianDensity("full")
    with pytest.raises(OutOfMemoryError) as caught:
        density.update(z, y)
    assert str(caught.value) == (
        "covariance='full' for 50 classes with 30 features needs 0.00133 GB, and 0.00133 GB are available. Use "
        "covariance='shared' (9.72e-05 GB), 'low_rank' with a smaller rank, 'diagonal', or a narrower layer."
    )
    assert not density.is_fitted
    room(memory_needed("full", 50, 30, 32, pca=False))
    assert density.update(z, y).covariance_ == "full"


def test_classes_that_turn_up_later_are_counted_before_they_are_given_room(
    blobs: Blobs, room: Callable[[int | None], None]
) -> None:
    z, y = blobs(classes=6)
    early = y < 3
    auto, full = GaussianDensity().update(z[early], y[early]), GaussianDensity("full").update(z[early], y[early])
    held = sum(tensor.nbytes for tensor in full.moments_.tensors().values())
    room(memory_needed("full", 6, 4, 32, pca=False) - held - 1)
    with pytest.warns(CovarianceWarning):
        auto.update(z[~early], y[~early])
    assert auto.covariance_ == "shared"
    assert_close(auto.log_density(z), GaussianDensity("shared").fit(z, y).log_density(z))
    with pytest.raises(OutOfMemoryError):
        full.update(z[~early], y[~early])
    assert full.counts_.tolist() == [50, 50, 50]


def test_what_is_held_already_is_not_counted_twice(blobs: Blobs, room: Callable[[int | None], None]) -> None:
    """A stream in the order of its classes: every new one asks for room again."""
    z, y = blobs(classes=6)
    density, total = GaussianDensity("full"), memory_needed("full", 6, 4, 32, pca=False)
    for label in range(6):
        held = sum(tensor.nbytes for tensor in density.moments_.tensors().values()) if density.is_fitted else 0
        room(total - held)
        density.update(z[y == label], y[y == label])
    room(None)
    assert_close(density.log_density(z), GaussianDensity("full").fit(z, y).log_density(z))


@pytest.mark.parametrize("first", ["full", "shared"])
@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_shards_that_decided_differently_share_one_covariance(blobs: Blobs, first: str) -> None:
    z, y = blobs(classes=3, per_class=8, dim=40)
    shards = [GaussianDensity().update(z[:10], y[:10]), GaussianDensity().update(z[10:], y[10:], expected_samples=11)]
    assert [shard.covariance_ for shard in shards] == ["full", "shared"]
    whole = GaussianDensity("shared").fit(z, y)
    mine, other = shards if first == "full" else shards[::-1]
    kept = other.moments_.scatter.clone()
    mine.merge(other)
    assert mine.covariance_ == "shared"
    assert_close(mine.log_density(z), whole.log_density(z))
    assert torch.equal(other.moments_.scatter, kept)
    assert other.covariance_ != first


def test_an_empty_density_takes_over_the_decision(blobs: Blobs) -> None:
    z, y = blobs(classes=4, per_class=3, dim=31)
    with pytest.warns(FewSamplesWarning):
        other = GaussianDensity().update(z, y, expected_samples=12)
    assert GaussianDensity().merge(other).covariance_ == "shared"


@pytest.mark.parametrize("samples", [20, 200])
@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_the_decision_is_restored_and_forgotten(blobs: Blobs, samples: int) -> None:
    z, y = blobs(classes=2, per_class=samples // 2, dim=150)
    density: Any = GaussianDensity().fit(z, y)
    assert density.covariance_ == ("shared" if samples == 20 else "full")
    restored = GaussianDensity.restore(density.get_params(), density.state_tensors())
    assert (restored.covariance, restored.covariance_) == ("auto", density.covariance_)
    assert torch.equal(restored.log_density(z), density.log_density(z))
    assert density.downdate(z, y).update(z, y, expected_samples=1000).covariance_ == "full"
