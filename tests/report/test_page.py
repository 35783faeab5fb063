import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from ddu.errors import InputError
from ddu.report import entropy_histogram, inline_svg, make_cards, render_page
from ddu.report.page import image_uri
from ddu.types import Prediction, Verdict


def prediction(verdicts: list[Verdict] | None) -> Prediction:
    probs = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    log_density = torch.tensor([5.0, 4.0, -1234.0])
    return Prediction(
        probs=probs,
        label=probs.argmax(1),
        aleatoric=torch.special.entr(probs).sum(1),
        epistemic=-log_density,
        log_density=log_density,
        p_value=None if verdicts is None else torch.tensor([0.7, 0.25, 0.001], dtype=torch.float64),
        candidates=None if verdicts is None else torch.tensor([[True, False], [True, True], [False, True]]),
        verdict=None if verdicts is None else np.array(verdicts, dtype=object),
        class_names=("cat", "<dog>"),
    )


def figure_of(seed: int):
    values = torch.rand(50, generator=torch.Generator().manual_seed(seed))
    return entropy_histogram({"a": values, "b": values / 2}, threshold=0.3, num_classes=4)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_survives_its_data_uri(channels):
    image = torch.arange(64 * channels).reshape(channels, 8, 8) / (64 * channels - 1)
    kind, data = image_uri(image).split(",")
    assert kind == "data:image/png;base64"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    np.testing.assert_array_equal(pixels, (image * 255).round().byte().permute(1, 2, 0).squeeze().numpy())


def test_an_inline_figure_is_well_formed_described_and_free_of_addresses():
    svg = inline_svg(figure_of(0), 'two sets, "a" & <b>')
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'two sets, "a" & <b>'
    assert "softmax entropy in nats" in "".join(root.itertext())
    assert "http" not in svg
    assert "#000000" not in svg


def test_inline_figures_repeat_and_keep_their_references_apart():
    first, again, other = inline_svg(figure_of(0), "x"), inline_svg(figure_of(0), "x"), inline_svg(figure_of(0), "y")
    assert first == again
    ids = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (first, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for name in re.findall(r'(?:href="#|url\(#)([^")]*)', first):
        assert name in ids[0]


def test_cards_carry_what_the_detector_said():
    cards = make_cards(torch.rand(3, 1, 8, 8), prediction(list(Verdict)[:3]), ["a cat", "both", "neither"])
    assert [card.label for card in cards] == ["cat", "cat", "<dog>"]
    assert [card.truth for card in cards] == ["a cat", "both", "neither"]
    assert [card.verdict for card in cards] == list(Verdict)[:3]
    assert [card.p_value for card in cards] == [0.7, 0.25, 0.001]
    assert [card.candidates for card in cards] == ["cat", "cat or <dog>", "<dog>"]
    assert [card.confidence for card in cards] == pytest.approx([0.9, 0.5, 0.8])


def test_a_gallery_without_verdicts_is_refused():
    with pytest.raises(InputError) as caught:
        make_cards(torch.rand(3, 1, 8, 8), prediction(None), ["", "", ""])
    assert str(caught.value) == (
        "A gallery shows verdicts, and these predictions have none: calibrate the detector first."
    )


def test_a_page_shows_verdicts_in_words_and_escapes_what_it_is_given(tmp_path):
    template = tmp_path / "page.html"
    template.write_text(
        '{% extends "base.html" %}{% from "macros.html" import gallery with context %}'
        "{% block title %}{{ name }}{% endblock %}{% block body %}{{ gallery(cards, 0.6) }}{% endblock %}"
    )
    cards = make_cards(torch.rand(3, 1, 8, 8), prediction(list(Verdict)[:3]), ['"x" onerror="y', "both", "neither"])
    page = render_page(template, name="<script>alert(1)</script>", cards=cards)
    for words in ("in distribution", "ambiguous", "out of distribution"):
        assert f"</span> {words}</span>" in page
    assert "<script" not in page
    assert 'onerror="y' not in page
    assert "<strong>&lt;dog&gt;</strong>" in page
    assert '<dd class="crossed">0.001</dd>' in page
    assert "<dd>cat or &lt;dog&gt;</dd>" in page
    assert page.count('class="crossed"') == 2  # the entropy of the second, the p-value of the third
