"""Measures the corruptions on CIFAR-10's test images and draws one of them: docs/corruptions.md and its picture.

    DDU_DATA=folder python scripts/corruptions.py

The folder holds `cifar10.npz`, with the test images as `x_test`. Takes a few minutes on two cores.
"""

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ddu.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, PixelErrorTable, corrupt, pixel_error_table

ROOT = Path(__file__).parents[1]
PICTURED = 27  # a white dog on dark grass: mud shows on the one, snow on the other
TILE, LABEL, GAP = 96, 150, 4  # pixels

# Why the pixel error does not rise with every severity; a row that falls without a reason here is an error
REASONS = {
    "glass_blur": "severities 1 to 3 swap pixels once, 4 and 5 twice; among equals, more blur evens out the jumble.",
    "motion_blur": "severities 3 and 4 have the same sigma. The line is longer at 4, but beyond six sigma, where it "
    "ends at 3, there is nothing left on it: they differ by the random angles alone.",
    "frost": "from severity 3 on the image itself is dimmed (weights 0.9, 0.85, 0.75), which takes back part of the "
    "light that frost adds.",
    "elastic_transform": "it changes kind. At 1 an affine map moves all pixels, the three points that define it by "
    "up to 8 % of the image's side; at 5 by 3 %, and a local displacement of about half a pixel takes over.",
    "spatter": "severities 1 to 3 are drops of water that shine, 4 and 5 blots of mud that cover fewer pixels.",
    "saturate": "severities 1 and 2 take colour away, 3 to 5 add it; 3 is the mildest change of all.",
}

PAGE = """\
# Corruptions

The 19 corruptions of CIFAR-10-C, with the severities published for images of 32 × 32 pixels:

```python
from ddu.data.corruptions import corrupt, generate

foggy = corrupt(images, "fog", severity=3)   # bytes (image, height, width, 3) in and out
generate(images, labels, "CIFAR-10-C")       # all of them in the official layout: <corruption>.npy and labels.npy
```

An image's randomness follows from the seed, the corruption, the severity and its index, so that neither batches nor the
number of processes change a byte. `generate` streams to disk, resumes after an interruption, and writes a
`manifest.json` with the seed, the checksums, the constants and the versions. `STANDARD_CORRUPTIONS` are the usual 15,
`EXTRA_CORRUPTIONS` the other four ({extra}).

![One image under 19 corruptions at five severities](images/corruptions.png)

## Pixel error

Mean absolute difference from the original pixel, which is a byte from 0 to 255, over {count:,} test images of CIFAR-10
with seed 0, at severities 1 to 5. Made, with the picture, by

    DDU_DATA=folder python scripts/corruptions.py

{table}
Severity is meant to rise in difficulty, which is not the same. The rows that do not rise:

{reasons}

## Different from the published set

- Random numbers are our own, so that images agree in kind and strength, not pixel by pixel.
- **Frost** is made procedurally, as branching crystals over a haze; the published set crops photographs.
- **Glass blur** swaps a pixel at most once per round, so that none moves further than the published displacement. A
  swap of every pixel in turn would carry some of them far across the image.
- **Spatter** measures exact distances to the drops' edges, and **zoom blur** zooms about the exact centre.
- Results are rounded to the nearest byte, not down.
"""


def test_images() -> np.ndarray:
    """CIFAR-10's test images as bytes."""
    if "DDU_DATA" not in os.environ:
        raise SystemExit("Set DDU_DATA to the folder that holds cifar10.npz.")
    with np.load(Path(os.environ["DDU_DATA"]) / "cifar10.npz") as arrays:
        return arrays["x_test"]


def page(table: PixelErrorTable, count: int) -> str:
    """docs/corruptions.md."""
    unexplained = set(table.not_rising) - set(REASONS)
    if unexplained:
        raise SystemExit(f"No reason is given why the pixel error falls: {', '.join(sorted(unexplained))}.")
    reasons = (
        f"- **{name}** (falls at {', '.join(map(str, falls))}): {REASONS[name]}"
        for name, falls in table.not_rising.items()
    )
    return PAGE.format(
        count=count, table=table.to_markdown(), reasons="\n".join(reasons), extra=", ".join(EXTRA_CORRUPTIONS)
    )


def picture(images: np.ndarray, index: int) -> Image.Image:
    """One row per corruption: the original, then severities 1 to 5."""
    original = images[index : index + 1]
    step = TILE + GAP
    sheet = Image.new("RGB", (LABEL + 6 * step, 24 + len(CORRUPTIONS) * step), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for column, title in enumerate(("original", *map(str, SEVERITIES))):
        draw.text((LABEL + column * step + TILE // 2, 12), title, "black", font, anchor="mm")
    for row, name in enumerate(CORRUPTIONS):
        top = 24 + row * step
        draw.text((LABEL - 8, top + TILE // 2), name, "black", font, anchor="rm")
        tiles = [original, *(corrupt(original, name, severity, start=index) for severity in SEVERITIES)]
        for column, (tile,) in enumerate(tiles):
            enlarged = Image.fromarray(tile).resize((TILE, TILE), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (LABEL + column * step, top))
    return sheet


def main() -> None:
    """Rewrites docs/corruptions.md and docs/images/corruptions.png."""
    images = test_images()
    picture(images, PICTURED).save(ROOT / "docs/images/corruptions.png", optimize=True)
    (ROOT / "docs/corruptions.md").write_text(page(pixel_error_table(images, progress=True), len(images)))


if __name__ == "__main__":
    main()
