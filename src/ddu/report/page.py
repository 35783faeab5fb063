"""One self-contained HTML page: figures, pictures and style are inside, and nothing is loaded from elsewhere."""

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ddu.errors import InputError
from ddu.messages import require
from ddu.types import Prediction, Verdict, choice_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PURPOSE = "ddu.report"
_TEMPLATES = Path(__file__).parent / "templates"
_LARGEST = 184  # pixels of a picture in a gallery: twice its size on the page


@dataclass(frozen=True)
class Card:
    """One input of a gallery, and what the detector makes of it.

    Attributes:
        image: The picture, as a data URI; None of an input that is no image.
        truth: What it really is, in words.
        label: The predicted class.
        confidence: Probability of that class.
        candidates: The classes that fit, as a choice: "4 or 9".
        aleatoric: Softmax entropy in nats.
        p_value: The share of in-distribution inputs at least as unknown.
        verdict: The verdict.
    """

    image: str | None
    truth: str
    label: str
    confidence: float
    candidates: str
    aleatoric: float
    p_value: float
    verdict: Verdict


def make_cards(images: Tensor | None, prediction: Prediction, truths: Sequence[str]) -> list[Card]:
    """Cards for a batch of inputs that a calibrated detector has judged.

    Args:
        images: In [0, 1], (input, channel, height, width), grey or colour; None if the inputs are no images.
        prediction: What the detector makes of them.
        truths: What they really are, in words.
    """
    if prediction.verdict is None or prediction.p_value is None or prediction.candidates is None:
        raise InputError("A gallery shows verdicts, and these predictions have none: calibrate the detector first.")
    candidates = prediction.to_dict()["candidates"]
    return [
        Card(
            image=None if image is None else image_uri(image),
            truth=truth,
            label=one.name(int(one.label)),
            confidence=float(one.probs.max()),
            candidates=choice_in_words(names),
            aleatoric=float(one.aleatoric),
            p_value=float(p_value),
            verdict=Verdict(str(one.verdict)),
        )
        for image, one, truth, names, p_value in zip(
            [None] * len(truths) if images is None else images,
            prediction,
            truths,
            candidates,
            prediction.p_value,
            strict=True,
        )
    ]


def image_uri(image: Tensor) -> str:
    """An image in [0, 1], (channel, height, width), grey or colour, as the data URI of a PNG; a large one is shrunk."""
    pillow = require("PIL.Image", extra="report", purpose=_PURPOSE)
    buffer = io.BytesIO()
    pixels = (image.clamp(0, 1) * 255).round().byte().cpu().permute(1, 2, 0).numpy()
    picture = pillow.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((_LARGEST, _LARGEST))
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def inline_svg(figure: "Figure", description: str) -> str:
    """A figure as SVG to put into a page: it scales, its text is text, and black takes the page's own text colour.

    Args:
        figure: The figure.
        description: What it shows, for those who cannot see it.
    """
    matplotlib = require("matplotlib", extra="report", purpose=_PURPOSE)
    buffer = io.StringIO()
    # The salt makes identifiers the same from run to run, and different from figure to figure
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    opening = f'<svg role="img" aria-label="{html.escape(description)}" fill="currentColor" viewBox'
    svg = re.sub(r"<svg [^>]*viewBox", lambda _: opening, svg, count=1)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    return svg.replace("#000000", "currentColor").strip()


def render_page(template: Path, **context: Any) -> str:
    """The HTML of a template, which may extend `base.html` and use the macros of `macros.html`."""
    jinja2 = require("jinja2", extra="report", purpose=_PURPOSE)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": number, "as_is": jinja2.utils.markupsafe.Markup}
    return environment.get_template(template.name).render(context)


def percent(share: float, digits: int = 1) -> str:
    """A share in words for people.

    >>> percent(0.9916)
    '99.2 %'
    """
    return f"{100 * share:.{digits}f} %"


def number(value: float, digits: int = 0) -> str:
    """A number with a real minus sign and thousands apart.

    >>> number(-1234.5, 1)
    '−1,234.5'
    """
    return f"{value:,.{digits}f}".replace("-", "−")
