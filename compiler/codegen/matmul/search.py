"""Which schedules a matrix product may have: those that make sense, the one of least estimated cost first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from compiler.codegen.matmul.candidate import Candidate, PanelPlace
from compiler.codegen.matmul.cost import Core, cost, few_sets, is_streamed
from compiler.codegen.tile.tiling import BAND_ROWS, BANDS, divisor_near, slots_of
from compiler.kernels.spec import MatmulSpec

LONG = 1024
"""Steps of a reduction that is worth splitting."""
BLOCK_STEPS = 256
_LONG_BLOCK_STEPS = 384
"""Most steps that all tiles do before the next block of the reduction; and where the second-level cache then still
holds a high block of A."""
_HIGH_BLOCK_ROWS = 256
_UNBLOCKED_STEPS = 384
_STREAMED_STEPS = 64
"""Most steps of a streamed block, beside which the panels of a tile stay in the first-level cache."""
_FLAT_ROWS = 8
_MOST_ROWS = 16
_FAR_ROWS = 8
"""The number of rows that no load reaches from one address: with more, LLVM keeps vectors of A on the stack."""
_MOST_VECTORS = 4
_MOST_CHOICES = 8


@lru_cache(maxsize=4096)
def ranked(spec: MatmulSpec, core: Core, threads: int) -> tuple[Candidate, ...]:
    """The best tile for each way to share and pack, best first, then near variants of the first."""
    slots = slots_of(2.0 * spec.batch * spec.m * spec.n * spec.k, threads)
    best: list[tuple[float, Candidate]] = []
    for way in _ways(spec, core, slots):
        tiles = (with_copies(spec, core, slots, tiled) for tiled in _tiled(spec, core, way))
        priced = [(cost(spec, core, slots, tiled), tiled) for tiled in tiles]
        best.append(min(priced, key=lambda entry: (entry[0], -entry[1].rows * entry[1].vectors)))
    best.sort(key=lambda entry: entry[0])
    first = best[0][1]
    limit = 1.3 * best[0][0]
    near = [candidate for price, candidate in best if price <= limit]
    return tuple(dict.fromkeys([first, *near[1:5], *_variants(spec, core, slots, first)]))[:_MOST_CHOICES]


def with_copies(spec: MatmulSpec, core: Core, slots: int, candidate: Candidate) -> Candidate:
    """The candidate with A's rows copied, if a block of them would not stay in the cache where it lies."""
    if candidate.order == "parts":
        return candidate
    hard_to_read = spec.a_transposed or few_sets(spec.k, core.precision.line)
    copied = replace(candidate, copies_a=hard_to_read and _may_copy(spec, candidate))
    if copied == candidate:
        return candidate
    return min(candidate, copied, key=lambda option: cost(spec, core, slots, option))


def _variants(spec: MatmulSpec, core: Core, slots: int, first: Candidate) -> Iterator[Candidate]:
    """Other tiles of the best way, and with A's rows copied, or not."""
    priced = sorted(
        ((cost(spec, core, slots, tiled), tiled) for tiled in _tiled(spec, core, first)), key=lambda e: e[0]
    )
    widths = {first.vectors}
    for _, tiled in priced:
        if tiled.vectors not in widths:
            widths.add(tiled.vectors)
            yield tiled
    if _may_copy(spec, first):
        yield replace(first, copies_a=not first.copies_a)


def _may_copy(spec: MatmulSpec, candidate: Candidate) -> bool:
    return candidate.goes_by_columns and not spec.products


