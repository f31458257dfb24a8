"""Colours by meaning. They repeat what words say already, so that nothing is lost where there are none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from pockfarm.screen import terms
from pockfarm.screen.terms import Screen


class Meaning(Enum):
    """Each is its style, in the words of `rich`: names of the sixteen colours that a terminal's owner chose."""

    GOOD = "green"
    BAD = "bold red"
    CARE = "yellow"
    BUSY = "cyan"
    QUIET = "dim"
    HEAD = "bold"


WORDS: Mapping[Meaning, tuple[str, ...]] = {
    Meaning.GOOD: (
        "succeeded",
        "valid",
        "verified",
        "ok",
        "active",
        "up",
        "agrees",
        "delivered",
        "completed",
        "done",
        "faster",
        "learns",
        "online",
    ),
    Meaning.BAD: (
        "failed",
        "invalid",
        "wrong",
        "quarantined",
        "does not agree",
        "diverged",
        "down",
        "halted",
        "lost",
        "NOT VERIFIED",
        "expired",
        "slower",
    ),
    Meaning.CARE: (
        "inconclusive",
        "warning",
        "drained",
        "may agree",
        "stopped early",
        "noisy",
        "disturbed",
        "drifting",
        "throttled",
        "offline",
        "intact, origin not shown",
        "warning:",
    ),
    Meaning.BUSY: ("running", "compiling", "leased", "starting", "busy", "draining"),
    Meaning.QUIET: ("queued", "cancelled", "removed", "revoked", "stopped", "-"),
}
"""States and verdicts, wherever one stands alone."""
_MEANS = {word: meaning for meaning, words in WORDS.items() for word in words}


def by_word(word: str) -> Meaning | None:
    """Returns the meaning of a state or verdict; None for any other word."""
    return _MEANS.get(word.strip())


def painted(text: str, meaning: Meaning | None, screen: Screen | None = None) -> str:
    """The text in the colour of its meaning, where standard output (or that `screen`) has colours."""
    target_screen = screen or terms.output()
    if meaning is None or not target_screen.has_colours or not text:
        return text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(meaning.value).render(text, color_system=ColorSystem.STANDARD)


def painted_words(text: str, screen: Screen | None = None) -> str:
    """The text with the states and verdicts in it that are named as the whole of a word."""
    if not (screen or terms.output()).has_colours:
        return text
    alternatives = "|".join(re.escape(word) for word in sorted(_MEANS, key=len, reverse=True) if word != "-")
    return re.sub(
        rf"(?<![\w-])(?:{alternatives})(?![\w-])", lambda match: painted(match[0], _MEANS[match[0]], screen), text
    )
