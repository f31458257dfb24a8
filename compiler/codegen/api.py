"""Building kernels: specs in, objects out, from the cache or in worker processes. Does not import TVM itself.

Compiled kernels on disk, found by what they were made from. Safe for any number of processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from compiler.cache_folder import KERNELS
from compiler.codegen.artefacts import Artefact, CompiledKernel, Launch, Resources
from compiler.codegen.choice import DEFAULT, Choice, Variant
from compiler.codegen.family import workspace_bytes_of
from compiler.codegen.symbols import symbol_of
from compiler.codegen.worker import Request
from compiler.codegen.workers import Worker, one_worker
from compiler.identity import kernel_identity
from compiler.kernels.canonical import canonical
from compiler.kernels.spec import KernelSpec, signature
from compiler.targets import Target

_MAGIC = b"PFK3"
_PREFIX = struct.Struct(">4s32sI")
"""Magic, SHA-256 of what follows the prefix, bytes of the head; then the head (JSON: launch records, form and size of
each artefact), then the artefacts."""


def read_entry(folder: Path, key: str, symbol: str) -> CompiledKernel | None:
    """The entry, or None if there is none, its bytes are damaged, or it is of another symbol. Its time of change says
    when it was last read: what was not for long is removed first."""
    path = _path(folder, key)
    try:
        raw = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    if len(raw) < _PREFIX.size:
        return None
    magic, digest, head_bytes = _PREFIX.unpack_from(raw)
    body = raw[_PREFIX.size :]
    if magic != _MAGIC or digest != hashlib.sha256(body).digest():
        return None
    kernel = _unpacked(json.loads(body[:head_bytes]), body[head_bytes:])
    return kernel if kernel.symbol == symbol else None


def write_entry(folder: Path, key: str, kernel: CompiledKernel) -> None:
    """Stores an entry: written beside, then renamed, so that a reader sees all of it or none."""
    path = _path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_packed(kernel))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _packed(kernel: CompiledKernel) -> bytes:
    parts = [[artefact.form, len(artefact.content)] for artefact in kernel.artefacts]
    fields = {"symbol": kernel.symbol, "workspace_bytes": kernel.workspace_bytes}
    launches = [asdict(launch) for launch in kernel.launches]
    head = json.dumps({**fields, "launches": launches, "artefacts": parts}).encode()
    body = head + b"".join(artefact.content for artefact in kernel.artefacts)
    return _PREFIX.pack(_MAGIC, hashlib.sha256(body).digest(), len(head)) + body


def _unpacked(head: dict[str, Any], content: bytes) -> CompiledKernel:
    artefacts, start = [], 0
    for form, size_bytes in head["artefacts"]:
        artefacts.append(Artefact(form, content[start : start + size_bytes]))
        start += size_bytes
    launches = tuple(map(_launch, head["launches"]))
    return CompiledKernel(head["symbol"], head["workspace_bytes"], launches, tuple(artefacts))


def _launch(row: dict[str, Any]) -> Launch:
    parsed = {"operands": tuple(row["operands"]), "resources": Resources(**row["resources"])}
    return Launch(**{**row, **parsed})


def _path(folder: Path, key: str) -> Path:
    return folder / KERNELS / key[:2] / f"{key}.kernel"


Progress = Callable[[int, int], None]
"""(kernels done, kernels in all)."""


def workspace_bytes(spec: KernelSpec, target: Target, threads: int, choice: Choice = DEFAULT) -> int:
    """Bytes of scratch that the kernel of `spec` takes as its last operand; 0: it takes none."""
    return workspace_bytes_of(spec, target, threads, choice)


def cache_key(spec: KernelSpec, target: Target, threads: int, choice: Choice = DEFAULT) -> str:
    """Returns a digest of everything that a kernel's object depends on."""
    parts = (kernel_identity(), signature(spec), canonical(target.code_key), str(threads), choice.text)
    text = "\0".join(parts)
    return hashlib.sha256(text.encode()).hexdigest()


