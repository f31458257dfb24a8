"""Whether another checkout compiles the same steps: kernels, call order, offsets, and the weights after five steps.

For a change that moves code and should move nothing else. Each checkout records what it builds, in a process of its
own; the records are then compared. What decides an object's bytes is hashed without its symbol names, since these are
digests of specs, which a new field changes.

    python -m benchmarks.equivalence record build/after.json
    python -m benchmarks.equivalence compare build/before.json build/after.json
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from benchmarks.definitions import Workload
from benchmarks.prepare import BENCH, Prepared, plan_of, prepare
from benchmarks.sides import data_arguments, native_target
from compiler.api import BuildSettings, compile_training, load_target
from compiler.bundle.archive import Bundle
from compiler.kernels.spec import signature
from compiler.pipeline import compile_step
from compiler.spec.documents import TrainingSpec
from compiler.stages import CompiledStep

STEPS = 5


@dataclass(frozen=True)
class Case:
    """One step to build: a bench model, a batch, a plan, and what else the spec says."""

    model: str
    batch: int
    plan: str
    spec: Mapping[str, object]


SGD = {"optimizer": {"kind": "sgd", "learning_rate": 1e-3, "momentum": 0.9}}
ADAMW = {"optimizer": {"kind": "adamw", "learning_rate": 1e-4}}
CASES: Mapping[str, Case] = {
    "mobilenet_v2 full": Case("mobilenet_v2", 8, "full", SGD),
    "mobilenet_v2 sparse": Case("mobilenet_v2", 8, "sparse", SGD),
    "mobilenet_v2 full, 180 MB": Case("mobilenet_v2", 8, "full", {**SGD, "memory_limit_bytes": 180_000_000}),
    "mobilenet_v2_035 bias-only": Case("mobilenet_v2_035", 8, "bias-only", SGD),
    "resnet50 sparse": Case("resnet50", 4, "sparse", SGD),
    "efficientnet_lite0 full": Case("efficientnet_lite0", 8, "full", SGD),
    "vit_tiny full": Case("vit_tiny", 4, "full", ADAMW),
    "distilbert full": Case("distilbert", 4, "full", SGD),
    "bert sparse": Case("bert", 2, "sparse", ADAMW),
    "gpt2 sparse": Case("gpt2", 1, "sparse", SGD),
    "llama full": Case("llama", 1, "full", {"optimizer": {"kind": "sgd", "learning_rate": 1e-3}}),
}


def record(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What this checkout builds for each case."""
    for name in names:
        case = CASES[name]
        prepared = prepare(f"equivalence_{case.model}_b{case.batch}", Workload(case.model, case.batch))
        yield name, _record(prepared, case)


def _record(prepared: Prepared, case: Case) -> dict[str, Any]:
    spec = TrainingSpec.parse({"batch": case.batch, "threads": 2, **case.spec})
    model, plan = prepared.onnx_path.read_bytes(), plan_of(case.model, case.plan)
    cache = BENCH / "kernels"
    cache.mkdir(parents=True, exist_ok=True)
    settings = BuildSettings(plan=plan, spec=spec, target=load_target(native_target()), cache_dir=cache)
    step, bundle = compile_step(model, settings), compile_training(model, settings)
    return {"calls": list(_calls(step)), "memory": bundle.manifest["memory"], **_train(bundle, prepared)}


def _calls(step: CompiledStep) -> Iterator[list[object]]:
    """Each call of both programs: what it is, its object, and where its operands and its workspace lie."""
    for name, program in sorted(step.programs.items()):
        for position, call in enumerate(program.calls):
            kernel = step.kernels[signature(call.spec)]
            places = [step.memory.placements[name, value] for value in (*call.inputs, *call.outputs)]
            workspace = step.memory.workspaces.get((name, position))
            yield [
                name,
                type(call.spec).__name__,
                code_digest(kernel.artefacts[0].content),
                [f"{place.region}+{place.offset_bytes}:{place.size_bytes}" for place in places],
                workspace.offset_bytes if workspace is not None else None,
            ]


