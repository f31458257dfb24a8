"""`pockfarm delta`: what a training changed and nothing else, and that applied to what it began with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pockfarm.commands.extras import DELTAS, load_fine_tuning
from pockfarm.commands.output import files_text, show


def add_delta(subparsers: argparse._SubParsersAction[Any]) -> None:
    text = "what a training changed of its base, as a small file; or that applied to the base"
    command = subparsers.add_parser("delta", help=text, description=text)
    command.add_argument("--base", type=Path, required=True, metavar="W", help="safetensors, or a bundle")
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--trained", type=Path, metavar="C.safetensors", help="write what it has changed")
    which.add_argument("--apply", type=Path, metavar="DELTA", help="write the base with what a delta changes")
    command.add_argument("--out", type=Path, required=True, metavar="F.safetensors")
    command.set_defaults(run=_delta)


def _delta(options: argparse.Namespace) -> int:
    deltas = load_fine_tuning(DELTAS)
    if options.trained is not None:
        size_bytes = deltas.write_chunks(options.out, [deltas.delta_of(options.base, options.trained)])
    else:
        whole = deltas.apply_delta(options.base, options.apply)
        size_bytes = deltas.write_chunks(options.out, deltas.tensors_file(whole))
    files = [{"file": str(options.out), "bytes": size_bytes}]
    return show(options, files, lambda: files_text(files))
