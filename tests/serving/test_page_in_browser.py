"""The page as people meet it: Chromium, a server in a process of its own, and the demo's network."""

import re
from collections.abc import Iterator

import pytest

from ddu import data
from ddu.experiments.demo import RUN
from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES
from scripts.screenshots import CHROMIUM, FOUR, FOUR_OR_NINE, SCRIBBLE, chromium, draw, judging, serving
from tests.serving.servers import png

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def address(whole_demo) -> Iterator[str]:
    with serving(whole_demo / RUN, "--name", "demo") as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


class Watch:
    """What a page asks for, and what it complains of."""

    def __init__(self, page):
        self.requests, self.complaints = [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('CSP', e.violatedDirective))"
        )


@pytest.fixture
def page(browser, address):
    """The page, newly opened; at the end nothing was asked of another host, and nothing was wrong."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    watch = Watch(page)
    page.goto(address)
    page.wait_for_selector("main:not([hidden])")
    yield page
    page.close()
    local = (f"{address}/", f"blob:{address}/", "data:")
    assert watch.requests
    assert [url for url in watch.requests if not url.startswith(local)] == []
    assert watch.complaints == []


def verdict(page) -> str:
    return page.inner_text("#verdict-word")


def test_a_four_is_known_a_half_nine_is_ambiguous_and_a_scribble_is_unknown(page):
    for strokes, expected in (
        (FOUR, "In distribution"),
        (FOUR_OR_NINE, "Ambiguous"),
        (SCRIBBLE, "Out of distribution"),
    ):
        draw(page, strokes)
        with judging(page):
            page.click("#judge")
        assert verdict(page) == expected
        if expected == "In distribution":
            assert "Predicted: 4" in page.inner_text("#verdict")
            assert page.locator("#probs .candidate .name").all_inner_texts() == ["4"]
            assert "4" in page.locator("#nearest li").all_inner_texts()[0]
        if expected == "Ambiguous":
            assert {"4", "9"} <= set(page.locator("#probs .candidate .name").all_inner_texts())
    listed = page.locator("#rows td.tone").all_inner_texts()
    assert listed == ["Out of distribution", "Ambiguous", "In distribution"]
    assert page.locator("#parts li").count() == 6
    assert "this input" in page.text_content("#histogram svg")
    legend = page.locator("#histogram .legend li").all_inner_texts()
    assert [words.partition(" (")[0] for words in legend] == [
        "held-out", "training", "clean digits", "ambiguous digits", "photo patches"
    ]  # fmt: skip
    page.locator("#rows button").last.click()  # shown again, and not judged again
    assert verdict(page) == "In distribution"
    assert page.locator("#rows button").count() == 3


def test_a_picture_of_clothes_is_unknown_however_it_is_given(page, real_data):
    (shoe,) = data.load("fashion_mnist", "test", root=real_data).inputs[:1, ..., 0]
    file = png(shoe)
    with judging(page):
        page.set_input_files("#file", {"name": "shoe.png", "mimeType": "image/png", "buffer": file})
    assert verdict(page) == "Out of distribution"
    for kind, transfer in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        with judging(page):
            page.evaluate(
                """([bytes, kind, transfer]) => {
                    const held = new DataTransfer();
                    held.items.add(new File([new Uint8Array(bytes)], "shoe.png", {type: "image/png"}));
                    const Kind = kind === "drop" ? DragEvent : ClipboardEvent;
                    const given = {[transfer]: held, bubbles: true, cancelable: true};
                    document.body.dispatchEvent(new Kind(kind, given));
                }""",
                [list(file), kind, transfer],
            )
        assert verdict(page) == "Out of distribution"
    assert re.search(r"\d+ inputs of all clients", page.inner_text("#drift-words"))


def test_samples_are_judged_by_a_click_and_mostly_as_their_group_says(page):
    found = {}
    for group, first in (("clean digits", 0), ("photo patches", 16)):
        for sample in range(first, first + 3):
            button = page.locator("#gallery button").nth(sample)
            assert button.get_attribute("aria-label").startswith(f"Judge: {group}, ")
            with judging(page):
                button.click()
            found.setdefault(group, []).append(verdict(page))
    assert found["photo patches"] == ["Out of distribution"] * 3
    assert found["clean digits"].count("In distribution") >= 2


def test_keys_alone_draw_judge_and_clear(page):
    page.keyboard.press("Tab")  # the API
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "canvas"
    page.keyboard.press("Space")
    for key in ["ArrowUp"] * 7 + ["ArrowDown"] * 14:  # a stroke like a 1
        page.keyboard.press(key)
    with judging(page):
        page.keyboard.press("Enter")
    assert "1" in page.inner_text("#verdict")
    ink = "[...canvas.getContext('2d').getImageData(0, 0, 280, 280).data].filter((v, i) => i % 4 == 0 && v > 0).length"
    assert page.evaluate(ink) > 1000
    page.keyboard.press("Delete")
    assert page.evaluate(ink) == 0
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel"))
    assert reached[:3] == ["judge", "clear", "file"]
    assert sum(str(name).startswith("Judge: ") for name in reached) == 24
    page.locator("#gallery button").first.focus()
    with judging(page):
        page.keyboard.press("Enter")


def test_what_cannot_be_read_is_said_and_the_page_goes_on(page):
    page.evaluate(
        """() => {
            const held = new DataTransfer();
            held.items.add(new File(["text"], "notes.txt", {type: "text/plain"}));
            document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: held, bubbles: true, cancelable: true}));
        }"""
    )
    assert page.inner_text("#error") == "That is not an image."
    with judging(page):
        page.locator("#gallery button").first.click()
    assert page.locator("#error").is_hidden()
    page.set_input_files("#file", {"name": "rows.csv", "mimeType": "text/csv", "buffer": b"path,label"})
    assert page.inner_text("#error") == "That is not an image."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_in_one_column_without_scrolling_sideways(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 360, "height": 740})
    with judging(page):
        page.locator("#gallery button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    tops = [page.locator(f"#{name}").bounding_box()["y"] for name in ("input", "result", "gallery", "log")]
    assert tops == sorted(tops)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) > 384) == (scheme == "light")


def test_text_has_enough_contrast_in_both_schemes(page):
    """At least 4.5 to 1, as WCAG asks for (level AA)."""

    def luminance(colour: str) -> float:
        channels = [int(value) / 255 for value in colour[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for sample in (0, 16):
        with judging(page):
            page.locator("#gallery button").nth(sample).click()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        card = page.evaluate("getComputedStyle(document.getElementById('result')).backgroundColor")
        for selector in ("#verdict-word", "#rows tr:last-child td.tone", ".note", "#about", "h2", "th"):
            colour = page.locator(selector).first.evaluate("e => getComputedStyle(e).color")
            dark, light = sorted(map(luminance, (colour, card)))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (scheme, selector)


def test_a_token_is_asked_for_until_it_is_right_and_kept_in_the_tab(browser, whole_demo):
    with serving(whole_demo / RUN, "--token", "öpen") as address:
        page = browser.new_page()
        page.goto(address)
        for token in ("wrong", "öpen"):
            page.locator("#token-dialog[open]").wait_for()
            assert page.locator("main").is_hidden()
            page.fill("#token", token)
            page.keyboard.press("Enter")
        page.wait_for_selector("main:not([hidden])")
        with judging(page):
            page.locator("#gallery button").first.click()
        page.reload()
        page.wait_for_selector("main:not([hidden])")
        assert page.locator("#token-dialog").is_hidden()
        page.close()


def test_a_source_of_vectors_takes_numbers(browser, tmp_path):
    spec = RunSpec("resffn2_32", "two_moons", RECIPES["two_moons"].with_changes(epochs=1), limit=1500)
    train_run(spec, tmp_path / "moons", examples=20)
    with serving(tmp_path / "moons") as address:
        page = browser.new_page()
        watch = Watch(page)
        page.goto(address)
        page.fill("#numbers", "90, 90")
        with judging(page):
            page.click("#vectors button")
        assert verdict(page) == "Out of distribution"
        assert page.locator("#nearest li").count() == 6
        with judging(page):
            page.locator("#gallery button").first.click()
        assert verdict(page) == "In distribution"
        page.fill("#numbers", "1")
        page.click("#vectors button")
        page.locator("#error:not([hidden])").wait_for()
        assert "Inputs must be vectors of 2 numbers" in page.inner_text("#error")
        assert not [words for words in watch.complaints if "422" not in words]  # the browser notes the refusal
        page.close()
