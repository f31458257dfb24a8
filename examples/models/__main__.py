"""Command line: write one example model to a file."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

from examples.models import MODELS


def main() -> None:
    """Parse the command line; every keyword of a model's builder is an option."""
    parser = argparse.ArgumentParser(prog="python -m examples.models", description=__doc__)
    chosen = parser.add_subparsers(dest="model", required=True)
    for name, build in MODELS.items():
        options = chosen.add_parser(name, help=(build.__doc__ or "").splitlines()[0])
        options.add_argument("--out", type=Path, required=True, help="where to write the .onnx file")
        for option, parameter in inspect.signature(build).parameters.items():
            default = parameter.default
            if isinstance(default, bool):
                options.add_argument(f"--{option.replace('_', '-')}", action="store_true")
            else:
                options.add_argument(f"--{option.replace('_', '-')}", type=type(default), default=default)
    arguments = vars(parser.parse_args())
    build, out = MODELS[arguments.pop("model")], arguments.pop("out")
    model = build(**arguments)
    out.write_bytes(model)
    print(f"{out}: {len(model):,} bytes")


if __name__ == "__main__":
    main()
