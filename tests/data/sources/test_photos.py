import numpy as np
from sklearn.datasets import load_sample_image
from torch import Generator

from ddu.data import info, load, load_ood
from ddu.data.sources.photos import cut_patches


def grey_photographs() -> np.ndarray:
    photos = np.stack([load_sample_image(name) for name in ("china.jpg", "flower.jpg")])
    return photos @ np.array([0.299, 0.587, 0.114]) / 255


def test_photo_patches_are_cut_from_both_photographs_unaltered():
    patches, photo = cut_patches(40, 8, Generator().manual_seed(0))
    assert patches.shape == (40, 8, 8)
    windows = np.lib.stride_tricks.sliding_window_view(grey_photographs(), (8, 8), axis=(1, 2))
    sources = set()
    for patch, origin in zip(patches.double().numpy(), photo.tolist(), strict=True):
        # Candidates by two corners, then the whole patch
        near = np.abs(windows[..., 0, 0] - patch[0, 0]) + np.abs(windows[..., 7, 7] - patch[7, 7]) < 1e-5
        exact = [at for at in np.argwhere(near) if np.abs(windows[tuple(at)] - patch).max() < 1e-6]
        assert origin in {int(at[0]) for at in exact}
        sources.add(origin)
    assert sources == {0, 1}


def test_flat_patches_are_drawn_as_often_as_they_occur():
    windows = np.lib.stride_tricks.sliding_window_view(grey_photographs(), (8, 8), axis=(1, 2))[:, ::3, ::3]
    everywhere = (windows.std(axis=(-2, -1)) < 0.02).mean()
    drawn = (cut_patches(2000, 8, Generator().manual_seed(0))[0].flatten(1).std(1, correction=0) < 0.02).double().mean()
    assert 0.2 < everywhere < 0.8
    assert abs(drawn - everywhere) < 4 * 0.5 / 2000**0.5


def test_the_set_is_always_the_same_and_shown_as_digits_are(tmp_path):
    patches, again = (load("photo_patches", "test", root=tmp_path) for _ in range(2))
    assert patches.digest() == again.digest()
    assert (len(patches), patches.inputs.dtype, patches.info.shape) == (1000, np.uint8, (1, 28, 28))
    assert 400 < patches.labels.sum() < 600  # about as many of the one photograph as of the other
    assert load_ood("photo_patches", info("mnist")).info.preprocessing == info("mnist").preprocessing
