"""Text for HTML and SVG that is made in Python: of the thousands of words on a page nearly none needs escaping, and
whoever looks first does without `markupsafe`'s objects."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_SPECIAL = re.compile("[&<>\"']").search


def escaped(text: str) -> str:
    """As `markupsafe.escape`: Markup stays as it is; what is returned may be a plain `str`."""
    return text if isinstance(text, Markup) or not _SPECIAL(text) else str(escape(text))
