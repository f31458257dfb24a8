"""Every page in light, dark and on a phone, by headless Chromium: `python -m tests.dashboard.screenshots [FOLDER]`.

Nothing is reached but a farm on the loopback with seeded rows. Each visit also measures what `test_browser.py` asserts.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from service.dashboard.pages.admin.index import PAGES
from service.features.webhooks.feature import WEBHOOKS
from tests.dashboard.conftest import PATIENCE_MS, SeededFarm, make_farm
from tests.dashboard.seeder import digest

CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True)
class Look:
    """A way of looking at a page."""

    name: str
    width: int
    height: int
    scheme: str


LOOKS = (Look("light", 1280, 900, "light"), Look("dark", 1280, 900, "dark"), Look("phone", 390, 844, "light"))


def pages_of(seeded: SeededFarm) -> dict[str, str]:
    """Name -> address of every kind of page."""
    ids = seeded.ids
    return {
        "overview": "/dashboard",
        "jobs": "/dashboard/jobs",
        "job-done": f"/dashboard/jobs/{ids.done_job}",
        "job-compiling": f"/dashboard/jobs/{ids.compiling_job}",
        "job-failed": f"/dashboard/jobs/{ids.failed_job}",
        "runs": "/dashboard/runs",
        "run-profile": f"/dashboard/runs/{ids.sparse_run}",
        "run-board": f"/dashboard/runs/{ids.pi_run}",
        "run-compare": f"/dashboard/runs/{ids.compare_run}",
        "run-sustained": f"/dashboard/runs/{ids.sustained_run}",
        "run-train": f"/dashboard/runs/{ids.train_run}",
        "run-emulated": f"/dashboard/runs/{ids.emulated_run}",
        "run-throttled": f"/dashboard/runs/{ids.throttled_run}",
        "run-failed": f"/dashboard/runs/{ids.failed_run}",
        "run-running": f"/dashboard/runs/{ids.running_run}",
        "devices": "/dashboard/devices",
        "device": f"/dashboard/devices/{ids.host}",
        "device-canaries": f"/dashboard/devices/{ids.pi}",
        "device-quarantined": f"/dashboard/devices/{ids.quarantined}",
        "queue": "/dashboard/queue",
        "regressions": "/dashboard/regressions",
        "regressions-one": f"/dashboard/regressions?of={ids.recompiled_run}",
        "admin": "/dashboard/admin",
        **{f"admin-{page.name}": f"/dashboard/admin/{page.name}" for page in (*PAGES, *WEBHOOKS.admin_pages)},
        "admin-tenant": f"/dashboard/admin/organisations/{ids.tenant}",
        "benchmarks": "/dashboard/benchmarks",
        "benchmarks-all": "/dashboard/benchmarks?verdicts=all&class=hardware",
        "compare": f"/dashboard/compare?run={ids.full_run}&run={ids.sparse_run}",
        "compare-unlike": f"/dashboard/compare?run={ids.sparse_run}&run={ids.emulated_run}&run={ids.noisy_run}",
        "compare-training": f"/dashboard/compare?run={ids.train_run}&run={ids.second_train_run}",
        "compare-empty": "/dashboard/compare",
        "api": "/dashboard/api",
        "models": "/dashboard/models",
        "model": f"/dashboard/models/{digest('mobilenet_v2')}",
        "plan": f"/dashboard/models/{digest('mobilenet_v2')}/plans/{digest('sparse')}",
        "problem-404": "/dashboard/runs/run_unknown",
    }


def chromium_path() -> str | None:
    """Where Debian (or the machine) keeps Chromium; None without one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def serving(seeded: SeededFarm) -> Iterator[str]:
    """The farm under a real uvicorn on a free loopback port; gives its address."""
    server = uvicorn.Server(uvicorn.Config(seeded.app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
        if not thread.is_alive():
            raise RuntimeError("uvicorn did not start")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium that talks to nobody else."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Browser, look: Look, address: str, link: str = "") -> Page:
    """A new browser window that looks like `look`, signed in by `link`."""
    context = browser.new_context(
        viewport={"width": look.width, "height": look.height},
        color_scheme="dark" if look.scheme == "dark" else "light",
        base_url=address,
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    if link:
        page.goto(link)
    return page


@contextmanager
def quiet_page(browser: Browser, look: Look, address: str, link: str = "") -> Iterator[Page]:
    """As `open_page`; anything that the policy refuses, or that fails, is an error at its end."""
    page = open_page(browser, look, address, link)
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    yield page
    page.context.close()
    assert noise == []


def main(folder: Path) -> None:
    """Write `<page>-<look>.png` for all pages and looks."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        seeded = make_farm(Path(state))
        with serving(seeded) as address, chromium() as browser:
            for look in LOOKS:
                page = open_page(browser, look, address, seeded.link())
                for name, path in pages_of(seeded).items():
                    page.goto(path)
                    page.screenshot(path=folder / f"{name}-{look.name}.png", full_page=True)
                page.context.close()
        seeded.farm.close()
    print(f"{len(list(folder.glob('*.png')))} screenshots in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))
