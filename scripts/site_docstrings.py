"""An extension of griffe, which reads docstrings for the site: examples with `>>>` are shown as code.

In Markdown a line that begins with `>` is a quotation, so each run of such lines, with what they print, gets a fence.
"""

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", flags=re.MULTILINE)


class FencedExamples(Extension):
    """Puts fences around the examples of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrites the docstring of an object when it is read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
