"""Output for a person's terminal, not for a pipe: colours, tables as wide as the window, bars. Libraries behind it
(`rich`) are loaded only where there is a terminal, so that scripts wait for none of them.
"""

from __future__ import annotations

from pockfarm.screen.paint import Meaning, by_word, painted, painted_words
from pockfarm.screen.terms import CHOICES, Screen, choose, errors, output

__all__ = ["CHOICES", "Meaning", "Screen", "by_word", "choose", "errors", "output", "painted", "painted_words"]
