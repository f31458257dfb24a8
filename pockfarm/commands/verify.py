"""`pockfarm receipt RUN|BUNDLE -o FILE` and `pockfarm verify FILE ...`: checked without the farm."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from device_agents.wire.disk import is_full
from pockfarm.commands.farm import connect, farm_command
from pockfarm.commands.output import show
from pockfarm.errors import Failed, UsageError
from pockfarm.files.written import write_whole
from pockfarm.screen import Meaning, by_word, painted
from pockfarm.verification import Verdict, verify_files


def add_receipt(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "fetch what proves a run's result, or a bundle's origin, without the farm"
    command = farm_command(subparsers, "receipt", words, _receipt)
    command.add_argument("of", metavar="RUN", help="a run's id, or a bundle's digest (sha256:...)")
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")


def add_verify(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "check bundles and receipts on this machine alone, and say under which key they hold"
    command = subparsers.add_parser("verify", help=words, description=words)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="bundles (.pfb), receipts, statements")
    command.add_argument("--trust", metavar="KEY", help="the farm's root or signing key: base64, or a file that has it")
    command.set_defaults(run=_verify)


def _receipt(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        receipt = f"{json.dumps(farm.receipt(options.of), sort_keys=True, indent=1)}\n".encode()
    try:
        write_whole(options.output, receipt)
    except OSError as problem:
        if is_full(problem):
            raise
        raise UsageError(problem.strerror, where=f"--output {options.output}") from None
    files = [{"file": str(options.output), "bytes": len(receipt)}]
    return show(options, files, lambda: str(options.output))


def _verify(options: argparse.Namespace) -> int:
    verdicts = verify_files(options.files, trusted=public_key(options.trust))
    documents = [
        {
            "file": str(file_verdict.path),
            "verdict": _word(file_verdict),
            "problem": file_verdict.problem or None,
            "findings": [asdict(finding) for finding in file_verdict.findings],
        }
        for file_verdict in verdicts
    ]
    show(options, documents, lambda: "\n".join(map(verdict_text, verdicts)))
    bad = sum(bool(verdict.problem) for verdict in verdicts)
    if bad:
        raise Failed(f"{bad} of {len(verdicts)} files could not be verified", state="failed", cause="policy")
    return 0


def verdict_text(verdict: Verdict) -> str:
    """A line with the verdict, then a line for each thing that was found."""
    word = painted(_word(verdict), by_word(_word(verdict)))
    if verdict.problem:
        return f"{verdict.path}: {word}: {verdict.problem}"
    width = max((len(finding.what) for finding in verdict.findings), default=0)
    lines = [f"  {painted(f'{finding.what:{width}}', Meaning.HEAD)}  {finding.how}" for finding in verdict.findings]
    return "\n".join([f"{verdict.path}: {word}", *lines])


def _word(verdict: Verdict) -> str:
    if verdict.problem:
        return "NOT VERIFIED"
    return "verified" if _is_anchored(verdict) else "intact, origin not shown"


def _is_anchored(verdict: Verdict) -> bool:
    return not verdict.is_bundle or not any(finding.how.startswith("UNANCHORED") for finding in verdict.findings)


def public_key(option: str | None) -> str | None:
    """A public key: itself, or the last word of a file (as `service.root show` prints it)."""
    if option is None:
        return None
    try:
        words = Path(option).read_text().split() if Path(option).is_file() else [option]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(error, where=f"--trust {option}") from None
    if not words:
        raise UsageError("an empty file", where=f"--trust {option}")
    return words[-1]
