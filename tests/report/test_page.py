"""The report as a file: what it holds is what was measured, whatever names it is given, and it needs nobody else."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import re
import shlex
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from varangian import cli
from varangian.core.errors import BadInput
from varangian.engine.results import final, save
from varangian.experiments.config import Plan, as_toml, plan_for
from varangian.experiments.summary import write_summary
from varangian.experiments.sweep import sweep
from varangian.report.cells import AGENTS, CURVES, WEIGHTS, detail_of, listed_agents
from varangian.report.command import command_of
from varangian.report.folder import report, write_folder
from varangian.report.pack import four_digits, in_script, packed
from varangian.report.page import _plotly, page, write_page
from varangian.report.payload import Progress, assembled, page_tree
from varangian.report.source import Run, read_runs, run_of
from varangian.report.spread import spread
from varangian.report.table import Scenario, compared

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "varangian" / "report" / "static"
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'${1}%{x}\u2028"


def plan(**given: Any) -> Plan:
    settings = {"agents": 12, **given.pop("settings", {})}
    usual = {"rules": ["alone", "average", "loss-based"], "byzantine": [0, 3], "seeds": 2, "rounds": 60}
    return plan_for("target-localization", settings=settings, **{**usual, **given})


def write_run(folder: Path, metrics: xr.Dataset, of: Plan) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(as_toml(of), encoding="utf-8")
    save(metrics, folder / "metrics.nc")
    write_summary(metrics, folder / "summary.csv")
    return folder


@pytest.fixture(scope="module")
def metrics() -> xr.Dataset:
    return sweep(plan(), None)


@pytest.fixture(scope="module")
def folder(metrics: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "first", metrics, plan())


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    report([folder], folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def unpacked(payload: str) -> Any:
    """What the page's script does with the data, in Python."""
    stored = json.loads(payload)
    planes = np.frombuffer(zlib.decompress(base64.b64decode(stored["numbers"])), np.uint8)
    numbers = np.ascontiguousarray(planes.reshape(4, -1).T).view("<f4").ravel()

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            if "$" in node:
                start, length = node["$"]
                return numbers[start : start + length]
            return {name: filled(value) for name, value in node.items()}
        return [filled(value) for value in node] if isinstance(node, list) else node

    return filled(stored["tree"])


