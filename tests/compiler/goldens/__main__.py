"""`python -m tests.compiler.goldens`: renew all goldens, to be read in the diff."""

from __future__ import annotations

from tests.compiler.goldens.golden import files, renewed

for name, path in files().items():
    path.write_text(renewed(name, path.read_text()))