def _ways(spec: MatmulSpec, core: Core, slots: int) -> Iterator[Candidate]:
    """Every sensible way to share out and to pack, without a tile."""
    in_place: tuple[PanelPlace, ...] = () if spec.b_transposed else ("direct",)
    packed: tuple[PanelPlace, ...] = () if spec.b_panel else ("private",)
    whole: tuple[PanelPlace, ...] = () if spec.b_panel else ("shared",)
    if spec.products == "f16":  # in one pass: sums that wait would be rounded, or twice as large
        yield Candidate(0, 0, "rows", "rows", "shared", spec.k)
        yield Candidate(0, 0, "rows", "columns", "shared", spec.k)
        yield Candidate(0, 0, "columns", "columns", "shared", spec.k)
        return
    k_block = spec.k if spec.k <= _UNBLOCKED_STEPS else _even_block(spec, core)
    if spec.products == "i8":
        yield from _ways_of_bytes(spec, core, k_block)
        return
    if spec.products:
        in_place, packed = (), whole
    if spec.batch >= 2 * slots and spec.batch > 1:
        yield from (Candidate(0, 0, "batch", "columns", panels, k_block) for panels in (*in_place, *packed))
        return
    if is_streamed(spec):
        steps, copies = _streamed_steps(spec, core), few_sets(spec.m, core.precision.line)
        for panels in (*in_place, *packed):
            if _sums_stay(spec, core, slots):
                yield Candidate(0, 0, "split", "columns", panels, steps)
            else:
                yield Candidate(0, 0, "columns", "parts", panels, steps, copies)
                yield Candidate(0, 0, "rows", "parts", panels, steps, copies)
    b_stays = core.item_bytes * spec.k * spec.n <= core.l2_bytes // 2
    flat = spec.m <= _FLAT_ROWS and not spec.b_transposed and not b_stays
    if spec.batch == 1 and (spec.k >= LONG or flat) and not is_streamed(spec):
        # With one row tile B is used once, so it is read in the order in which it lies.
        row_bytes = core.item_bytes * spec.n
        fits = core.l1_bytes // row_bytes if flat else core.l2_bytes // (2 * core.item_bytes * (spec.m + spec.n))
        most = max(16, min(BLOCK_STEPS, fits))
        steps = divisor_near(spec.k, most // 2, most)
        yield from (Candidate(0, 0, "split", "columns", panels, steps) for panels in (*in_place, *packed))
        if flat:
            return
    if b_stays and not (spec.a_transposed and spec.k > _UNBLOCKED_STEPS):
        yield from (Candidate(0, 0, "rows", "rows", panels, spec.k) for panels in (*in_place, *whole))
    else:
        yield from (Candidate(0, 0, "rows", "columns", panels, k_block) for panels in (*in_place, *packed))
    yield from (Candidate(0, 0, "columns", "columns", panels, k_block) for panels in (*in_place, *packed))


def _ways_of_bytes(spec: MatmulSpec, core: Core, k_block: int) -> Iterator[Candidate]:
    """Those of a product whose A is packed first, by its nature, and B always."""
    yield Candidate(0, 0, "columns", "columns", "private", k_block)  # a panel is packed where it is hot
    if core.item_bytes * spec.k * spec.n <= core.l2_bytes // 2:
        yield Candidate(0, 0, "rows", "rows", "shared", spec.k)


def _tiled(spec: MatmulSpec, core: Core, way: Candidate) -> Iterator[Candidate]:
    if core.tiles:
        for bands in range(1, min(BANDS, -(-spec.m // BAND_ROWS)) + 1):
            for width in range(1, min(BANDS, -(-spec.n // core.lanes)) + 1):
                yield replace(way, rows=bands * BAND_ROWS, vectors=width)
        return
    registers = core.vector_registers - core.spare_registers
    vectors = -(-spec.n // core.lanes)
    widths = [spec.b_panel // core.lanes] if spec.b_panel else range(1, min(_MOST_VECTORS, vectors) + 1)
    reached = _MOST_ROWS if spec.a_transposed else 1 + core.reach_bytes // (core.item_bytes * spec.k)
    most_rows = min(_MOST_ROWS, spec.m, max(reached, _FAR_ROWS))
    for width in widths:
        each = width * core.precision.sum_size + core.vectors_of_a
        for height in range(1, min(most_rows, (registers - width) // each) + 1):
            yield replace(way, rows=height, vectors=width)


def _even_block(spec: MatmulSpec, core: Core) -> int:
    """Steps of a block of a reduction that is longer."""
    long = core.l2_bytes // (2 * core.item_bytes * _LONG_BLOCK_STEPS) >= _HIGH_BLOCK_ROWS
    most = _LONG_BLOCK_STEPS if long else BLOCK_STEPS
    if core.tiles:  # whole registers of steps, but for the last block
        return most
    return divisor_near(spec.k, most // 2, most)


def _sums_stay(spec: MatmulSpec, core: Core, slots: int) -> bool:
    """Whether each slot's sums of all of C wait in half of a second-level cache, and all slots' in one."""
    return max(2, slots) * core.precision.sum_bytes * spec.m * spec.n <= core.l2_bytes


def _streamed_steps(spec: MatmulSpec, core: Core) -> int:
    """Steps of a block: more where all of it is a small part of the first-level cache."""
    fits = core.l1_bytes // (4 * core.item_bytes * (spec.m + spec.n))
    most = min(max(fits, _STREAMED_STEPS), BLOCK_STEPS)
    return divisor_near(spec.k, most // 2, most)


def panel_widths(n: int, core: Core) -> list[int]:
    """Columns that panels of a stored B may have: whole vectors, and n whole panels."""
    sizes = (vectors * core.lanes for vectors in range(1, _MOST_VECTORS + 1))
    return [width for width in sizes if n % width == 0]
