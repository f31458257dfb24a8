"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pockfarm.screen import by_word, painted

OK, WARNING, WRONG = "ok", "warning", "wrong"


@dataclass(frozen=True)
class Finding:
    """`state`: ok; warning (it works, or what lacks may not be needed); wrong. `mend`: what to do about it."""

    check: str
    state: str
    says: str
    mend: str = ""


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong; warnings may be."""
    return all(one.state != WRONG for one in findings)


def findings_text(findings: Sequence[Finding]) -> str:
    """A line for each, and one for how to mend it; the sum of them at the end."""
    width = max(len(one.check) for one in findings)
    lines = []
    for one in findings:
        lines.append(f"{painted(f'{one.state:7}', by_word(one.state))}  {one.check:{width}}  {one.says}")
        lines += [f"{'':7}  {'':{width}}  -> {one.mend}"] if one.mend else []
    counts = {state: sum(one.state == state for one in findings) for state in (WRONG, WARNING)}
    warnings = f"{counts[WARNING]} warning{'' if counts[WARNING] == 1 else 's'}"
    return "\n".join([*lines, "", f"{counts[WRONG]} wrong, {warnings}, {len(findings)} checks"])
