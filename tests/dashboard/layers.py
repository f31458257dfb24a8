"""The layers of two networks as plausible kernels and arena values: what a compiled bundle's manifest looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layer:
    """One 1x1, depth-wise or dense layer: enough to write plausible kernels."""

    name: str
    flops: int
    weight_bytes: int
    output_bytes: int


def mobilenet_layers(batch: int) -> list[Layer]:
    """MobileNetV2's convolutions at 224 px by name, with their work and sizes."""
    layers = [Layer("stem.conv", 2 * batch * 112 * 112 * 27 * 32, 4 * 864, 4 * batch * 32 * 112 * 112)]
    channels, extent = 32, 112
    plan = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    number = 0
    for expansion, out, repeats, first_stride in plan:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            hidden = channels * expansion
            here = f"blocks.{number}"
            if expansion != 1:
                layers.append(_conv(f"{here}.expand", batch, channels, hidden, extent))
            extent //= stride
            pixels = batch * extent * extent
            layers.append(Layer(f"{here}.depthwise", 18 * pixels * hidden, 36 * hidden, 4 * pixels * hidden))
            layers.append(_conv(f"{here}.project", batch, hidden, out, extent))
            channels, number = out, number + 1
    layers.append(_conv("head.conv", batch, 320, 1280, 7))
    layers.append(Layer("classifier", 2 * batch * 1280 * 1000, 4 * 1280 * 1000, 4 * batch * 1000))
    return layers


def _conv(name: str, batch: int, inputs: int, outputs: int, extent: int) -> Layer:
    pixels = batch * extent * extent
    return Layer(name, 2 * pixels * inputs * outputs, 4 * inputs * outputs, 4 * pixels * outputs)


def small_layers(batch: int) -> list[Layer]:
    """A small CNN on 8x8 digits."""
    return [
        _conv("conv1", batch, 9, 16, 8),
        _conv("conv2", batch, 144, 32, 4),
        Layer("dense", 2 * batch * 512 * 10, 4 * 5120, 40 * batch),
    ]


@dataclass(frozen=True)
class Step:
    """The kernels of a training step and the arena's values."""

    kernels: list[dict[str, Any]]
    arena: dict[str, Any]
    memory: dict[str, int]


def training_step(layers: list[Layer], trained: set[str]) -> Step:
    """Forward over all layers, backward down to the first trained one, updates where they apply."""
    kernels: list[dict[str, Any]] = []
    live: list[tuple[str, int, int, int]] = []
    deepest = min((i for i, layer in enumerate(layers) if layer.name in trained), default=len(layers))
    total = len(layers)
    for layer in layers:
        kernels.append(_kernel(f"{layer.name} + relu6", "forward", layer, 1))
    for index in range(total - 1, deepest - 1, -1):
        layer = layers[index]
        if layer.name in trained:
            kernels.append(_kernel(f"d {layer.name}.weight", "backward", layer, 1))
            kernels.append(_kernel(f"update {layer.name}.weight", "update", layer, 0))
        if index > deepest:
            kernels.append(_kernel(f"d {layer.name}.input", "backward", layer, 1))
    position = {kernel["name"]: i for i, kernel in enumerate(kernels)}
    for index, layer in enumerate(layers):
        following = layers[index + 1].name if index + 1 < total else layer.name
        used = max(index + 1, position.get(f"d {following}.weight", 0), position.get(f"d {following}.input", 0))
        live.append((f"{layer.name}.output", layer.output_bytes, index, min(used, len(kernels) - 1)))
        gradient = position.get(f"d {layer.name}.input")
        if gradient is not None:
            live.append((f"d {layer.name}.input", layer.output_bytes, gradient, min(gradient + 3, len(kernels) - 1)))
        weight = position.get(f"d {layer.name}.weight")
        if weight is not None:
            live.append((f"d {layer.name}.weight", layer.weight_bytes, weight, weight + 1))
    values, arena_bytes = _placed(live)
    weights = sum(layer.weight_bytes for layer in layers)
    optimizer = sum(layer.weight_bytes for layer in layers if layer.name in trained)
    memory = {
        "arena_bytes": arena_bytes,
        "weights_bytes": weights,
        "optimizer_bytes": optimizer,
        "peak_bytes": arena_bytes + weights + optimizer,
    }
    return Step(kernels, {"arena_bytes": arena_bytes, "values": values}, memory)


def _kernel(name: str, phase: str, layer: Layer, works: int) -> dict[str, Any]:
    read = layer.weight_bytes + layer.output_bytes if works else 2 * layer.weight_bytes
    return {
        "name": name,
        "phase": phase,
        "flops": layer.flops if works else layer.weight_bytes // 2,
        "bytes_read": read,
        "bytes_written": layer.output_bytes if works else layer.weight_bytes,
    }


def _placed(live: list[tuple[str, int, int, int]]) -> tuple[list[dict[str, Any]], int]:
    placed: list[dict[str, Any]] = []
    for name, size, first, last in sorted(live, key=lambda entry: -entry[1]):
        rivals = sorted(
            (other for other in placed if other["first"] <= last and first <= other["last"]),
            key=lambda other: other["offset_bytes"],
        )
        offset = 0
        for other in rivals:
            if offset + size <= other["offset_bytes"]:
                break
            offset = max(offset, -(-(other["offset_bytes"] + other["size_bytes"]) // 64) * 64)
        placed.append({"name": name, "offset_bytes": offset, "size_bytes": size, "first": first, "last": last})
    return placed, max(entry["offset_bytes"] + entry["size_bytes"] for entry in placed)


def plan_section(layers: list[Layer], trained: set[str]) -> dict[str, Any]:
    """What a compile report says of a plan: a row for each layer, and their sum."""
    rows = [
        {
            "name": layer.name,
            "number": number,
            "operator": "conv2d",
            "learns": ["weight", "bias"] if layer.name in trained else [],
            "elements": layer.weight_bytes // 4 if layer.name in trained else 0,
            "all_elements": layer.weight_bytes // 4,
            "weight_bytes": layer.weight_bytes if layer.name in trained else 0,
            "gradient_bytes": 0,
            "optimizer_bytes": layer.weight_bytes if layer.name in trained else 0,
            "accumulator_bytes": 0,
            "kept_bytes": layer.output_bytes if layer.name in trained else 0,
            "forward_flops": layer.flops,
            "backward_flops": 2 * layer.flops if layer.name in trained else 0,
        }
        for number, layer in enumerate(layers)
    ]
    sums = [name for name in rows[0] if isinstance(rows[0][name], int) and name != "number"]
    totals = {name: sum(int(row[name]) for row in rows) for name in sums}  # type: ignore[call-overload]
    return {"rows": rows, "rows_left_out": 0, "totals": totals, "frozen": [], "cannot_learn": []}


def layers_section(layers: list[Layer], trained: set[str]) -> dict[str, Any]:
    """What a compile report says of the graph before and after the plan; projections are added to what came in."""
    first = min((number for number, layer in enumerate(layers) if layer.name in trained), default=len(layers))
    rows = [
        {
            "name": "/" + layer.name.replace(".", "/") + "/Conv",
            "operators": ["conv2d", "relu6"],
            "nodes": 2,
            "from": sorted({max(number - 1, 0), max(number - 4, 0)} - {number})
            if layer.name.endswith("project")
            else [number - 1][: number > 0],
            "forward": 2,
            **({"backward": 3} if number >= first else {}),
            **({"update": 1} if layer.name in trained else {}),
        }
        for number, layer in enumerate(layers)
    ]
    return {"rows": rows, "rows_left_out": 0, "others": {"forward": 1, "backward": 1}}
