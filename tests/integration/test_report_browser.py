"""The report in a real browser: what is drawn is what was measured, with mouse and keyboard, in light, dark and small.

Chromium is the system's own, driven by Playwright; pictures of what it shows are left in runs/screenshots.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from varangian.engine.results import final
from varangian.experiments.config import Plan, as_toml, plan_for
from varangian.experiments.sweep import sweep
from varangian.report.live import Live
from varangian.report.page import write_page
from varangian.report.source import Run, read_runs, run_of
from varangian.report.spread import spread

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need playwright (pip install playwright)"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium (apt-get install chromium)")

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "runs" / "screenshots"
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'<b>%{x}"


def plan() -> Plan:
    rules = ["alone", "average", "loss-based"]
    settings = {"agents": 20, "radius": 1.5}
    return plan_for("target-localization", rules=rules, byzantine=[0, 5], seeds=2, rounds=100, settings=settings)


@pytest.fixture(scope="module")
def metrics() -> xr.Dataset:
    return sweep(plan(), None).assign_attrs(by_group="1")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Reader:
    """A page that is open, and all it complained of and asked for."""

    def __init__(self, browser: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
        view = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=view, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(300_000)  # a busy machine is slow
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready=true]", timeout=1_200_000)
        self.address = address

    def traces(self, plot: str) -> list[dict[str, Any]]:
        """What a plot draws, its numbers as lists."""
        plain = "(key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value"
        text = f"JSON.stringify((document.getElementById('{plot}').data ?? []), {plain})"
        out: list[dict[str, Any]] = self.page.evaluate(f"JSON.parse({text})")
        return out

    def point(self, plot: str, x: float, y: float) -> tuple[float, float]:
        """Where on the screen a point of a plot's first panel is."""
        self.page.evaluate(f"document.getElementById('{plot}').scrollIntoView({{block: 'center'}})")
        code = """([plot, x, y]) => {
            const full = document.getElementById(plot)._fullLayout;
            const frame = document.querySelector(`#${plot} .nsewdrag`).getBoundingClientRect();
            return [frame.left + full.xaxis.d2p(x), frame.top + full.yaxis.d2p(y)];
        }"""
        left, top = self.page.evaluate(code, [plot, x, y])
        return left, top

    def click(self, plot: str, x: float, y: float) -> None:
        left, top = self.point(plot, x, y)
        self.page.mouse.move(left, top, steps=3)
        self.page.wait_for_selector(f"#{plot} .hoverlayer .hovertext")
        self.page.mouse.click(left, top)

    def until(self, holds: str) -> None:
        """Wait until something holds. Playwright's own way evaluates text in the page, which its policy forbids."""
        for _ in range(3000):
            if self.page.evaluate(holds):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"never: {holds}")

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def overflows(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    def assert_quiet(self) -> None:
        assert self.complaints == []
        outside = [url for url in self.asked if url != self.address and not url.startswith(("data:", "blob:"))]
        assert outside == []


@pytest.fixture(scope="module")
def reader(browser: Any, metrics: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """The report of the run, open on a desk; every test says itself what is chosen on it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.toml").write_text(as_toml(plan()), encoding="utf-8")
    write_page([run_of(metrics, folder)], folder / "report.html")
    return Reader(browser, (folder / "report.html").as_uri())


def choose(reader: Reader, **labels: str) -> None:
    for name, label in labels.items():
        reader.page.locator(f"#{name.replace('_', '-')}").select_option(label=label)


def cell_of(metrics: xr.Dataset, rule: str, byzantine: int) -> xr.Dataset:
    found = (metrics["rule"].values == rule) & (metrics["byzantine"].values == byzantine)
    return metrics.isel(cell=int(np.flatnonzero(found)[0]))


def test_every_section_is_drawn(reader: Reader) -> None:
    for plot in ("dots", "curves-plot", "network", "matrix", "agent-curves", "agent-trust"):
        assert reader.page.locator(f"#{plot} svg.main-svg").count() > 0, plot
        assert len(reader.page.get_attribute(f"#{plot}", "aria-label") or "") > 30, "an alternative text"
    assert reader.page.text_content("h1") == "target-localization"
    assert "3 rules · 2 scenarios · 2 seeds · 20 agents · 100 rounds" in (reader.page.text_content("#about") or "")
    heads = reader.page.locator("#table thead th").all_text_contents()
    assert heads == ["Rule", "no attack", "5 Byzantine: uniform"]
    assert reader.page.locator("#table td.best").count() == 2
    reader.picture("desk-light")
    reader.assert_quiet()


def test_the_curves_are_the_papers_and_follow_metric_rules_scale_and_seeds(reader: Reader, metrics: xr.Dataset) -> None:
    def lines() -> list[dict[str, Any]]:
        return [trace for trace in reader.traces("curves-plot") if "meta" in trace]

    choose(reader, curves_metric="Loss")
    assert len(lines()) == 6
    for trace, (byzantine, rule) in zip(lines(), [(b, r) for b in (0, 5) for r in plan().rules], strict=True):
        wanted = spread(cell_of(metrics, rule, byzantine), "loss")
        assert trace["name"] == rule
        np.testing.assert_allclose(trace["x"], wanted["round"])
        np.testing.assert_allclose(trace["y"], wanted["mean"], rtol=1e-4)
    choose(reader, summary_metric="Regret")  # one choice for the whole page
    assert reader.page.locator("#curves-metric").evaluate("select => select.selectedOptions[0].label") == "Regret"
    np.testing.assert_allclose(lines()[0]["y"], spread(cell_of(metrics, "alone", 0), "regret")["mean"], rtol=1e-4)
    choose(reader, group="group 2")
    of_group = spread(cell_of(metrics, "average", 5), "regret", 2)["mean"]
    np.testing.assert_allclose(lines()[4]["y"], of_group, rtol=1e-4)
    choose(reader, group="all")
    axis = "document.getElementById('curves-plot').layout.yaxis.type"
    assert reader.page.evaluate(axis) == "log"
    reader.page.locator("input[name=scale][value=linear]").check(force=True)
    assert reader.page.evaluate(axis) == "linear"
    reader.page.locator("input[name=seeds][value=each]").check(force=True)
    assert len(lines()) == 12
    of_second = cell_of(metrics, "alone", 0).isel(seed=[1])
    np.testing.assert_allclose(lines()[1]["y"], spread(of_second, "regret")["mean"], rtol=1e-4)
    reader.page.locator("input[name=seeds][value=pooled]").check(force=True)
    box = reader.page.get_by_role("checkbox", name="average")
    box.focus()
    reader.page.keyboard.press("Space")
    assert {trace["name"] for trace in lines()} == {"alone", "loss-based"}
    reader.page.keyboard.press("Space")
    assert len(lines()) == 6
    reader.assert_quiet()


def test_a_click_on_a_curve_shows_its_agents(reader: Reader, metrics: xr.Dataset) -> None:
    choose(reader, curves_metric="Regret", single="choose …")
    assert not reader.page.is_visible("#single-plot")
    line = next(trace for trace in reader.traces("curves-plot") if trace.get("name") == "average")
    reader.click("curves-plot", line["x"][70], line["y"][70])
    reader.page.wait_for_selector("#single-figure:not([hidden])")
    assert "average, no attack, seed 0" in (reader.page.text_content("#single-note") or "")
    traces = reader.traces("single-plot")
    assert len(traces) == 4, "a colour a group"
    run = cell_of(metrics, "average", 0).isel(seed=0)
    at_end = {agent: y for t in traces for agent, x, y in zip(t["customdata"], t["x"], t["y"], strict=True) if x == 100}
    assert len(at_end) == 20
    smoothed = run["regret"].isel(round=slice(-2, None)).mean("round")
    for agent, value in at_end.items():
        assert value == pytest.approx(float(smoothed[agent]), rel=1e-4)
    reader.assert_quiet()


def test_the_slider_shows_the_weights_of_its_round(reader: Reader, metrics: xr.Dataset) -> None:
    choose(reader, trust_line="loss-based", trust_scenario="5 Byzantine: uniform", trust_seed="0")
    run = cell_of(metrics, "loss-based", 5).isel(seed=0)
    senders, lying = run["sender"].values, run["byzantine_agent"].values
    slider = reader.page.locator("#round")
    slider.focus()

    def assert_drawn(place: int) -> None:
        number = int(metrics["snapshot"][place])
        assert reader.page.text_content("#round-shown") == f"{number} of 100"
        assert slider.get_attribute("aria-valuetext") == f"round {number}"
        wanted = np.full((20, 20), np.nan)
        for receiver in np.flatnonzero(~lying):
            for slot, sender in enumerate(senders[receiver]):
                if slot == 0 or sender != receiver:
                    wanted[receiver, sender] = float(run["weight"][place, receiver, slot])
        normal, liars = reader.traces("matrix")
        drawn = np.full((20, 20), np.nan)
        for trace in (normal, liars):
            for receiver, row in zip(trace["meta"]["receivers"], trace["z"], strict=True):
                for sender, value in zip(trace["meta"]["senders"], row, strict=True):
                    if value is not None:
                        assert lying[sender] == (trace is liars)
                        drawn[receiver, sender] = value
        np.testing.assert_allclose(drawn, wanted, rtol=1e-4)
        kept = {(min(e), max(e)) for e in np.argwhere(np.nan_to_num(wanted) > 0).tolist() if e[0] != e[1]}
        edges = [t for t in reader.traces("network") if t.get("name", "").startswith("trusted")]
        assert sum(sum(x is None for x in trace["x"]) for trace in edges) == len(kept)

    reader.page.keyboard.press("Home")
    assert_drawn(0)
    reader.picture("trust-first-round")
    reader.page.keyboard.press("ArrowRight")
    assert_drawn(1)
    before = reader.traces("matrix")[1]["z"]
    reader.page.keyboard.press("End")
    assert_drawn(metrics.sizes["snapshot"] - 1)
    assert reader.traces("matrix")[1]["z"] != before, "attackers fade"
    reader.assert_quiet()


def test_byzantine_agents_have_a_shape_and_an_outline_and_everyone_its_place(
    reader: Reader, metrics: xr.Dataset
) -> None:
    choose(reader, trust_line="loss-based", trust_scenario="5 Byzantine: uniform", trust_seed="1")
    run = cell_of(metrics, "loss-based", 5).isel(seed=1)
    normal, lying = (t for t in reader.traces("network") if t["mode"] == "markers")
    assert (normal["marker"]["symbol"], lying["marker"]["symbol"]) == ("circle", "x")
    assert min(lying["marker"]["line"]["width"]) > max(normal["marker"]["line"]["width"])
    assert sorted(lying["customdata"]) == np.flatnonzero(run["byzantine_agent"]).tolist()
    for trace in (normal, lying):
        places = run["position"].values[trace["customdata"]]
        np.testing.assert_allclose(np.stack((trace["x"], trace["y"]), 1), places, rtol=1e-3)
    colours = dict(zip(normal["customdata"], normal["marker"]["color"], strict=True))
    groups = {agent: int(run["group"][agent]) for agent in colours}
    assert len(set(zip(groups.values(), colours.values(), strict=True))) == 4
    choose(reader, trust_seed="0")
    reader.assert_quiet()


def test_agents_are_sorted_by_any_column_with_mouse_and_keyboard(reader: Reader, metrics: xr.Dataset) -> None:
    choose(reader, agents_line="loss-based", agents_scenario="5 Byzantine: uniform", agents_seed="0")
    ends = final(cell_of(metrics, "loss-based", 5), "loss").isel(seed=0).values

    def order() -> list[int]:
        return [int(name) for name in reader.page.locator("#agent-table tbody button").all_text_contents()]

    known = [agent for agent in range(20) if not np.isnan(ends[agent])]
    reader.page.get_by_role("button", name="Loss", exact=True).click()
    assert order()[:15] == sorted(known, key=lambda agent: -ends[agent])
    head = reader.page.locator("th", has=reader.page.locator("[data-key=loss]"))
    assert head.get_attribute("aria-sort") == "descending"
    reader.page.keyboard.press("Enter")  # the focus has stayed where it was
    assert head.get_attribute("aria-sort") == "ascending"
    assert order()[:15] == sorted(known, key=lambda agent: ends[agent]), "who has no number comes last either way"
    reader.page.get_by_role("button", name="Agent", exact=True).click()
    assert order() == list(range(20))
    assert head.get_attribute("aria-sort") == "none"
    reader.assert_quiet()


def test_an_agent_shows_its_curves_and_whom_it_trusts(reader: Reader, metrics: xr.Dataset) -> None:
    choose(reader, agents_line="loss-based", agents_scenario="5 Byzantine: uniform", agents_seed="0")
    choose(reader, agent_metric="Regret")
    run = cell_of(metrics, "loss-based", 5).isel(seed=0)
    normal, lying = (np.flatnonzero(flag) for flag in (~run["byzantine_agent"].values, run["byzantine_agent"].values))
    agent, liar = int(normal[3]), int(lying[0])
    reader.page.locator(f"#agent-table [data-agent='{agent}']").click()
    assert f"Agent {agent}, group {int(run['group'][agent])}" == reader.page.text_content("#agent-title")
    traces = reader.traces("agent-curves")
    assert [trace["name"] for trace in traces] == list(plan().rules)
    for trace in traces:
        values = cell_of(metrics, trace["name"], 5).isel(seed=0)["regret"][:, agent]
        assert trace["y"][-1] == pytest.approx(float(values[-2:].mean()), rel=1e-4)
    (bars,) = reader.traces("agent-trust")
    place = int(reader.page.locator("#round").input_value())
    weights = {
        int(s): float(w) for s, w in zip(run["sender"][agent], run["weight"][place, agent], strict=True) if w > 0
    }
    told = {other: value for other, value in zip(bars["customdata"], bars["x"], strict=True) if value}
    assert told == pytest.approx(weights, rel=1e-4)
    assert reader.page.locator("#agent-table tr[aria-current=true]").count() == 1
    # The same by the network: a click on a Byzantine agent shows who listens to it.
    markers = [t for t in reader.traces("network") if t["mode"] == "markers"][1]
    which = markers["customdata"].index(liar)
    reader.click("network", markers["x"][which], markers["y"][which])
    assert (reader.page.text_content("#agent-title") or "").endswith(", Byzantine")
    reader.page.get_by_role("button", name="Show all").click()
    reader.assert_quiet()


def test_the_command_is_copied(reader: Reader) -> None:
    clipboard = "{ value: { writeText: async (text) => { window.copied = text; } } }"
    reader.page.evaluate(f"Object.defineProperty(navigator, 'clipboard', {clipboard})")
    reader.page.get_by_role("button", name="Copy").click()
    reader.until("window.copied !== undefined")
    copied = reader.page.evaluate("window.copied")
    assert copied == reader.page.text_content("#again code")
    assert copied.startswith("varangian run target-localization --rule alone --rule average --rule loss-based")
    reader.assert_quiet()


def test_the_theme_is_the_systems_until_it_is_chosen(browser: Any, reader: Reader) -> None:
    dark = Reader(browser, reader.address, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    paper = "document.getElementById('curves-plot').layout.paper_bgcolor"
    assert dark.page.evaluate(ground) == dark.page.evaluate(paper) == "rgb(18, 22, 27)"
    dark.picture("desk-dark")
    dark.page.locator("#theme").click()
    assert dark.page.evaluate(ground) == dark.page.evaluate(paper) == "rgb(255, 255, 255)"
    dark.page.locator("#theme").press("Enter")
    assert dark.page.evaluate(paper) == "rgb(18, 22, 27)"
    assert not dark.overflows()
    # The same page at the width of a phone.
    dark.page.set_viewport_size({"width": 390, "height": 844})
    dark.until("document.getElementById('curves-plot').layout.width < 390")
    assert not dark.overflows()
    dark.picture("phone-dark")
    dark.page.locator("#theme").click()
    dark.picture("phone-light")
    dark.assert_quiet()


def test_hostile_names_and_tables_alone(browser: Any, metrics: xr.Dataset, tmp_path: Path) -> None:
    named = metrics.isel(round=slice(0, 100, 10)).assign_attrs(study=HOSTILE)
    named = named.assign_coords(attack=("cell", [HOSTILE] * named.sizes["cell"]))
    named = named.assign_coords(rule=("cell", [HOSTILE, "average", "loss-based"] * 2))
    named["group"] = named["group"].astype(str).where(named["group"] != 1, HOSTILE)
    run = run_of(named, tmp_path)
    tables = read_runs([ROOT / "results" / "human-activity"])
    write_page([Run(HOSTILE, run.rows, named, HOSTILE, HOSTILE), *tables], tmp_path / "page.html")
    reader = Reader(browser, (tmp_path / "page.html").as_uri(), width=390)
    assert reader.page.text_content("h1") == HOSTILE
    assert reader.page.text_content("#table tbody th") == HOSTILE
    assert reader.page.text_content("#again code") == HOSTILE
    assert reader.page.locator("img").count() == 0
    reader.page.locator("#single").select_option(index=1)
    assert HOSTILE in (reader.page.text_content("#single-note") or "")
    assert reader.page.locator("#curves-plot .annotation-text").nth(1).text_content() == f"5 Byzantine: {HOSTILE}"
    assert not reader.overflows()
    # Another study on the same page, of which only tables are left.
    choose(reader, study="human-activity")
    assert reader.page.text_content("h1") == "human-activity"
    assert reader.page.is_visible("#tables-only") and not reader.page.is_visible("#curves")
    assert "95.0 ± 0.2 %" in (reader.page.text_content("#table") or "")
    assert reader.page.locator("#dots svg.main-svg").count() > 0
    assert not reader.overflows()
    reader.picture("phone-tables")
    reader.assert_quiet()


def test_a_live_page_draws_the_run_as_it_goes_on(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a page may need long for its next request.
    monkeypatch.setattr("varangian.report.live.OPEN", 300.0)
    monkeypatch.setattr("varangian.report.live.LINGER", 300.0)
    with Live(plan()) as live:
        reader = Reader(browser, live.url)
        assert reader.page.is_visible("#live")
        assert "just begun" in (reader.page.text_content("#live-text") or "")
        sweep(plan(), None, watchers=[live])
    reader.until("document.getElementById('live-text').textContent === 'The run is done.'")
    assert len([t for t in reader.traces("curves-plot") if "meta" in t]) == 6
    assert reader.page.locator("#trust-line").evaluate("select => select.selectedOptions[0].label") == "loss-based"
    assert reader.complaints == []
    assert all(url.startswith((live.url, "data:", "blob:")) for url in reader.asked)
