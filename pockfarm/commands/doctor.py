"""`pockfarm doctor`: what is wrong with this installation or farm, and how to mend it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pockfarm.commands.extras import load_local
from pockfarm.commands.farm import reading_command
from pockfarm.commands.output import show
from pockfarm.doctor import Finding, farm_findings, findings_text, installation_findings, is_well, reach
from pockfarm.errors import UsageError
from pockfarm.own_farm.state import StateFolder, farm_here


def add_doctor(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "say what is wrong with this installation or farm, and how to mend it (exit code 1 if something is)"
    reading_command(subparsers, "doctor", words, _doctor)


def _doctor(options: argparse.Namespace) -> int:
    folder = StateFolder(Path(options.state)) if options.state else None
    findings = [*installation_findings(folder or farm_here(), _linker()), *_of_farm(folder)]
    show(options, [asdict(finding) for finding in findings], lambda: findings_text(findings))
    return 0 if is_well(findings) else 1


def _linker() -> Path | None:
    """The folder of the linker's libraries; None without the compiler, which its packages' findings tell."""
    try:
        folder: Path = load_local().linker_cache()
    except UsageError:
        return None
    return folder


def _of_farm(state: StateFolder | None) -> list[Finding]:
    farm, finding = reach(state)
    if farm is None:
        return [finding]
    with farm:
        return [finding, *farm_findings(farm)]
