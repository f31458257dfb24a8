"""Import rows of the family: sums of products by index letters."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.frontend.cases.case import Case, F, floats

EQUATIONS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
    ("ij,jk", ((2, 3), (3, 4))),
    ("ba,cb", ((3, 2), (4, 3))),
    ("ii->i", ((3, 3),)),
    ("biij->jb", ((2, 3, 3, 4),)),
    ("bij->b", ((2, 3, 4),)),
    ("i,j->ij", ((3,), (4,))),
    ("bi,bi->b", ((2, 4), (2, 4))),
    ("...ij,...jk->...ik", ((2, 3, 4, 5), (2, 3, 5, 2))),
    ("b...,b...->...", ((2, 3, 4), (2, 3, 4))),
    ("i...j->j...", ((2, 3, 4),)),
    ("nid,idjo->nijo", ((2, 3, 4), (3, 4, 2, 5))),
    ("ab,bc,cd,ae->de", ((2, 3), (3, 4), (4, 5), (2, 3))),
    ("aB,Bc->cB", ((2, 3), (3, 4))),
    ("bij,bjk,bk->bi", ((2, 3, 4), (2, 4, 5), (2, 5))),
    ("...a,...a", ((2, 3, 4), (2, 3, 4))),
    ("abc,cb->a", ((2, 3, 4), (4, 3))),
    ("i,->i", ((3,), ())),
)


def cases() -> Iterator[Case]:
    for equation, shapes in EQUATIONS:
        # Run-time inputs share their first axis, the batch.
        operands = tuple((F, shape) if shape[:1] == shapes[0][:1] else floats(*shape) for shape in shapes)
        yield Case("Einsum", operands, {"equation": equation}, label=equation)
    yield Case("Einsum", ((F, (2, 5, 4)), floats(3, 4, 6)), {"equation": "n t d, e d h -> n t e h"}, label="known")
