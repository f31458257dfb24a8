"""`pockfarm bundles | datasets | pin | unpin`: the files of a farm, by their digests, and what stays of them."""

from __future__ import annotations

import argparse
from typing import Any

from pockfarm.commands.farm import connect, reading_command
from pockfarm.commands.filters import count_of
from pockfarm.commands.output import facts_text, show, show_list
from pockfarm.errors import UsageError
from pockfarm.output.table import NONE, bytes_text, cell, figure, moment
from pockfarm.values import Json, optional_number, part, parts, text

BUNDLE_HEADER = ("bundle", "model", "plan", "target", "size", "arena", "made", "kept")
DATASET_HEADER = ("data set", "name", "samples", "size", "came", "kept")
LIMIT = "at most so many, the newest (default: 50)"


def add_bundles(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = reading_command(subparsers, "bundles", "list bundles, the newest first, or show one", _bundles)
    command.add_argument("--target", metavar="T", help="only these")
    command.add_argument("--plan", metavar="NAME", help="only these")
    command.add_argument("--model-digest", metavar="DIGEST", help="only those of this model, sha256:…")
    command.add_argument("--limit", type=count_of, metavar="N", help=LIMIT)
    actions = command.add_subparsers(metavar="ACTION")
    show_one = reading_command(actions, "show", "what the farm knows of a bundle", _show_bundle)
    show_one.add_argument("digest", metavar="DIGEST", help="sha256:…")


def add_datasets(subparsers: argparse._SubParsersAction[Any]) -> None:
    command = reading_command(subparsers, "datasets", "list data sets, the newest first, or show one", _datasets)
    command.add_argument("--name", metavar="NAME", help="only these, of the newest 200")
    command.add_argument("--limit", type=count_of, metavar="N", help=LIMIT)
    actions = command.add_subparsers(metavar="ACTION")
    show_one = reading_command(actions, "show", "the arrays of a data set", _show_dataset)
    show_one.add_argument("digest", metavar="DIGEST", help="sha256:…")


def add_pin(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "keep runs, bundles or data sets, whatever the rules of retention say"
    command = reading_command(subparsers, "pin", words, _pin)
    command.add_argument("ids", nargs="+", metavar="RUN|DIGEST", help="of a run its events, weights, bundle and data")


def add_unpin(subparsers: argparse._SubParsersAction[Any]) -> None:
    words = "let the rules of retention have runs, bundles or data sets again"
    command = reading_command(subparsers, "unpin", words, _unpin)
    command.add_argument("ids", nargs="+", metavar="RUN|DIGEST")


def _bundles(options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in ("target", "plan", "model_digest", "limit")}
    with connect(options) as farm:
        rows = [bundle.raw for bundle in farm.bundles(**chosen)]
    return show_list(
        options,
        rows,
        BUNDLE_HEADER,
        bundle_row,
        none="no such bundles",
        least=("model", "plan", "target", "arena", "made", "kept"),
    )


def bundle_row(bundle: Json) -> tuple[str, ...]:
    """Under `BUNDLE_HEADER`."""
    memory = part(part(bundle, "summary"), "memory")
    return (
        *(text(bundle, name) for name in ("digest", "model_name", "plan_name", "target")),
        bytes_text(optional_number(bundle, "size_bytes")),
        bytes_text(optional_number(memory, "arena_bytes")),
        moment(text(bundle, "created_at")),
        retention(bundle),
    )


def retention(file: Json) -> str:
    """Whether its file is there, and stays."""
    if file.get("removed_at"):
        return "removed"
    return "pinned" if file.get("pinned_at") else NONE


def _show_bundle(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        bundle = farm.bundle(options.digest).raw
    return show(options, bundle, lambda: bundle_text(bundle))


def bundle_text(bundle: Json) -> str:
    """A bundle as people read it."""
    summary = part(bundle, "summary")
    memory = part(summary, "memory")
    sizes = [
        f"{name} {bytes_text(optional_number(memory, f'{name}_bytes'))}"
        for name in ("arena", "weights", "optimizer", "peak")
    ]
    return facts_text(
        [
            ("bundle", text(bundle, "digest")),
            ("model", f"{text(bundle, 'model_name')}  {text(bundle, 'model_digest')}"),
            ("plan", f"{text(bundle, 'plan_name')}  {text(bundle, 'plan_digest')}"),
            ("spec", text(bundle, "spec_digest")),
            ("target", text(bundle, "target")),
            ("size", bytes_text(optional_number(bundle, "size_bytes"))),
            ("memory", ", ".join(sizes) if memory else ""),
            ("inputs", _tensors(summary, "inputs")),
            ("outputs", _tensors(summary, "outputs")),
            ("needs", cell(summary.get("required_features"))),
            ("made", moment(text(bundle, "created_at"))),
            ("kept", retention(bundle)),
        ]
    )


def _tensors(summary: Json, name: str) -> str:
    return ", ".join(
        f"{text(tensor, 'name')} {text(tensor, 'dtype')} {tensor.get('shape')}" for tensor in parts(summary, name)
    )


def _datasets(options: argparse.Namespace) -> int:
    limit = 200 if options.name else options.limit
    with connect(options) as farm:
        rows = [dataset.raw for dataset in farm.datasets(limit=limit)]
    if options.name:
        rows = [dataset for dataset in rows if text(dataset, "name") == options.name][: options.limit]
    return show_list(
        options, rows, DATASET_HEADER, dataset_row, none="no such data sets", least=("name", "size", "came", "kept")
    )


def dataset_row(dataset: Json) -> tuple[str, ...]:
    """Under `DATASET_HEADER`."""
    return (
        text(dataset, "digest"),
        text(dataset, "name"),
        figure(optional_number(dataset, "samples"), 0),
        bytes_text(optional_number(dataset, "size_bytes")),
        moment(text(dataset, "created_at")),
        retention(dataset),
    )


def _show_dataset(options: argparse.Namespace) -> int:
    with connect(options) as farm:
        dataset = farm.dataset(options.digest).raw
    arrays = part(dataset, "arrays")
    array_texts = [f"{name} {text(part(arrays, name), 'dtype')} {part(arrays, name).get('shape')}" for name in arrays]
    facts = [*zip(DATASET_HEADER, dataset_row(dataset)), ("arrays", ", ".join(array_texts))]
    return show(options, dataset, lambda: facts_text(facts))


def _pin(options: argparse.Namespace) -> int:
    return _change(options, "pin", "stays, whatever the rules of retention say")


def _unpin(options: argparse.Namespace) -> int:
    return _change(options, "unpin", "is left to the rules of retention")


def _change(options: argparse.Namespace, act: str, words: str) -> int:
    for target in options.ids:
        if not target.startswith(("run_", "sha256:")):
            raise UsageError(
                f"'{target}' is neither a run's id (run_…) nor a digest (sha256:…)",
                hint="`pockfarm runs`, `pockfarm bundles`, `pockfarm datasets` list them",
            )
    with connect(options) as farm:
        answers = [{"id": target, **getattr(farm, act)(target)} for target in options.ids]
    return show(options, answers, lambda: "\n".join(f"{target} {words}" for target in options.ids))