def build_kernels(
    specs: Sequence[KernelSpec],
    target: Target,
    *,
    threads: int,
    cache_dir: Path | None,
    jobs: int = 2,
    progress: Progress | None = None,
    choices: Mapping[str, Choice] | None = None,
    started_workers: Sequence[Worker] = (),
    meanwhile: Callable[[], object] = lambda: None,
) -> Mapping[str, CompiledKernel]:
    """Compiles each distinct spec for `target`, keyed by `signature(spec)`, scheduled by `choices[signature(spec)]`.

    `threads` is the most threads the kernels will run on. Kernels that `cache_dir` holds are read from there, the
    others are built in up to `jobs` worker processes and stored, the first of them those that were begun before;
    `meanwhile` is called while any are built. The same arguments give the same bytes.

    Raises: BuildError, naming the kernel, if one cannot be built.
    """
    specs_by_name = {signature(spec): spec for spec in specs}
    variants = {name: Variant(spec, (choices or {}).get(name, DEFAULT)) for name, spec in specs_by_name.items()}
    built = build_variants(
        tuple(variants.values()),
        target,
        threads=threads,
        cache_dir=cache_dir,
        jobs=jobs,
        progress=progress,
        started_workers=started_workers,
        meanwhile=meanwhile,
    )
    return {name: built[variant] for name, variant in variants.items()}


def build_variants(
    variants: Sequence[Variant],
    target: Target,
    *,
    threads: int,
    cache_dir: Path | None,
    jobs: int = 2,
    progress: Progress | None = None,
    started_workers: Sequence[Worker] = (),
    meanwhile: Callable[[], object] = lambda: None,
) -> Mapping[Variant, CompiledKernel]:
    """Builds kernels as `build_kernels` does, for specs that may each be wanted in several schedules. Raises:
    BuildError.
    """
    variants_by_symbol = {symbol_of(variant.spec, variant.choice): variant for variant in variants}
    keys = {
        symbol: cache_key(variant.spec, target, threads, variant.choice)
        for symbol, variant in variants_by_symbol.items()
        if cache_dir is not None
    }
    built: dict[str, CompiledKernel] = {}
    if cache_dir is not None:
        for symbol, key in keys.items():
            entry = read_entry(cache_dir, key, symbol)
            if entry is not None:
                built[symbol] = entry
    report = progress or (lambda done, total: None)
    report(len(built), len(variants_by_symbol))
    missing = [
        Request(v.spec, target, threads, v.choice) for symbol, v in variants_by_symbol.items() if symbol not in built
    ]

    def keep(kernel: CompiledKernel) -> None:
        if cache_dir is not None:
            write_entry(cache_dir, keys[kernel.symbol], kernel)
        built[kernel.symbol] = kernel
        report(len(built), len(variants_by_symbol))

    _build_all(missing, min(jobs, len(missing)), keep, started_workers, meanwhile)
    return {variant: built[symbol] for symbol, variant in variants_by_symbol.items()}


def _build_all(
    missing: Sequence[Request],
    jobs: int,
    keep: Callable[[CompiledKernel], None],
    started_workers: Sequence[Worker],
    meanwhile: Callable[[], object],
) -> None:
    todo: SimpleQueue[Request] = SimpleQueue()
    for request in missing:
        todo.put(request)
    failures: list[Exception] = []
    lock = threading.Lock()

    def drive(started: Worker | None) -> None:
        try:
            with contextlib.nullcontext(started) if started else one_worker() as worker:
                while not failures:
                    kernel = worker.build(todo.get_nowait())
                    with lock:
                        keep(kernel)
        except Empty:
            return
        except Exception as error:
            failures.append(error)

    drivers = [
        threading.Thread(
            target=drive, name=f"kernel-build-{i}", args=(started_workers[i] if i < len(started_workers) else None,)
        )
        for i in range(jobs)
    ]
    for driver in drivers:
        driver.start()
    try:
        if drivers:
            meanwhile()
    finally:
        for driver in drivers:
            driver.join()
    if failures:
        raise failures[0]
