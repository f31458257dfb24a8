"""What travels compressed, and what never does."""

from __future__ import annotations

import gzip
from pathlib import Path

from service.base.compression import LEAST_BYTES
from tests.dashboard.conftest import make_farm


def test_pages_and_their_files_are_compressed_for_who_takes_it(tmp_path: Path) -> None:
    seeded = make_farm(tmp_path)
    browser = seeded.browser()
    for path in ("/dashboard", f"/dashboard/runs/{seeded.ids.sparse_run}", "/openapi.json", "/dashboard/runs.csv"):
        with browser.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            sent = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip", path
        assert "Accept-Encoding" in answer.headers["vary"]
        plain = browser.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert len(sent) < len(plain.content) / 2
        if path.endswith("csv"):
            assert gzip.decompress(sent) == plain.content
    seeded.farm.close()


def test_neither_the_api_nor_an_answer_to_a_form_is_compressed(tmp_path: Path) -> None:
    """They may hold a secret beside the asker's words; the length would tell of it."""
    seeded = make_farm(tmp_path)
    browser = seeded.browser()
    for answer in (
        browser.get("/runs?limit=50", headers={"accept-encoding": "gzip", "accept": "application/json"}),
        browser.get(f"/runs/{seeded.ids.sparse_run}/report", headers={"accept-encoding": "gzip"}),
        browser.post("/dashboard/none", headers={"accept-encoding": "gzip"}, content="x" * 5000),
    ):
        assert "content-encoding" not in answer.headers
    assert len(browser.get("/runs?limit=50").content) > LEAST_BYTES
    seeded.farm.close()
