"""Checks of files without any farm: bundles, receipts of results, statements of bundles, heads of the log.

A `Finding` says what was checked and by which key. A bundle proves nothing of where it is from: a receipt or statement
that names its digest does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pockfarm.files.sources import unread
from pockfarm.verification.bundles import bundle_findings
from pockfarm.verification.findings import MAX_TEXT_BYTES, Finding, NotVerified
from pockfarm.verification.papers import Paper, read_paper


@dataclass
class Verdict:
    """On one file. `problem` says why it does not hold; empty: it does."""

    path: Path
    findings: list[Finding] = field(default_factory=list)
    problem: str = ""
    bundle_digest: str = ""
    """Digest of the bundle that the file is, or that it names."""
    is_bundle: bool = False


def verify_file(path: Path, *, trusted: str | None) -> list[Finding]:
    """Returns the findings that hold for a bundle or a signed file. `trusted`: a root's or signing key's public key
    (raw, base64).

    Raises: NotVerified, UsageError (no such file).
    """
    [verdict] = verify_files([path], trusted=trusted)
    if verdict.problem:
        raise NotVerified(verdict.problem)
    return verdict.findings


def verify_files(paths: Sequence[Path], *, trusted: str | None) -> list[Verdict]:
    """A verdict on each; a bundle's origin is shown by what else is among them. Raises: UsageError (no such file)."""
    verdicts = [_verdict(path, trusted) for path in paths]
    naming_files = {
        verdict.bundle_digest: verdict.path for verdict in verdicts if not verdict.is_bundle and not verdict.problem
    }
    for verdict in verdicts:
        if verdict.is_bundle and not verdict.problem:
            _trace(
                verdict, naming_files, has_papers=any(not verdict.is_bundle for verdict in verdicts), trusted=trusted
            )
    return verdicts


def _trace(verdict: Verdict, naming_files: dict[str, Path], *, has_papers: bool, trusted: str | None) -> None:
    if verdict.bundle_digest in naming_files:
        verdict.findings.append(Finding("origin", f"{naming_files[verdict.bundle_digest]} names it"))
    elif has_papers:
        verdict.problem = f"it is {verdict.bundle_digest}, which no receipt or statement that holds here names"
    elif trusted is not None:
        verdict.problem = (
            f"nothing shows that {verdict.bundle_digest} is from there: give its statement, or a run's "
            f"receipt, too (pockfarm receipt {verdict.bundle_digest} -o FILE)"
        )
    else:
        how = f"pockfarm receipt {verdict.bundle_digest} -o FILE"
        verdict.findings.append(
            Finding(
                "origin",
                f"UNANCHORED: anyone can have made it; its statement ({how}), or a "
                "run's receipt, would show from where it is",
            )
        )


def _verdict(path: Path, trusted: str | None) -> Verdict:
    try:
        with path.open("rb") as file:
            is_bundle = file.read(1) != b"{"
            file.seek(0)
            data = b"" if is_bundle else file.read(MAX_TEXT_BYTES + 1)
        if is_bundle:
            digest, findings = bundle_findings(path)
            return Verdict(path, findings, bundle_digest=digest, is_bundle=True)
        paper = read_paper(data, trusted)
        return Verdict(path, paper.findings, bundle_digest=paper.bundle_digest)
    except OSError as error:
        raise unread(path, error) from None
    except NotVerified as error:
        return Verdict(path, problem=str(error), is_bundle=is_bundle)


__all__ = ["Finding", "NotVerified", "Paper", "Verdict", "read_paper", "verify_file", "verify_files"]
