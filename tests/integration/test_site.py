"""The manual's site: it can be built, and in a real browser equations are typeset and nothing scrolls sideways."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual import NOTEBOOKS, ROOT, code_cells

from varangian import attacks, rules
from varangian.experiments.spec import catalogue

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PICTURES = ROOT / "runs" / "screenshots"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual, built strictly: a broken link or an unknown card is an error."""
    pytest.importorskip("mkdocs", reason="the manual's site needs mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def test_the_site_shows_rules_and_notebooks(site: Path) -> None:
    page = (site / "rules" / "index.html").read_text(encoding="utf-8")
    assert "loss_based" in page and "Jensen" in page, "rules are described by what they say of themselves"
    for notebook in NOTEBOOKS:
        page = (site / "notebooks" / notebook.stem / "index.html").read_text(encoding="utf-8")
        outputs = [output for cell in code_cells(notebook) for output in cell["outputs"] if "text" in output]
        assert all(output["text"][-1].split()[-1] in page for output in outputs), "outputs are shown"
    assert list((site / "notebooks").glob("*.png"))


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
