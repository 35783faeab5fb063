"""Renews the pictures of the page in docs/serving.md: light, dark, and on a phone.

    python scripts/screenshots.py [FOLDER]

Needs Chromium. FOLDER is that of a demo; one that is not there yet is made, in about a minute. The page is used in a
browser as somebody would: digits are drawn with the mouse, and samples are clicked.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from ddu.experiments.demo import RUN, Demo

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CHROMIUM = shutil.which("chromium")
PICTURES: list[tuple[str, int, int, Literal["light", "dark"]]] = [
    ("light", 1200, 900, "light"),
    ("dark", 1200, 900, "dark"),
    ("phone", 390, 844, "light"),
]
"""Name, width, height and colours."""

# It asks nobody but the server for anything
_QUIETLY = ("background-networking", "component-update", "sync", "quic", "gpu")
_DDU = "import sys; sys.argv[0] = 'ddu'; from ddu.cli import main; main()"

Stroke = Sequence[tuple[float, float]]
FOUR: list[Stroke] = [[(0.38, 0.22), (0.30, 0.55), (0.70, 0.55)], [(0.62, 0.25), (0.60, 0.82)]]
FOUR_OR_NINE: list[Stroke] = [
    [(0.49, 0.25), (0.42, 0.26), (0.33, 0.36), (0.33, 0.50), (0.62, 0.52)],
    [(0.63, 0.26), (0.60, 0.80)],
]
SCRIBBLE: list[Stroke] = [
    [(0.9 if i % 2 else 0.1, 0.1 + 0.1 * i) for i in range(9)],
    [(0.1 + 0.2 * i, 0.1 if i % 2 else 0.9) for i in range(5)],
]


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[str]:
    """The address of `ddu serve` on a folder, a process of its own, until it is told to stop."""
    command = [sys.executable, "-c", _DDU, "serve", str(folder), "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line + process.stderr.read()
        yield address[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that nobody sees."""
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in _QUIETLY)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


def draw(page: Page, strokes: Sequence[Stroke]) -> None:
    """Draws on the cleared canvas with the mouse; places are shares of its sides."""
    page.click("#clear")
    box: Any = page.locator("#canvas").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=8)
        page.mouse.up()


@contextmanager
def judging(page: Page) -> Iterator[None]:
    """Waits at the end until one input more is listed as judged."""
    before = page.locator("#rows button").count()
    yield
    page.locator("#rows button").nth(before).wait_for()


def main(folder: Path) -> None:
    """Makes the demo if need be, and takes the pictures."""
    Demo().measure(folder, say=print)
    with serving(folder / RUN, "--name", "demo") as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(address)
        for sample in (0, 3, 9, 16):
            with judging(page):
                page.locator("#gallery button").nth(sample).click()
        for strokes in (SCRIBBLE, FOUR, FOUR_OR_NINE):
            draw(page, strokes)
            with judging(page):
                page.click("#judge")
        for name, width, height, scheme in PICTURES:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": height})
            page.screenshot(path=IMAGES / f"page-{name}.png", full_page=name != "phone")
            print(f"docs/images/page-{name}.png: {page.inner_text('#verdict-word')}")


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("There is no chromium: apt-get install chromium, or the like.")
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary, "demo"))
