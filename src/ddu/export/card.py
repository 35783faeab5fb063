"""The model card of a bundle, in the form that the Hugging Face Hub shows."""

from collections.abc import Iterator, Mapping
from typing import Any

_TEMPLATE = """---
library_name: ddu
tags:
- uncertainty
- out-of-distribution
- onnx
---

# {title}

{summary}

{sections}

## Use

`model.onnx` needs neither ddu nor PyTorch:

```python
import json

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
verdicts = json.loads(session.get_modelmeta().custom_metadata_map["verdicts"])
found = session.run(["label", "p_value", "verdict"], {feed})
print([verdicts[code] for code in found[2]])
```

{inputs}

`false_alarm_rate` and `entropy_threshold` are inputs of type float64 that may be left out: then they are {rate:g} and
{threshold}. With ddu, `ddu predict FOLDER IMAGE ...`, or `ddu.bundles.Bundle(FOLDER).predict(...)`.
"""


def make_card(content: Mapping[str, Any]) -> str:
    """The card from what bundle.json says."""
    description = content["description"]
    network = description.get("network") or content["network"]
    threshold = content["entropy_threshold"]
    feeds = ", ".join(f'"{name}": {_zeros(one)}' for name, one in content["inputs"].items())
    return _TEMPLATE.format(
        title=f"{network}{' on ' + str(description['data']) if description.get('data') else ''}, with ddu",
        summary=(
            f"A classifier of {content['num_classes']} classes that says of every prediction how ambiguous the input "
            "is, how unlike the training data, and whether to trust it: `in_distribution`, `ambiguous`, "
            "`out_of_distribution` or `invalid`."
        ),
        sections="\n\n".join(_sections(content)),
        feed=f"{{{feeds}}}",
        inputs=_inputs(content),
        rate=content["false_alarm_rate"],
        threshold="infinity" if threshold is None else f"{threshold:.4g}",
    )


def _sections(content: Mapping[str, Any]) -> Iterator[str]:
    description, calibration = content["description"], content["calibration"]
    trained = [
        f"- Network: {description.get('network') or content['network']}, weights `{content['fingerprint'][:12]}`"
    ]
    names = {
        "data": "Data",
        "samples": "Samples, held-out ones included",
        "digest": "Digest of the samples",
        "run": "Run",
    }
    trained += [f"- {words}: {description[name]}" for name, words in names.items() if description.get(name) is not None]
    yield "## Trained on\n\n" + "\n".join(trained)
    rate = f"{calibration['false_alarm_rate']:g}"
    lines = [
        f"- Detector: `{content['detector']}`, score of {len(content['parts'] or [1])} part(s)"
        + (f": {', '.join(content['parts'])}" if content["parts"] else ""),
        f"- Held-out inputs that set the thresholds: {calibration['held_out']:,}",
        f"- False-alarm rate: {rate}" + (" within each predicted class" if calibration["per_class"] else ""),
        f"- Temperature: {content['temperature']:.4g}; candidates cover {calibration['coverage']:g}",
    ]
    if calibration["confidence"] is not None:
        lines.append(
            f"- Confidence: {calibration['confidence']:g}, so that p-values up to {content['false_alarm_rate']:.4g} "
            "are flagged"
        )
    if calibration["error_rate"] is not None:
        lines.append(f"- Error rate among what is `in_distribution`: {calibration['error_rate']:g}")
    yield "## Calibrated on\n\n" + "\n".join(lines)
    if metrics := description.get("metrics"):
        yield "## Measured\n\n| on test data | |\n|---|---|\n" + "\n".join(
            f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in metrics.items()
        )
    yield (
        "## Agreement with PyTorch\n\nThe largest differences before the graph was written, of scores as a share of "
        "their spread on held-out data or of themselves:\n\n| inputs | | score | probability |\n|---|---|---|---|\n"
    ) + "\n".join(
        f"| {kind} | {one['inputs']} | {one['score']:.1e} | {one['probability']:.1e} |"
        for kind, one in content["parity"].items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    yield f"Made with {versions}."


def _inputs(content: Mapping[str, Any]) -> str:
    preprocessing = content["preprocessing"]
    if preprocessing is None or not preprocessing["mean"]:
        listed = ", ".join(f"`{name}`: {one['dtype']} {tuple(one['shape'])}" for name, one in content["inputs"].items())
        return f"It takes {listed}.".replace("'", "")
    channels, height, width = preprocessing["shape"]
    covered = " x ".join(f"{size / preprocessing['kept']:.0f}" for size in (height, width))
    return (
        f"`pixels` are {'RGB' if channels == 3 else 'grey'} images as bytes, (batch, {height}, {width}, {channels}): "
        f"scale an image with antialiased {preprocessing['resizing']} interpolation until it covers {covered}, and "
        f"take the middle {height} x {width} of it. Normalisation is part of the graph."
    )


def _zeros(one: Mapping[str, Any]) -> str:
    shape = ", ".join(str(1 if size == "batch" else size) for size in one["shape"])
    return f'np.zeros(({shape}{"," if len(one["shape"]) == 1 else ""}), "{one["dtype"]}")'
