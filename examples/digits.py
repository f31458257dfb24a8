"""scikit-learn's bundled handwritten digits as data sets: `python -m examples.digits --out digits.npz`."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def digits_npz(part: slice = slice(None)) -> bytes:
    """An npz of a part of one seeded shuffle: x f32 [n, 1, 8, 8] in 0..1, y i64 [n]."""
    digits = load_digits()
    chosen = np.random.default_rng(0).permutation(len(digits.target))[part]
    images = (digits.images[chosen] / 16.0).astype(np.float32)[:, None, :, :]
    buffer = io.BytesIO()
    np.savez(buffer, x=images, y=digits.target[chosen].astype(np.int64))
    return buffer.getvalue()


def main() -> None:
    """Write all 1,797 digits to a file."""
    parser = argparse.ArgumentParser(prog="python -m examples.digits", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where to write the .npz file")
    out = parser.parse_args().out
    data = digits_npz()
    out.write_bytes(data)
    print(f"{out}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
