"""The machine's limits: what their program measures is what the machine can do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "benchmarks/limits.c"


def test_the_peak_is_that_of_whole_vectors(tmp_path: Path) -> None:
    """clang would split them in two for this processor, and every share of the peak would be told twice as large."""
    made = tmp_path / "limits.s"
    words = ["-O3", "-target", "x86_64-linux-gnu", "-mcpu=cascadelake", "-ffp-contract=fast", "-S", "-o", str(made)]
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *words, str(SOURCE)], check=True, capture_output=True)
    multiplied = re.findall(r"^\s+vfmadd\w+ps\s.*%([xyz]mm)\d+", made.read_text(errors="replace"), re.MULTILINE)
    assert len(multiplied) >= 12
    assert set(multiplied) == {"zmm"}
