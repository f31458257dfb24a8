"""`make round-trip`: every model out and back, as a table."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from tests.round_trip.brought import Brought, Upsampler, encoder, norm_net, of_zoo
from tests.round_trip.check import travel

TORCHVISION = (
    "resnet18",
    "resnet50",
    "wide_resnet50_2",
    "densenet",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "shufflenet_v2_x0_5",
    "mnasnet0_5",
    "efficientnet_b0",
    "squeezenet1_1",
    "googlenet",
    "convnext",
    "swin",
    "vit",
)
TRANSFORMERS = (
    "bert",
    "roberta",
    "albert",
    "distilbert",
    "deberta_v2",
    "electra",
    "gpt2",
    "opt",
    "mistral",
    "qwen2",
    "gemma",
    "llama",
    "t5",
    "deit",
    "mobilevit",
    "clip_vision",
)
OTHERS = ("alibi", "edited_in_place")
"""A mask of -inf that is added to scores is a constant of the step; what is written through a mask is a choice."""


def all_models() -> Mapping[str, Callable[[], Brought]]:
    """Name -> what makes it."""
    found: dict[str, Callable[[], Brought]] = {
        f"norms {norms}": partial(norm_net, norms) for norms in ("fold", "frozen", "train")
    }
    found["transposed fold"] = partial(norm_net, "fold", Upsampler)
    found["nn.TransformerEncoder"] = encoder
    found |= {name: partial(of_zoo, name) for name in (*TORCHVISION, *TRANSFORMERS, *OTHERS)}
    return found | {f"{name} fold": partial(of_zoo, name, "fold") for name in ("resnet18", "mobilenet_v2", "densenet")}


def main(wanted: list[str]) -> int:
    """Print a line per model; the number of those that did not come home right."""
    wrong = 0
    print(f"{'model':<24}{'learned':>9}{'of':>6}{'binary':>10}{'ORT':>10}{'update':>10}{'s':>7}  problems")
    for name, make in all_models().items():
        if wanted and name not in wanted:
            continue
        started = time.monotonic()
        try:
            trip = travel(make())[1]
        except Exception as problem:
            wrong += 1
            print(f"{name:<24} {type(problem).__name__}: {str(problem)[:600]}")
            if "-v" in sys.argv:
                traceback.print_exc()
            continue
        wrong += bool(trip.problems)
        print(
            f"{name:<24}{trip.trained:>9}{trip.tensors:>6}{trip.board:>10.1e}{trip.runtime:>10.1e}{trip.update:>10.1e}"
            f"{time.monotonic() - started:>7.1f}  {'; '.join(trip.problems[:4]) or 'none'}",
            flush=True,
        )
    return wrong


if __name__ == "__main__":
    sys.exit(min(main([one for one in sys.argv[1:] if one != "-v"]), 1))
