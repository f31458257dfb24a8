"""Import rows of the family: images and signals made larger or smaller."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.compiler.frontend.cases.case import Case, F, ints

IMAGE = (F, (2, 3, 6, 4))
PLACES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


def scales(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


def cases() -> Iterator[Case]:
    for places in PLACES:
        for mode in ("nearest", "linear", "cubic"):
            attributes: dict[str, object] = {"mode": mode, "coordinate_transformation_mode": places}
            yield Case("Resize", (IMAGE, None, None, ints(2, 3, 9, 3)), attributes, opset=19, label=f"{mode}-{places}")
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        attributes = {"nearest_mode": rounding, "coordinate_transformation_mode": "asymmetric"}
        yield Case("Resize", (IMAGE, None, scales(1, 1, 0.6, 2.5)), attributes, label=rounding)
    for mode in ("nearest", "linear", "cubic"):
        yield Case("Resize", (IMAGE, None, scales(1, 1, 2, 3)), {"mode": mode}, label=f"{mode}-twice")
        crop = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
        region = scales(0, 0, 0.2, -0.3, 1, 1, 0.9, 0.8)
        yield Case("Resize", (IMAGE, region, None, ints(2, 3, 5, 7)), crop, label=f"{mode}-crop")
    for mode in ("linear", "cubic"):
        for excludes in (0, 1):
            attributes = {"mode": mode, "antialias": 1, "exclude_outside": excludes, "cubic_coeff_a": -0.5}
            yield Case(
                "Resize", (IMAGE, None, scales(1, 1, 0.4, 0.7)), attributes, label=f"{mode}-antialias-{excludes}"
            )
    yield Case(
        "Resize", (IMAGE, None, scales(1, 1, 1.5, 1.5)), {"mode": "cubic", "exclude_outside": 1}, label="excludes"
    )
    for policy in ("not_larger", "not_smaller"):
        attributes = {"keep_aspect_ratio_policy": policy, "axes": [3, 2], "mode": "linear"}
        yield Case("Resize", (IMAGE, None, None, ints(8, 7)), attributes, label=policy)
    yield Case("Resize", ((F, (2, 3, 5)), None, scales(1, 1, 2)), {"mode": "linear"}, label="signal")
    yield Case("Resize", ((F, (1, 2, 3, 4, 2)), None, scales(1, 1, 2, 2, 2)), {"mode": "nearest"}, label="volume")
    yield Case("Resize", ((F, (1, 1, 3, 1, 4)), None, scales(1, 1, 2, 1, 2)), {"mode": "linear"}, label="volume-linear")
