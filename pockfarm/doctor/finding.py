"""The finding of a check."""

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
    message: str
    mend: str = ""


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong; warnings may be."""
    return all(finding.state != WRONG for finding in findings)


def findings_text(findings: Sequence[Finding]) -> str:
    """A line for each, and one for how to mend it; the sum of them at the end."""
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(
            f"{painted(f'{finding.state:7}', by_word(finding.state))}  {finding.check:{width}}  {finding.message}"
        )
        lines += [f"{'':7}  {'':{width}}  -> {finding.mend}"] if finding.mend else []
    counts = {state: sum(finding.state == state for finding in findings) for state in (WRONG, WARNING)}
    warnings = f"{counts[WARNING]} warning{'' if counts[WARNING] == 1 else 's'}"
    return "\n".join([*lines, "", f"{counts[WRONG]} wrong, {warnings}, {len(findings)} checks"])
