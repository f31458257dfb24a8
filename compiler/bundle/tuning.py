"""A bundle -> the bundle that measures its kernels: one binary with every schedule of every kernel worth the time."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler import targets
from compiler.bundle.archive import (
    KERNELS,
    MANIFEST,
    REPORT,
    REPORT_SCHEMA,
    STEP,
    WEIGHTS,
    Bundle,
    empty_checkpoint,
    make_bundle,
    sha256_of,
    to_json,
)
from compiler.codegen.api import build_variants
from compiler.codegen.family import choices_of
from compiler.codegen.linking.link import link_tuner
from compiler.codegen.linking.trials import MAX_VARIANTS, Trial
from compiler.errors import TuningError
from compiler.identity import compiler_identity
from compiler.kernels.spec import signature
from compiler.targets import Target
from compiler.tuning.catalogue import Catalogue

Progress = Callable[[str, float], None]
MAX_TRIALS = 48
"""Kernels of one tuning binary: the costliest ones, which together are nearly all of a step's time."""


@dataclass(frozen=True, slots=True)
class Source:
    """The parts of a training bundle that tuning needs."""

    digest: str
    manifest: Mapping[str, Any]
    catalogue: Catalogue


def read_source(bundle: bytes) -> Source:
    """The parts of a training bundle. Raises: TuningError if it is none, or another version of the compiler made it."""
    try:
        with tarfile.open(fileobj=io.BytesIO(bundle), mode="r:") as archive:
            files = {name: _content(archive, name) for name in (MANIFEST, KERNELS)}
        manifest = json.loads(files[MANIFEST])
    except (tarfile.TarError, KeyError, ValueError, RecursionError) as problem:
        raise TuningError(
            f"not a training bundle that says what its kernels are: {problem}", where="bundle", hint="build it again"
        ) from None
    catalogue = Catalogue.parse(files[KERNELS])
    if catalogue.version != compiler_identity():
        raise TuningError(
            "the bundle is of another version of the compiler, which builds other kernels",
            where="bundle",
            hint="build it again, then tune it",
        )
    return Source(f"sha256:{sha256_of(bundle)}", manifest, catalogue)


def build_tuning(
    bundle: bytes, *, cache_dir: Path | None = None, progress: Progress | None = None, jobs: int = 2
) -> Bundle:
    """The tuning bundle of a training bundle: same bundle and compiler, same bytes.

    It has a bundle's form; its `bin/step` knows `tune` only, and its manifest is of kind `tuning` and says what each
    trial and variant is. Raises: TuningError if there is nothing to choose; BuildError.
    """
    tell = progress or (lambda stage, fraction: None)
    source = read_source(bundle)
    target, threads = targets.load(str(source.manifest["target"])), source.catalogue.threads
    trials = choose_trials(source.catalogue, target)
    if not trials or not isinstance(target, targets.CpuTarget):
        raise TuningError("no kernel of this bundle can be scheduled in more than one way", where="bundle")
    tell("kernels", 0.05)
    variants = tuple(variant for trial in trials for variant in trial.variants)
    built = build_variants(
        variants,
        target,
        threads=threads,
        cache_dir=cache_dir,
        jobs=jobs,
        progress=lambda done, total: tell("kernels", 0.05 + 0.85 * done / max(total, 1)),
    )
    tell("link", 0.9)
    with tempfile.TemporaryDirectory(prefix="pockfarm-link-") as folder:
        binary = link_tuner(trials, built, target, threads=threads, work_dir=Path(folder))
    report = {
        "schema": REPORT_SCHEMA,
        "graph": {"trials": len(trials), "variants": len(built)},
        "notes": [],
        "warnings": [],
    }
    files = {STEP: binary, WEIGHTS: empty_checkpoint(), REPORT: to_json(report)}
    tuning_bundle = make_bundle(_manifest(source, trials, target), files)
    tell("done", 1.0)
    return tuning_bundle


def choose_trials(catalogue: Catalogue, target: Target) -> tuple[Trial, ...]:
    """The costliest kernels, each with all of its schedules."""
    kernels = catalogue.kernels[:MAX_TRIALS]
    total = sum(kernel.cost(target.costs) for kernel in kernels)
    trials = (
        Trial(
            kernel.spec,
            choices_of(kernel.spec, target, catalogue.threads)[:MAX_VARIANTS],
            kernel.cost(target.costs) / total,
        )
        for kernel in kernels
    )
    return tuple(trial for trial in trials if len(trial.choices) > 1)


def _manifest(source: Source, trials: tuple[Trial, ...], target: Target) -> dict[str, Any]:
    kernels = {signature(kernel.spec): kernel for kernel in source.catalogue.kernels}
    rows = [
        {
            "kernel": signature(trial.spec),
            "name": kernels[signature(trial.spec)].name,
            "calls": kernels[signature(trial.spec)].calls,
            "choices": [choice.text for choice in trial.choices],
        }
        for trial in trials
    ]
    return {
        "kind": "tuning",
        "digests": {**source.manifest["digests"], "source": source.digest},
        "target": target.name,
        "device_class": target.device_class,
        "required_features": list(target.required_features),
        "plan": source.manifest["plan"],
        "batch": source.manifest["batch"],
        "threads": source.catalogue.threads,
        "inputs": [],
        "outputs": [],
        "kernels": [],
        "version": source.catalogue.version,
        "trials": rows,
    }


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    if stream is None:
        raise KeyError(name)
    return stream.read()
