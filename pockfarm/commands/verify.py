"""`pockfarm receipt RUN -o FILE` and `pockfarm verify FILE ...`: results that are checked without the farm."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pockfarm.commands.farm import connect, farm_command
from pockfarm.errors import Failed, UsageError
from pockfarm.verification import NotVerified, verify_file


def add_receipt(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = farm_command(subparsers, "receipt", "fetch what proves a run's result without the farm", _receipt)
    command.add_argument("run_id", metavar="RUN")
    command.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")


def add_verify(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "check bundles and receipts on this machine alone, and say under which key they hold"
    command = subparsers.add_parser("verify", help=words, description=words)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a bundle (.pfb), or a run's receipt")
    command.add_argument("--trust", metavar="KEY", help="the farm's root or signing key: base64, or a file that has it")
    command.set_defaults(run=_verify)


def _receipt(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        options.output.write_text(json.dumps(farm.receipt(options.run_id), sort_keys=True, indent=1) + "\n")
    print(options.output)
    return 0


def _verify(options: argparse.Namespace) -> int:
    trusted, bad = _key(options.trust), []
    for path in options.files:
        try:
            findings = verify_file(path, trusted=trusted)
        except NotVerified as error:
            print(f"{path}: NOT VERIFIED: {error}")
            bad.append(path)
            continue
        print(f"{path}: verified")
        for finding in findings:
            print(f"  {finding.what:8} {finding.how}")
    if bad:
        raise Failed(f"{len(bad)} of {len(options.files)} files could not be verified", state="failed", cause="policy")
    return 0


def _key(given: str | None) -> str | None:
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
