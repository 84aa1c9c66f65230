"""The page of a fleet in a real browser: the network, who trusts whom, curves, and what was rejected and why."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zenoh", reason="needs eclipse-zenoh")
from varangian.agent.metrics import Metrics
from varangian.agent.status import Status
from varangian.agent.watch import FleetView, ask, page_server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need playwright (pip install playwright)"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium (apt-get install chromium)")

PICTURES = Path(__file__).parents[2] / "runs" / "screenshots"
HOSTILE = "<img src=x onerror=alert(1)>"


def status(agent: str, round: int, weights: dict[str, float], **changes: Any) -> Status:
    usual = Status(
        agent=agent,
        round=round,
        time=0.0,
        seconds=0.1,
        measured={"loss": 1 / round},
        evaluated={"accuracy": 0.5 + round / 100},
        evaluated_at=round,
        weights=weights,
        ages={name: 0.1 for name in weights if name != agent},
        accepted={},
        bytes={},
        rejected={},
        muted={},
        refused={},
        unsaved=0,
        memory=1,
        cpu=1.0,
    )
    return replace(usual, **changes)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser: Any, url: str, complaints: list[str], asked: list[str], **view: Any) -> Any:
    page = browser.new_context(**view).new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    page.wait_for_selector("html[data-ready=true]", timeout=1_200_000)
    return page


def test_the_page_shows_who_trusts_whom_and_what_was_rejected(browser: Any) -> None:
    view = FleetView("Three <agents>", ["a", "b", HOSTILE], frozenset({HOSTILE}))
    for round in (1, 2):
        for name, other in (("a", "b"), ("b", "a")):
            rejected = {HOSTILE: {"not-finite": 3}, "": {"sender": 1}}
            weights = {name: 0.7, other: 0.3, HOSTILE: 0.0}
            view.add(asdict(status(name, round, weights, rejected=rejected, muted={HOSTILE: 2.0})))
    complaints: list[str] = []
    asked: list[str] = []
    with page_server(view) as server:
        for scheme, width in (("light", 1280), ("dark", 390)):
            page = opened(
                browser, server.url, complaints, asked, color_scheme=scheme, viewport={"width": width, "height": 900}
            )
            rows = page.locator("#agent-rows tr").all_inner_texts()
            assert rows[0].split("\t")[:5] == ["a", "2", "0.5", "0.52", "0.7"]
            assert rows[0].split("\t")[5:] == ["1: b", "2"]
            assert rows[2].startswith(f"{HOSTILE} (Byzantine)")
            width_of = "document.querySelector('[data-from=b][data-to=a]').getAttribute('stroke-width')"
            assert float(page.evaluate(width_of)) == pytest.approx(0.6 + 8 * 0.3)
            assert page.locator("path.edge.none").count() == 2
            assert page.locator("circle.byzantine").count() == 1
            assert page.locator("#plots figure").count() == 2
            assert page.locator("#plots path.curve").count() == 4
            refused = page.locator("#rejected-rows tr").all_inner_texts()
            assert refused[0].split("\t") == ["a", HOSTILE, "not-finite, muted now", "3"]
            assert refused[1].split("\t") == ["a", "strangers", "sender", "1"]
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            PICTURES.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=PICTURES / f"fleet-{scheme}.png", full_page=True)
            page.context.close()
    assert not complaints
    assert all(url.startswith((server.url, "data:")) for url in asked)


def test_watching_asks_agents_and_says_who_does_not_answer(browser: Any) -> None:
    stop = threading.Event()
    with Metrics("127.0.0.1:0", 60.0) as one, Metrics("127.0.0.1:0", 60.0) as other:
        one(status("a", 3, {"a": 1.0, "b": 0.0}))
        view = FleetView("A fleet", [one.address, other.address])
        asking = threading.Thread(target=ask, args=(view, [one.address, other.address], stop, 0.1))
        asking.start()
        try:
            with page_server(view) as server:
                page = opened(browser, server.url, [], [])
                page.wait_for_selector("text=1 of 2 agents answer.", timeout=600_000)
                assert "no answer" in page.locator("#agent-rows tr").nth(1).inner_text()
                other(status("b", 5, {"b": 0.5, "a": 0.5}))
                page.wait_for_selector("text=2 of 2 agents answer.", timeout=600_000)
                page.wait_for_selector("[data-from=a][data-to=b]", timeout=600_000, state="attached")
                page.context.close()
        finally:
            stop.set()
            asking.join()
