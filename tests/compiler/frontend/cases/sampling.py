"""Import rows of the family: elements read between grid points, grids, determinants."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import Case, F, ints

IMAGE, GRID = (F, (2, 3, 5, 4)), (F, (2, 3, 6, 2))
VOLUME, POINTS = (F, (2, 2, 3, 4, 2)), (F, (2, 2, 3, 2, 3))


def cases() -> Iterator[Case]:
    for padding in ("zeros", "border", "reflection"):
        for aligned in (0, 1):
            for mode in ("linear", "nearest", "cubic"):
                attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
                yield Case("GridSample", (IMAGE, GRID), attributes, opset=20, label=f"{mode}-{padding}-{aligned}")
    for mode in ("linear", "nearest"):
        yield Case(
            "GridSample", (VOLUME, POINTS), {"mode": mode, "padding_mode": "border"}, opset=20, label=f"{mode}-3d"
        )
    yield Case("GridSample", (IMAGE, GRID), {"mode": "bilinear"}, opset=16, label="opset-16")
    for aligned in (0, 1):
        attributes = {"align_corners": aligned}
        yield Case("AffineGrid", ((F, (2, 2, 3)), ints(2, 3, 4, 5)), attributes, opset=20, label=f"{aligned}")
        yield Case("AffineGrid", ((F, (2, 3, 4)), ints(2, 3, 2, 4, 5)), attributes, opset=20, label=f"3d-{aligned}")
    for rows in (1, 2, 3, 4):
        yield Case("Det", ((F, (2, 3, rows, rows)),), label=f"{rows}")
