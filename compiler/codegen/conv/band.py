"""Filling a band: copying the input rows of one unit of work between zero borders."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from compiler.codegen.conv.plan import Band
from compiler.codegen.tile.packing import copy_run, zero_run
from compiler.codegen.tir.tir import Block, Buffer, Value, index


@dataclass(frozen=True)
class Image:
    """The input images: [images, height, width, channels]."""

    buffer: Buffer
    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class Unit:
    """A unit of work: images from `image` on (`images` of them), output rows q from `first` on (`rows`), a group."""

    image: Value
    images: Value | int
    first: Value
    rows: Value | int
    group: Value | int = 0


@dataclass(frozen=True)
class Source:
    """The place where a unit's input is read: `base` of its first image's first band row, and the distance of images
    and rows.
    """

    buffer: Buffer
    base: Value
    image_stride: int
    row_stride: int


def units(band: Band, images: int, out_rows: int) -> tuple[int, int]:
    """(groups of images, blocks of rows)."""
    return -(-images // band.images), -(-out_rows // band.out_rows)


def unit_of(block: Block, band: Band, number: Value, images: int, out_rows: int, group: Value | int = 0) -> Unit:
    """Unit `number` of `groups * blocks`, one group of its channels."""
    _, blocks = units(band, images, out_rows)
    pictures = block.let(tirx.truncdiv(number, index(blocks)), "group")
    image = block.let(pictures * band.images, "image")
    first = block.let((number - pictures * blocks) * band.out_rows, "first_row")
    return Unit(
        image,
        _part(block, band.images, image, images),
        first,
        _part(block, band.out_rows, first, out_rows),
        group,
    )


def _part(block: Block, size: int, first: Value, extent: int) -> Value | int:
    if extent % size == 0:
        return size
    return block.let(tirx.min(index(size), index(extent) - first), "count")


def fill(block: Block, band: Band, image: Image, unit: Unit, workspace: Buffer, base: Value, lanes: int) -> Source:
    """Copies the unit's rows to `base` of the workspace if the band is a copy, and returns where to read them."""
    width = band.width * band.channels
    row_elements = image.width * image.channels
    channel = unit.group * band.channels
    start = unit.first * band.row_step + band.top
    if not band.copied:
        row_start = (unit.image * image.height + start) * row_elements
        at = block.let(row_start + band.left * image.channels + channel, "source")
        return Source(image.buffer, at, image.height * row_elements, row_elements)
    low, high = max(0, -band.left), min(band.width, image.width - band.left)

    def row(body: Block, picture: Value, number: Value) -> None:
        place = body.let(base + picture * band.image_elements + number * width, "band_row")
        source = body.let(start + number, "source_row")

        def copy(inner: Block) -> None:
            picked = ((unit.image + picture) * image.height + source) * row_elements
            zero_run(inner, workspace, place, low * band.channels, lanes)
            first = inner.let(picked + (low + band.left) * image.channels + channel, "source")
            _copy_pixels(inner, band, image, first, workspace, place + low * band.channels, high - low, lanes)
            zero_run(inner, workspace, place + high * band.channels, (band.width - high) * band.channels, lanes)

        inside = tirx.And(tirx.LE(index(0), source), tirx.LT(source, index(image.height)))
        body.when(inside, copy, lambda inner: zero_run(inner, workspace, place, width, lanes))

    block.loop(unit.images, lambda b, i: b.loop(band.rows, lambda c, r: row(c, i, r), name="band_row"), name="image")
    return Source(workspace, base, band.image_elements, width)


def _copy_pixels(
    block: Block, band: Band, image: Image, first: Value, workspace: Buffer, place: Value, count: int, lanes: int
) -> None:
    """The channels of the band of `count` pixels in a row."""
    if band.channels == image.channels:
        copy_run(block, image.buffer, first, workspace, place, count * band.channels, lanes)
        return

    def pixel(body: Block, i: Value) -> None:
        source, target = first + i * image.channels, place + i * band.channels
        copy_run(body, image.buffer, source, workspace, target, band.channels, lanes)

    block.loop(count, pixel, name="pixel")