class Elements(HTMLParser):
    """Every element with its attributes and its text; fails where tags do not match."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[int] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(len(self.found) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.found[self.open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, self.texts.get(i, "")) for i, (name, attrs) in enumerate(self.found) if name == tag]


def data_of(text: str) -> Any:
    (payload,) = (body for attrs, body in Elements(text).of("script") if attrs.get("id") == "data")
    return unpacked(payload)


# What it holds.


def test_curves_are_those_of_the_figures(metrics: xr.Dataset, text: str) -> None:
    tree = data_of(text)
    names = [metric["name"] for metric in tree["metrics"]]
    assert names == ["loss", "regret", "msd", "byzantine_weight", "kept"]
    for cell in tree["cells"]:
        rule, count = tree["lines"][cell["line"]]["rule"], tree["scenarios"][cell["scenario"]]["byzantine"]
        at = np.flatnonzero((metrics["rule"].values == rule) & (metrics["byzantine"].values == count))[0]
        for name, curve in zip(names, cell["curves"], strict=True):
            wanted = spread(metrics.isel(cell=at), name)
            np.testing.assert_array_equal(curve["time"], wanted["round"])
            rows = np.stack([wanted[edge] for edge in ("mean", "low", "high")])
            np.testing.assert_allclose(curve["pooled"][0].reshape(3, -1), rows, rtol=1e-4)


def test_agents_and_weights_are_those_measured(metrics: xr.Dataset, text: str) -> None:
    tree = data_of(text)
    network = tree["runs"][0]["network"]
    assert (network["size"], network["seeds"], network["groups"]) == (12, 2, ["0", "1", "2", "3"])
    np.testing.assert_array_equal(network["sender"].reshape(2, 12, -1), metrics["sender"])
    assert list(metrics["snapshot"].values[:3]) == [1, 2, 3], "every third round of 60, and the second"
    for place, cell in enumerate(tree["cells"]):
        run = metrics.isel(cell=place)
        lying = run["byzantine_agent"].values
        np.testing.assert_array_equal(cell["byzantine"].reshape(2, 12), lying)
        np.testing.assert_allclose(cell["agentEnds"][1].reshape(2, 12), final(run, "regret"), rtol=1e-4)
        weights = cell["weights"]
        np.testing.assert_array_equal(weights["rounds"], metrics["snapshot"])
        frames = weights["values"].reshape(-1, 2, 12, metrics.sizes["slot"])
        told = frames[weights["frame"].astype(int)]
        wanted = np.where(lying[:, None, :, None], 0, run["weight"])
        np.testing.assert_allclose(told, wanted.transpose(1, 0, 2, 3), rtol=1e-4)
    constant = [len(set(cell["weights"]["frame"].tolist())) for cell in tree["cells"]]
    assert constant[:2] == [1, 1] and constant[2] > 1, "weights that do not change are there once"


def test_the_table_has_mean_error_worst_and_difference(text: str, folder: Path) -> None:
    tree = data_of(text)
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["byzantine"] == "3"]
    mean = {rule: [float(row["regret_mean"]) for row in rows if row["rule"] == rule] for rule in ("alone", "average")}
    gains = np.subtract(mean["average"], mean["alone"])
    line = next(i for i, line in enumerate(tree["lines"]) if line["rule"] == "average")
    place = next(i for i, scenario in enumerate(tree["scenarios"]) if scenario["byzantine"] == 3)
    cell = next(cell for cell in tree["cells"] if (cell["line"], cell["scenario"]) == (line, place))
    entry = cell["entries"][tree["runs"][0]["headline"]]
    error = abs(mean["average"][0] - mean["average"][1]) / 2
    assert entry["mean"] == f"{np.mean(mean['average']):.4g} ± {error:.2f}"
    assert entry["gain"] == f"+{gains.mean():.4g} ± {abs(gains[0] - gains[1]) / 2:.2f}"
    assert entry["word"] == "worse"
    assert not entry["best"]
    assert entry["mean"] in text, "the table is there for readers without scripts, too"


def test_differences_count_beyond_two_standard_errors() -> None:
    def entry(*values: float) -> Any:
        rows = [
            {"study": "s", "rule": rule, "attack": "", "byzantine": 0, "seed": seed, "rounds": 1, "seconds": 1.0}
            | {"loss_mean": 1.0 if rule == "alone" else value, "loss_worst": 2.0}
            for rule in ("alone", "mine")
            for seed, value in enumerate(values)
        ]
        return page_tree([Run("run", rows)])["cells"][1]["entries"][0]

    assert entry(0.5, 0.7)["word"] == "better"  # −0.4 ± 0.1
    assert entry(1.5, 1.7)["word"] == "worse"
    assert entry(0.5, 1.3)["word"] == "unclear"  # −0.1 ± 0.4
    assert (entry(0.5)["word"], entry(0.5)["gain"]) == ("", "−0.5000")
    assert entry(math.nan, 1.0) is None
    assert entry(math.inf, 1.0)["gain"] == ""


def test_a_cell_that_is_being_run_is_compared_with_nothing() -> None:
    rows = [
        {"study": "s", "rule": rule, "attack": "", "byzantine": 0, "seed": seed, "rounds": 1, "seconds": 1.0}
        | {"loss_mean": value + seed / 100, "loss_worst": 2.0}
        for rule, value in (("alone", 1.0), ("mine", 0.1))
        for seed in (0, 1)
    ]
    progress = Progress(done=False, text="", share=0.5, running=("mine", Scenario(0, "")))
    alone, mine = (cell["entries"][0] for cell in assembled([Run("r", rows)], ["loss"], [{}], progress)["cells"])
    assert (alone["best"], mine["best"], mine["gain"]) == (True, False, "")
    assert compared(rows, "loss")["mine", Scenario(0, "")].best


# A file, whole.


def test_the_page_is_small_well_formed_and_loads_nothing(text: str) -> None:
    assert len(text.encode()) < 3_000_000
    elements = Elements(text)
    for tag, attrs in elements.found:
        for name in ("src", "href", "action", "srcset", "poster", "data"):
            value = attrs.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
        assert not any(name.startswith("on") for name in attrs)
    ids = [attrs["id"] for _, attrs in elements.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in elements.found:
        for name in ("for", "aria-labelledby"):
            assert attrs.get(name) is None or attrs[name] in ids
        if (attrs.get("href") or "").startswith("#"):
            assert (attrs["href"] or "")[1:] in ids
    (style,) = (body for _, body in elements.of("style"))
    assert "url(" not in style and "@import" not in style
    own = "".join(path.read_text(encoding="utf-8") for path in STATIC.glob("*.js"))
    assert set(re.findall(r"https?://[^\"' ]+", own)) == {"http://www.w3.org/2000/svg"}, "a namespace, and no address"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", own)


def test_only_the_pages_own_two_scripts_may_run(text: str) -> None:
    elements = Elements(text)
    (policy,) = (attrs["content"] for attrs, _ in elements.of("meta") if "http-equiv" in attrs)
    assert policy is not None
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert (parts["default-src"], parts["connect-src"]) == ("'none'", "'none'")
    (script,) = (body for attrs, body in elements.of("script") if "type" not in attrs)
    (library,) = (body for attrs, body in elements.of("script") if attrs.get("id") == "plotly")
    plotly = zlib.decompress(base64.b64decode(library))
    assert b"plotly.js v" in plotly[:100] and b"Licensed under the MIT license" in plotly[:300]
    hashes = {base64.b64encode(hashlib.sha256(code).digest()).decode() for code in (script.encode(), plotly)}
    assert set(parts["script-src"].split()) == {f"'sha256-{hash}'" for hash in hashes}
    assert "'self'" in page(assembled([], [], [], Progress(False, "", 0.0)), live=True)


def test_hostile_names_stay_names(metrics: xr.Dataset, tmp_path: Path) -> None:
    named = metrics.assign_coords(rule=metrics["rule"].astype(object).where(metrics["rule"] != "average", HOSTILE))
    named = named.assign_coords(attack=("cell", [HOSTILE] * named.sizes["cell"])).assign_attrs(study=HOSTILE)
    named["group"] = named["group"].astype(str).where(named["group"] != 1, HOSTILE)
    run = run_of(named, tmp_path / "<b>run</b>")
    write_page([Run(HOSTILE, run.rows, named, f'study = "{HOSTILE}"', HOSTILE)], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    elements = Elements(text)
    assert len(elements.of("script")) == 3
    assert not elements.of("img")
    assert elements.of("title")[0][1] == HOSTILE
    tree = data_of(text)
    assert HOSTILE in [line["rule"] for line in tree["lines"]]
    assert HOSTILE in tree["runs"][0]["network"]["groups"]
    assert tree["scenarios"][1]["title"] == f"3 Byzantine: {HOSTILE}"


def test_a_name_that_is_no_text_is_shown_with_a_mark(folder: Path, tmp_path: Path) -> None:
    (run,) = read_runs([folder])
    write_page([Run("caf\udce9", run.rows)], tmp_path / "page.html")
    assert "caf?" in (tmp_path / "page.html").read_text(encoding="utf-8")


@given(st.text())
def test_nothing_in_a_script_element_ends_it(name: str) -> None:
    written = in_script({name: name})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {name: name}


@given(arrays(np.float64, st.integers(0, 40), elements=st.floats(width=64)))
def test_four_digits_are_kept_and_what_is_no_number_stays_so(values: np.ndarray[Any, Any]) -> None:
    rounded = four_digits(values)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    normal = np.isfinite(single) & (np.abs(single) >= np.finfo(np.float32).tiny) & (np.abs(single) < 3e38)
    np.testing.assert_allclose(rounded[normal], single[normal], rtol=1 / 16000)
    np.testing.assert_array_equal(rounded[~np.isfinite(single)], single[~np.isfinite(single)])
    np.testing.assert_array_equal(four_digits(rounded), rounded)
    np.testing.assert_array_equal(unpacked(packed({"deep": [values]}))["deep"][0], rounded)


def test_whole_numbers_are_exact() -> None:
    numbers = np.array([0, 1, 2**24 - 1, 1_234_567])
    np.testing.assert_array_equal(unpacked(packed({"a": numbers}))["a"], numbers)
    assert unpacked(packed({"nan": math.nan, "text": "x", "none": None})) == {"nan": None, "text": "x", "none": None}


# Large runs are thinned.


def large(cells: int, seeds: int, rounds: int, agents: int, slots: int, snapshots: int) -> xr.Dataset:
    """A run of this shape that takes no memory: all its numbers are views of a few."""
    noise = np.random.default_rng(0).random(snapshots)
    weight = np.broadcast_to(noise[:, None, None], (cells, seeds, snapshots, agents, slots))
    measured = np.broadcast_to(1.0, (cells, seeds, rounds, agents))
    data: dict[str, Any] = dict.fromkeys(("loss", "regret", "msd"), (("cell", "seed", "round", "agent"), measured))
    data["weight"] = (("cell", "seed", "snapshot", "agent", "slot"), weight)
    data["byzantine_agent"] = (("cell", "seed", "agent"), np.broadcast_to(False, (cells, seeds, agents)))
    return xr.Dataset(data, {"round": np.arange(1, rounds + 1)})


@pytest.mark.parametrize("shape", [(15, 5, 500, 100, 11, 25), (12, 5, 900, 139, 139, 25), (100, 3, 500, 100, 11, 25)])
def test_what_the_page_holds_is_bounded(shape: tuple[int, ...]) -> None:
    cells_, seeds, _, agents, slots, _ = shape
    detail = detail_of(large(*shape))
    assert cells_ * 3 * detail.points * (3 + seeds) <= max(CURVES, 20 * cells_ * 3 * (3 + seeds))
    assert cells_ * 3 * agents * detail.seeds * detail.agent_points <= 3 * AGENTS
    assert cells_ * agents * slots * detail.seeds * detail.frames <= max(WEIGHTS, 2 * cells_ * agents * slots)
    assert detail.frames >= 2 and detail.seeds >= 1


def test_of_very_many_agents_the_worst_are_told() -> None:
    data = large(2, 1, 1, 1500, 1, 2)
    worse = np.zeros((2, 1, 1, 1500))
    worse[0, 0, 0, 700:] = np.arange(800)  # the end of the list is worst under one rule, the beginning under the other
    worse[1, 0, 0, :600] = 1 + np.arange(600)
    told = listed_agents(data.assign(loss=(("cell", "seed", "round", "agent"), worse)))
    assert len(told) == 1000
    assert set(range(100, 600)) | set(range(1000, 1500)) == set(told)


# From what is left.


def test_two_runs_are_compared(folder: Path, metrics: xr.Dataset, tmp_path: Path) -> None:
    other = plan(rules=["loss-based"], settings={"step_size": 0.05})
    second = write_run(tmp_path / "first", sweep(other, None), other)
    assert report([folder, second], tmp_path / "both.html") == [tmp_path / "both.html"]
    tree = data_of((tmp_path / "both.html").read_text(encoding="utf-8"))
    assert [run["name"] for run in tree["runs"]] == ["first, first (1)", "first, first (2)"], "both are called first"
    assert [line["rule"] for line in tree["lines"]] == ["alone", "average", "loss-based", "loss-based"]
    assert len({line["label"] for line in tree["lines"]}) == 4
    assert len({(line["colour"], line["dash"]) for line in tree["lines"]}) == 4
    assert len(tree["scenarios"]) == 2 and len(tree["cells"]) == 8
    assert "--set step_size=0.05" in tree["runs"][1]["command"]
    with pytest.raises(BadInput, match="--out FILE"):
        report([folder, second])


def test_a_report_is_made_again_with_its_figures(folder: Path, metrics: xr.Dataset, tmp_path: Path) -> None:
    again = write_run(tmp_path / "run", metrics.isel(cell=[3, 5]), plan())
    written = report([again])
    assert written[0] == again / "report.html"
    assert {path.stem for path in written[1:]} == {"loss", "regret", "byzantine_weight", "network"}
    assert all(path.exists() for path in written)


def test_summary_tables_alone_are_enough_for_the_table() -> None:
    runs = read_runs([ROOT / "results" / "human-activity"])
    assert [run.name for run in runs] == ["summary", "blocked", "departures", "stale-last", "stale-skipped"]
    tree = page_tree(runs)
    assert all(run["network"] is None for run in tree["runs"])
    place = next(i for i, scenario in enumerate(tree["scenarios"]) if scenario["byzantine"] == 10)
    told = {
        tree["lines"][cell["line"]]["label"]: cell["entries"][tree["runs"][0]["headline"]]
        for cell in tree["cells"]
        if cell["scenario"] == place
    }
    assert told["loss-based (summary)"]["mean"] == "94.5 ± 0.5 %"
    assert told["loss-based (summary)"]["worst"] == "84.4 %"
    assert told["average (blocked)"]["word"] == "worse"
    assert told["loss-based:start=1 (departures)"]["gain"] == "", "no run without cooperation stands beside it"
    assert str(tree["runs"][0]["command"]).startswith("varangian run human-activity --rule alone --rule average")
    assert tree["runs"][1]["command"] is None


def test_a_folder_of_folders_is_all_of_them() -> None:
    runs = read_runs([ROOT / "results"])
    assert {run.study for run in runs} == {"digits", "human-activity", "school", "target-localization"}
    tree = page_tree(runs)
    assert tree["runs"][0]["published"][0] == ["study", "byzantine", "rule", "metric", "ours", "published"]
    by_study = {(tree["runs"][line["run"]]["study"], line["label"]) for line in tree["lines"]}
    assert len(by_study) == len(tree["lines"])
    assert {line["dash"] for line in tree["lines"] if tree["runs"][line["run"]]["name"] == "pulling"} == {"6px,3px"}


def test_folders_without_results_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no folder"):
        report([tmp_path / "missing"])
    with pytest.raises(BadInput, match="holds no results"):
        report([tmp_path])
    (tmp_path / "summary.csv").write_text("study,rule,attack,byzantine,seed,rounds,seconds\na,b,c,many,0,1,1\n")
    with pytest.raises(BadInput, match=r"summary\.csv line 2 is not a row"):
        report([tmp_path])
    (tmp_path / "summary.csv").write_text("study,rule,attack,byzantine,seed,rounds,seconds\n")
    with pytest.raises(BadInput, match="has no rows"):
        report([tmp_path])
    (tmp_path / "metrics.nc").write_bytes(b"no netCDF")
    with pytest.raises(BadInput, match="is not a result file"):
        report([tmp_path])
    assert not (tmp_path / "report.html").exists()


def test_rules_without_weights_and_rounds_without_news_are_no_obstacle(metrics: xr.Dataset, tmp_path: Path) -> None:
    silent = metrics.assign(weight=metrics["weight"].where(metrics["rule"] != "average"))
    tree = page_tree([run_of(silent, tmp_path)])
    assert [cell["weights"] is None for cell in tree["cells"]] == [False, True, False] * 2
    nobody = metrics.assign(byzantine_agent=metrics["byzantine_agent"] | True)
    tree = page_tree([run_of(nobody, tmp_path)])
    assert all(entry is None for cell in tree["cells"] for entry in cell["entries"])
    assert json.loads(packed(tree))


def test_groups_have_curves_where_the_study_shows_them(metrics: xr.Dataset, tmp_path: Path) -> None:
    tree = page_tree([run_of(metrics.assign_attrs(by_group="1"), tmp_path)])
    curve = tree["cells"][4]["curves"][0]
    assert len(curve["pooled"]) == 5
    wanted = spread(metrics.isel(cell=4), "loss", 2)
    np.testing.assert_allclose(curve["pooled"][3][0], wanted["mean"])


# The command line.


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"byzantine": [(3, 5), 0, 0.5, (7,)], "seeds": 3, "dtype": "float64", "device": "cpu"},
        {"settings": {"direction_noise": (0.5, 0.75), "radius": 1e-7}, "attacks": ["sleeper:until=5,then=silent"]},
        {"rules": ["loss-based:keep=all,smoothing=0.05"], "rounds": 7},
    ],
)
def test_the_command_means_the_configuration(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = as_toml(plan(**settings))
    command = command_of(wanted, "runs/my folder")
    assert command is not None
    plans: list[Plan] = []
    monkeypatch.setattr("varangian.experiments.config.check", lambda plan: None)
    monkeypatch.setattr("varangian.cli.run._run", lambda plan, *rest: plans.append(plan))
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    assert as_toml(plans[0]) == wanted


def test_a_study_that_is_not_known_has_no_command() -> None:
    assert command_of('study = "elsewhere"', "out") is None
    assert command_of("study = ", "out") is None
    assert command_of("", "out") is None


def test_varangian_report(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def run(*args: object) -> int:
        monkeypatch.setattr(sys, "argv", ["varangian", "report", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0)

    assert run(folder, "--out", tmp_path / "page.html") == 0
    assert capsys.readouterr().out == f"Written: {tmp_path}/page.html\n"
    assert run(folder, "--out", tmp_path / "page.html", "-q") == 0
    assert run(folder, "--out", tmp_path) == 2
    assert run(tmp_path / "nothing") == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 2


def test_a_machine_without_plotly_writes_all_but_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = sweep(plan_for("target-localization", rules=["alone"], byzantine=[0], rounds=3), None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    _plotly.cache_clear()
    with pytest.warns(UserWarning, match=r"report\.html is left out"):
        write_folder(metrics, tmp_path)
    assert (tmp_path / "summary.csv").exists() and not (tmp_path / "report.html").exists()
