"""The random changes to batches."""

import torch

from ddu.training._module import crop_flip, resized_crop_flip


def test_crop_flip_gives_windows_of_the_padded_image():
    torch.manual_seed(0)
    images = torch.randn(64, 3, 6, 5)
    black = torch.tensor([-1.0, -2.0, -3.0])
    padded = black[:, None, None].repeat(64, 1, 14, 13)
    padded[:, :, 4:10, 4:9] = images
    seen = set()
    for image, before in zip(crop_flip(images, black), padded, strict=True):
        matches = {
            (top, left, mirrored)
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
            for window in [before[:, top : top + 6, left : left + 5]]
            if torch.equal(image, window.flip(2) if mirrored else window)
        }
        assert len(matches) == 1
        seen |= matches
    tops, lefts, mirrors = zip(*seen, strict=True)
    assert set(tops) == set(lefts) == set(range(9))
    assert set(mirrors) == {False, True}


def test_crop_flip_mirrors_half_of_the_images():
    torch.manual_seed(0)
    ramp = torch.arange(16.0).expand(4000, 1, 16, 16)
    middle = crop_flip(ramp, torch.zeros(1))[:, 0, 8, 7:9]
    share = float((middle[:, 1] > middle[:, 0]).double().mean())
    assert abs(share - 0.5) < 4 * 0.5 / 4000**0.5  # four standard errors


def test_resized_crop_of_a_plane_is_a_plane_of_the_right_slopes():
    # Bilinear interpolation is exact on a plane, so the slopes tell the size of the crop
    torch.manual_seed(0)
    axis = torch.linspace(-1, 1, 65)
    plane = torch.stack([axis.expand(65, 65), axis[:, None].expand(65, 65)]).expand(500, 2, 65, 65)
    result = resized_crop_flip(plane, torch.zeros(1))[:, :, 20:45, 20:45]
    width = (result[:, 0, 0, -1] - result[:, 0, 0, 0]) / (axis[44] - axis[20])
    height = (result[:, 1, -1, 0] - result[:, 1, 0, 0]) / (axis[44] - axis[20])
    area, ratio = (width * height).abs(), (width / height).abs()
    assert (height > 0).all()
    assert 0.4 < float((width > 0).float().mean()) < 0.6
    assert 0.05 < float(area.min()) < 0.12
    assert float(area.max()) <= 1.0001
    assert float(ratio.min()) > 0.74
    assert float(ratio.max()) < 1.34
