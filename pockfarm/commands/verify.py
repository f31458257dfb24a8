"""`pockfarm receipt RUN|BUNDLE -o FILE` and `pockfarm verify FILE ...`: checked without the farm."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pockfarm.commands.farm import connect, farm_command
from pockfarm.errors import Failed, UsageError
from pockfarm.verification import Verdict, verify_files
from pockfarm.written import write_whole


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
        write_whole(options.output, f"{json.dumps(farm.receipt(options.of), sort_keys=True, indent=1)}\n".encode())
    print(options.output)
    return 0


def _verify(options: argparse.Namespace) -> int:
    verdicts = verify_files(options.files, trusted=public_key(options.trust))
    for verdict in verdicts:
        if verdict.problem:
            print(f"{verdict.path}: NOT VERIFIED: {verdict.problem}")
            continue
        print(f"{verdict.path}: verified" if _is_anchored(verdict) else f"{verdict.path}: intact, origin not shown")
        for finding in verdict.findings:
            print(f"  {finding.what:8} {finding.how}")
    bad = sum(bool(verdict.problem) for verdict in verdicts)
    if bad:
        raise Failed(f"{bad} of {len(verdicts)} files could not be verified", state="failed", cause="policy")
    return 0


def _is_anchored(verdict: Verdict) -> bool:
    return not verdict.is_bundle or not any(one.how.startswith("UNANCHORED") for one in verdict.findings)


def public_key(given: str | None) -> str | None:
    """A public key: itself, or the last word of a file (as `service.root show` prints it)."""
    if given is None:
        return None
    try:
        words = Path(given).read_text().split() if Path(given).is_file() else [given]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--trust {given}: {error}") from None
    if not words:
        raise UsageError(f"--trust {given}: an empty file")
    return words[-1]
