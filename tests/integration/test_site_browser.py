"""The manual in a real browser: equations are typeset, and nothing scrolls sideways on a phone or a desk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from varangian import attacks, rules
from varangian.experiments.spec import catalogue

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need playwright (pip install playwright)"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium (apt-get install chromium)")

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "runs" / "screenshots"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual, built strictly: a broken link or an unknown card is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


WIDE = """() => [...document.querySelectorAll('.equation, article table')]
    .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.textContent.trim().slice(0, 80))"""
SMALL = """() => [...document.querySelectorAll('.equation math')]
    .filter(box => box.getBoundingClientRect().height < 8 || box.getBoundingClientRect().width < 8).length"""


@pytest.mark.parametrize(
    ("page", "room", "width", "scheme"),
    [
        ("rules", rules, 390, "light"),
        ("rules", rules, 1300, "dark"),
        ("attacks", attacks, 390, "dark"),
        ("attacks", attacks, 1300, "light"),
    ],
)
def test_cards_fit_their_column(site: Path, browser: Any, page: str, room: Any, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.set_default_timeout(300_000)  # a busy machine is slow
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"file://{site}/{page}/index.html")
    PICTURES.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=PICTURES / f"{page}-{width}-{scheme}.png", full_page=False)
    cards = tab.query_selector_all("h3[id]")
    assert {card.get_attribute("id") for card in cards} >= set(catalogue(room))
    assert len(tab.query_selector_all(".equation math")) >= len(catalogue(room))
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(WIDE) == []
    assert tab.evaluate(SMALL) == 0
    assert not [url for url in asked if not url.startswith(("file://", "data:"))]
    context.close()
