"""TIR of what all Winograd kernels share: where a tile lies, reading it with its zero border, and its transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.tile.packing import copy_run, zero_run
from compiler.codegen.tile.register_tile import RegisterTile, load_wide, wide
from compiler.codegen.tile.share import share_out
from compiler.codegen.tir.tir import Block, Buffer, Value, divide, index
from compiler.codegen.winograd.plan import Layout, WinogradPlan
from compiler.codegen.winograd.points import Rows
from compiler.codegen.winograd.transform import transform

SlotBody = Callable[[Block, Value, Value, Value], None]
"""(block, slot, first unit, end of units)."""


@dataclass(frozen=True)
class Turn:
    """A block of tiles: its first tile, its number among those that are summed up together, where its transformed
    inputs lie, and how its work is shared out.
    """

    first: Value
    number: Value
    inputs: Value
    share: Callable[[Block, int, SlotBody], None]


def each_turn(block: Block, plan: WinogradPlan, at: Layout, body: Callable[[Block, Turn], None]) -> None:
    """Block after block by all threads together, or each thread its own blocks."""
    if plan.split == "columns":

        def together(inner: Block, units: int, work: SlotBody) -> None:
            share_out(inner, plan.slots, units, work)

        def turn(inner: Block, number: Value) -> None:
            body(inner, Turn(inner.let(number * plan.block, "first"), number, index(0), together))

        block.loop(plan.blocks, turn, name="block")
        return

    def slot_body(outer: Block, slot: Value, begin: Value, end: Value) -> None:
        inputs = outer.let(slot * at.stride, "inputs")

        def alone(inner: Block, units: int, work: SlotBody) -> None:
            work(inner, slot, index(0), index(units))

        def turn(inner: Block, number: Value) -> None:
            body(inner, Turn(inner.let((begin + number) * plan.block, "first"), number, inputs, alone))

        outer.loop(end - begin, turn, name="block")

    share_out(block, plan.slots, plan.blocks, slot_body)


@dataclass(frozen=True)
class TilePlace:
    """The image of a tile and its first output."""

    image: Value
    y: Value
    x: Value


def place_of(block: Block, plan: WinogradPlan, tile: Value) -> TilePlace:
    """Returns where tile number `tile` lies."""
    row, across = divide(block, tile, plan.tiles_across)
    image, down = divide(block, row, plan.tiles_down)
    return TilePlace(image, block.let(down * plan.outputs, "y"), block.let(across * plan.outputs, "x"))


@dataclass(frozen=True)
class Picture:
    """Images [n, height, width, channels] of which a tile reads `size` x `size` from (y - top, x - left) on."""

    buffer: Buffer
    height: int
    width: int
    channels: int
    top: int
    left: int
    size: int


@dataclass(frozen=True)
class Square:
    """The place where the elements of one tile are read: (row, column, channel) at `base + row * row_stride + ...`."""

    buffer: Buffer
    base: Value
    row_stride: int
    column_stride: int


def with_square(
    block: Block,
    plan: WinogradPlan,
    picture: Picture,
    place: TilePlace,
    patch: tuple[Buffer, Value],
    body: Callable[[Block, Square], None],
) -> None:
    """Runs `body` on a tile's inputs: where they lie, or at the border on a copy with zeros around it, in `patch`."""
    c, size = picture.channels, picture.size
    y, x = block.let(place.y - picture.top, "iy"), block.let(place.x - picture.left, "ix")
    base = block.let(((place.image * picture.height + y) * picture.width + x) * c, "source")
    whole = Square(picture.buffer, base, picture.width * c, c)

    def border(inner: Block) -> None:
        _copy(inner, picture, base, y, x, patch)
        body(inner, Square(*patch, size * c, c))

    last_y = (plan.tiles_down - 1) * plan.outputs - picture.top + size
    last_x = (plan.tiles_across - 1) * plan.outputs - picture.left + size
    if not picture.top and not picture.left and last_y <= picture.height and last_x <= picture.width:
        body(block, whole)
        return
    if min(picture.height, picture.width) < size:
        border(block)
        return
    rows = tirx.And(tirx.LE(index(0), y), tirx.LE(y, index(picture.height - size)))
    columns = tirx.And(tirx.LE(index(0), x), tirx.LE(x, index(picture.width - size)))
    block.when(tirx.And(rows, columns), lambda inner: body(inner, whole), border)


def _copy(block: Block, picture: Picture, base: Value, y: Value, x: Value, patch: tuple[Buffer, Value]) -> None:
    """The tile's inputs to `patch`, zeros where there is no image."""
    buffer, start = patch
    c, size, lanes = picture.channels, picture.size, 16

    def pixel(body: Block, i: Value, j: Value) -> None:
        source = body.let(base + (i * picture.width + j) * c, "pixel")
        place = body.let(start + (i * size + j) * c, "place")
        row = tirx.And(tirx.LE(index(0), y + i), tirx.LT(y + i, index(picture.height)))
        column = tirx.And(tirx.LE(index(0), x + j), tirx.LT(x + j, index(picture.width)))
        body.when(
            tirx.And(row, column),
            lambda b: copy_run(b, picture.buffer, source, buffer, place, c, lanes),
            lambda b: zero_run(b, buffer, place, c, lanes),
        )

    block.loop(size, lambda b, i: b.loop(size, lambda d, j: pixel(d, i, j), name="column"), name="row")


def spread(
    block: Block,
    rows: Rows,
    square: Square,
    channels: int,
    lanes: int,
    target: tuple[Buffer, Value, int],
) -> None:
    """Transforms all channels of a square; element (i, j) of the result goes to plane `i * n + j` of `target` (buffer,
    first element, distance of planes).
    """
    buffer, place, plane = target
    size = len(rows)

    def vector(body: Block, number: Value) -> None:
        source = body.let(wide(square.base + number * lanes), "source")
        out = body.let(wide(place + number * lanes), "out")

        def get(inner: Block, i: int, j: int) -> Value:
            return load_wide(square.buffer, source + wide(i * square.row_stride + j * square.column_stride), lanes)

        def put(inner: Block, i: int, j: int, value: Value) -> None:
            store_wide(inner, buffer, out + wide((i * size + j) * plane), value, lanes)

        transform(body, rows, get, put)

    block.loop(channels // lanes, vector, name="channels")


def store_wide(block: Block, buffer: Buffer, flat: Value, value: Value, lanes: int) -> None:
    """Writes a vector at an int64 index."""
    block.store_at(buffer, flat if lanes == 1 else tirx.Ramp(flat, wide(1), lanes), value)


def put_tile(block: Block, tile: RegisterTile, buffer: Buffer, place: Value, stride: int, *, add: bool) -> None:
    """Stores a tile of whole vectors from an int64 index on, or adds it to what is there."""
    for row in range(tile.rows):
        for start, width in zip(tile.starts, tile.columns.widths, strict=True):
            flat = place + wide(row * stride + start)
            value = tile.get(row, start, width)
            store_wide(block, buffer, flat, load_wide(buffer, flat, width) + value if add else value, width)
