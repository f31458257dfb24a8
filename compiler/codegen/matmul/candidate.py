"""A schedule of a matrix product in a few words: what a choice says and the search compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from compiler.codegen.choice import Choice, choose

Strategy = Literal["batch", "rows", "columns", "split"]
PanelPlace = Literal["direct", "shared", "private"]
Order = Literal["rows", "columns", "parts"]
Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule in a few words."""

    rows: int
    vectors: int
    strategy: Strategy
    order: Order
    panels: PanelPlace
    k_block: int
    copies_a: bool = False

    @property
    def sums_wait(self) -> bool:
        """Whether the sums of many tiles wait in the second-level cache while the reduction goes on."""
        return self.strategy == "split" or self.order == "parts"

    @property
    def goes_by_columns(self) -> bool:
        """Whether each column tile goes through a block of rows before the next one does."""
        return self.strategy != "split" and self.order == "columns"

    @property
    def choice(self) -> Choice:
        """Returns the candidate as the choice that is stored."""
        return choose(
            rows=self.rows,
            vectors=self.vectors,
            strategy=self.strategy,
            order=self.order,
            panels=self.panels,
            k_block=self.k_block,
            copies_a=self.copies_a,
        )


def candidate_of(choice: Choice, default: Candidate) -> Candidate:
    """The schedule that a choice names; what it leaves out is as in `default`. Raises: ValueError for nonsense."""
    chosen = Candidate(
        choice.integer("rows", default.rows),
        choice.integer("vectors", default.vectors),
        _word(choice, "strategy", default.strategy, get_args(Strategy)),
        _word(choice, "order", default.order, get_args(Order)),
        _word(choice, "panels", default.panels, get_args(PanelPlace)),
        choice.integer("k_block", default.k_block),
        choice.flag("copies_a", default.copies_a),
    )
    if min(chosen.rows, chosen.vectors, chosen.k_block) < 1:
        raise ValueError(f"no schedule: {choice.text}")
    return chosen


def _word(choice: Choice, name: str, default: Word, allowed: tuple[Word, ...]) -> Word:
    word = choice.word(name, default)
    for allowed_word in allowed:
        if allowed_word == word:
            return allowed_word
    raise ValueError(f"{name}={word}: wants one of {', '.join(allowed)}")