def _train(bundle: Bundle, prepared: Prepared) -> dict[str, Any]:
    """Losses of some steps on the bundle's own weights, and a digest of each tensor after them."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
            archive.extractall(folder, filter="data")
        after = Path(folder) / "after.safetensors"
        command = [str(Path(folder) / "bin/step"), "train", "--weights", str(Path(folder) / "weights.safetensors")]
        command += ["--order", "sequential", "--steps", str(STEPS), "--save", str(after), *data_arguments(prepared)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        tensors = load_file(after)
    return {
        "losses": [event["loss"] for event in events if event["event"] == "step"],
        "weights": {name: hashlib.sha256(array.tobytes()).hexdigest()[:16] for name, array in sorted(tensors.items())},
    }


# ------------------------------------------------------------------------------------------------------ object files

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_ALLOCATED, _RELOCATIONS, _NO_BYTES = 2, 4, 8


def code_digest(data: bytes) -> str:
    """Digest of an ELF object's code and data, and of its relocations, with our kernels' symbols left out.

    Source: the System V ABI's object file format, 64 bit, little endian.
    """
    header = _HEADER.unpack_from(data)
    sections = [_SECTION.unpack_from(data, header[6] + i * _SECTION.size) for i in range(header[12])]
    names = sections[header[13]][4]
    digest = hashlib.sha256()
    for name, kind, flags, _, offset, size, link, info, *_ in sections:
        title = _text(data, names + name)
        if flags & _ALLOCATED and kind != _NO_BYTES:
            digest.update(title + b"\0" + data[offset : offset + size])
        elif kind == _RELOCATIONS and sections[info][2] & _ALLOCATED:
            for at, what, addend in _RELOCATION.iter_unpack(data[offset : offset + size]):
                symbol = _symbol(data, sections, link, what >> 32)
                digest.update(f"{at} {what & 0xFFFFFFFF} {addend} {symbol!r}".encode())
    return digest.hexdigest()[:16]


def _symbol(data: bytes, sections: list[tuple[int, ...]], table: int, number: int) -> bytes:
    name, _, _, section, _, _ = _SYMBOL.unpack_from(data, sections[table][4] + number * _SYMBOL.size)
    return _text(data, sections[sections[table][6]][4] + name) or str(section).encode()


def _text(data: bytes, offset: int) -> bytes:
    return re.sub(rb"pf_[0-9a-f]{16}", b"pf", data[offset : data.index(b"\0", offset)])


# --------------------------------------------------------------------------------------------------------- comparing


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two records of one case, in words."""
    found = []
    if len(before["calls"]) != len(after["calls"]):
        found.append(f"{len(before['calls'])} calls, then {len(after['calls'])}")
    pairs = list(zip(before["calls"], after["calls"], strict=False))
    for column, what in ((1, "families"), (2, "kernel objects"), (3, "operand places"), (4, "workspaces")):
        other = [i for i, (old, new) in enumerate(pairs) if old[column] != new[column]]
        if other:
            first = other[0]
            found.append(f"{len(other)} {what}, first at call {first}: {pairs[first][0]} then {pairs[first][1]}")
    if before["memory"] != after["memory"]:
        found.append(f"memory {before['memory']} then {after['memory']}")
    if before["losses"] != after["losses"]:
        found.append(f"losses {before['losses']} then {after['losses']}")
    was, now = _by_meaning(before["weights"]), _by_meaning(after["weights"])
    changed = [name for name in was | now if was.get(name) != now.get(name)]
    if changed:
        found.append(f"{len(changed)} tensors after {STEPS} steps, such as {changed[0]}")
    return found


def _by_meaning(weights: Mapping[str, str]) -> dict[str, object]:
    """Digests by name; of constants, whose names are ours to choose, all together."""
    constants = sorted(digest for name, digest in weights.items() if name.startswith("constant."))
    return {**{name: one for name, one in weights.items() if not name.startswith("constant.")}, "constants": constants}


def compare(before: Path, after: Path) -> int:
    """Prints a line per case; returns how many differ."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    differing = 0
    for name in old:
        if name not in new:
            print(f"{name:28}  not recorded in {after}")
            continue
        found = differences(old[name], new[name])
        differing += bool(found)
        kernels = len({call[2] for call in new[name]["calls"]})
        same = f"same: {len(new[name]['calls'])} calls, {kernels} kernels, {len(new[name]['weights'])} tensors"
        print(f"{name:28}  {'; '.join(found) or same}")
    return differing


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equivalence", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    one = actions.add_parser("record", help="build every case and write what came of it")
    one.add_argument("out", type=Path)
    one.add_argument("--case", action="append", choices=list(CASES), help="only these (default: all)")
    two = actions.add_parser("compare", help="compare two records; the exit code is 1 if they differ")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "compare":
        return 1 if compare(arguments.before, arguments.after) else 0
    found: dict[str, Any] = {}
    for name, body in record(arguments.case or list(CASES)):
        found[name] = body
        arguments.out.write_text(json.dumps(found))
        print(f"{name:28}  {len(body['calls'])} calls, loss {body['losses'][-1]:.6f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
