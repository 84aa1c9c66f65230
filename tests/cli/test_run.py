"""`varangian run`: what it promises to write and print."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from commands import ONE, SMALL, Said, assert_same_bits, rows_of, varangian_

import varangian


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    folder = tmp_path_factory.mktemp("runs") / "first"
    swept = ("--rule", "alone", "--rule", "loss-based:keep=all", "--attack", "uniform", "--attack", "silent")
    said = varangian_("run", *SMALL, *swept, "--byzantine", 0, "--byzantine", 3, "--seeds", 2, "--out", folder)
    return folder, said


def test_a_run_writes_what_is_promised(run: tuple[Path, Said]) -> None:
    folder, said = run
    assert said.status == 0, said.err
    found = {path.name for path in folder.iterdir()}
    assert found == {"config.toml", "metrics.nc", "summary.csv", "figures", "report.html"}
    pictures = list((folder / "figures").glob("*.png"))
    assert {"regret", "network"} <= {path.stem for path in pictures}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert {path.stem for path in (folder / "figures").glob("*.pdf")} == {path.stem for path in pictures}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<script type="application/json" id="data">' in page
    assert "loss-based:keep=all" in page and "3 Byzantine: silent" in page
    assert not re.search(r'(src|href)="(?!data:)', page), "the page must be readable offline"


def test_the_summary_has_the_promised_columns_in_order(run: tuple[Path, Said]) -> None:
    columns = list(rows_of(run[0])[0])
    promised = ["study", "rule", "attack", "byzantine", "seed", "rounds", "seconds"]
    assert columns[:7] == promised
    metrics = columns[7 : columns.index("byzantine_weight")]
    assert metrics == [f"{name}_{what}" for name in ("loss", "regret", "msd") for what in ("mean", "worst")]
    assert columns[len(promised) + len(metrics) :] == ["byzantine_weight", "kept"]


def test_the_summary_has_one_row_for_every_combination(run: tuple[Path, Said]) -> None:
    rows = rows_of(run[0])
    found = [(row["rule"], row["attack"], row["byzantine"], row["seed"]) for row in rows]
    asked = {
        (r, a, b, s)
        for r in ("alone", "loss-based:keep=all")
        for a in ("uniform", "silent")
        for b in "03"
        for s in "01"
    }
    assert set(found) == asked
    assert len(found) == len(asked)
    assert all((row["study"], row["rounds"]) == ("target-localization", "10") for row in rows)
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_the_summary_tells_what_the_metrics_hold(run: tuple[Path, Said]) -> None:
    metrics = varangian.load(run[0] / "metrics.nc")
    for row in rows_of(run[0]):
        cell = np.flatnonzero(
            (metrics["rule"] == row["rule"])
            & (metrics["attack"] == row["attack"])
            & (metrics["byzantine"] == int(row["byzantine"]))
        )
        assert len(cell) == 1
        own = metrics.isel(cell=cell[0]).sel(seed=int(row["seed"]))
        normal = ~own["byzantine_agent"].values
        assert (~normal).sum() == int(row["byzantine"])
        last_fifth = own["regret"].values[-2:].astype(float).mean(0)[normal]
        assert float(row["regret_mean"]) == pytest.approx(last_fifth.mean(), rel=1e-5)
        assert float(row["regret_worst"]) == pytest.approx(last_fifth.max(), rel=1e-5)
        weight = own["byzantine_weight"].values[-2:].astype(float).mean(0)[normal].mean()
        assert float(row["byzantine_weight"]) == pytest.approx(weight, abs=1e-7)


def test_without_byzantine_agents_all_attacks_are_alike(run: tuple[Path, Said]) -> None:
    rows = [row for row in rows_of(run[0]) if row["byzantine"] == "0"]
    by_attack = [[{**row, "attack": ""} for row in rows if row["attack"] == attack] for attack in ("uniform", "silent")]
    assert len(by_attack[0]) == 4
    assert by_attack[0] == by_attack[1]


def test_a_run_prints_its_table_and_where_it_is(run: tuple[Path, Said]) -> None:
    folder, said = run
    assert str(folder) in said.out
    lines = {line.split("│")[1].strip(): line for line in said.out.splitlines() if line.startswith("│")}
    assert lines.keys() == {"alone", "loss-based:keep=all"}
    assert all(line.count("±") == 3 for line in lines.values()), "no attack, 3 uniform, 3 silent: each once"
    assert len(said.err.splitlines()) == 8, "a line of progress a cell"


def test_the_error_of_the_mean_counts_each_seed_once(run: tuple[Path, Said]) -> None:
    values = [
        float(row["regret_mean"])
        for row in rows_of(run[0])
        if (row["rule"], row["attack"], row["byzantine"]) == ("alone", "uniform", "0")
    ]
    error = abs(values[0] - values[1]) / 2  # of two: standard deviation over √2
    line = next(line for line in run[1].out.splitlines() if "alone" in line)
    assert f"± {error:.2g} " in line.split("│")[2]


@pytest.mark.usefixtures("no_figures")
def test_its_configuration_gives_the_same_bits_again(run: tuple[Path, Said], tmp_path: Path) -> None:
    folder, _ = run
    said = varangian_("run", folder / "config.toml", "--out", tmp_path / "again")
    assert said.status == 0, said.err
    assert_same_bits(folder, tmp_path / "again")
    assert (tmp_path / "again" / "config.toml").read_text() == (folder / "config.toml").read_text()


@pytest.mark.usefixtures("no_figures")
def test_options_go_before_the_configuration(run: tuple[Path, Said], tmp_path: Path) -> None:
    changed = ("--rule", "average", "--byzantine", "2,5", "--rounds", 4, "--set", "agents=9", "--seeds", 1)
    said = varangian_("run", run[0] / "config.toml", *changed, "--dtype", "float64", "--out", tmp_path / "other")
    assert said.status == 0, said.err
    found = varangian.load(tmp_path / "other" / "metrics.nc")
    assert dict(found.sizes) | {"cell": 2, "agent": 9, "round": 4, "seed": 1} == dict(found.sizes)
    assert set(found["rule"].values) == {"average"} and set(found["attack"].values) == {"uniform", "silent"}
    assert np.flatnonzero(found["byzantine_agent"].isel(cell=0, seed=0)).tolist() == [2, 5]
    assert found["regret"].dtype == np.float64


@pytest.mark.usefixtures("no_figures")
def test_overwriting_keeps_nothing_of_the_earlier_run_and_all_that_is_not_ours(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert varangian_("run", *ONE, "--out", folder).status == 0
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "figures" / "regret.png").write_bytes(b"of the earlier run")
    (folder / "figures" / "mine.png").write_bytes(b"mine")
    (folder / "notes.txt").write_text("mine")
    assert varangian_("run", *ONE, "--rule", "average", "--out", folder, "--overwrite").status == 0
    assert {row["rule"] for row in rows_of(folder)} == {"alone", "average"}
    assert [path.name for path in (folder / "figures").iterdir()] == ["mine.png"]
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.usefixtures("no_figures")
def test_quiet_prints_nothing(tmp_path: Path) -> None:
    assert varangian_("run", *ONE, "--out", tmp_path / "run", "--quiet") == Said(0, "", "")
    assert varangian_("run", *ONE, "-q") == Said(0, "", "")
    assert (tmp_path / "run" / "summary.csv").exists()


def test_without_out_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = varangian_("run", *ONE)
    assert said.status == 0
    assert "2 Byzantine: uniform" in said.out
    assert not list(tmp_path.iterdir())


def test_everyone_may_be_byzantine(tmp_path: Path) -> None:
    said = varangian_("run", *SMALL, "--rule", "alone", "--byzantine", 12, "--seeds", 2, "--out", tmp_path / "run")
    assert said.status == 0, said.err
    assert [row["regret_mean"] for row in rows_of(tmp_path / "run")] == ["nan", "nan"]


@pytest.mark.usefixtures("no_figures")
def test_names_and_combinations_asked_for_twice_run_once(tmp_path: Path) -> None:
    twice = (
        "--rule",
        "loss_based",
        "--rule",
        "loss-based",
        "--byzantine",
        2,
        "--byzantine",
        2,
        "--attack",
        "sign_flip",
    )
    said = varangian_("run", *SMALL, *twice, "--attack", "sign-flip", "--out", tmp_path / "run")
    assert said.status == 0, said.err
    assert [(row["rule"], row["attack"]) for row in rows_of(tmp_path / "run")] == [("loss-based", "sign-flip")]


def test_metrics_open_with_plain_xarray(run: tuple[Path, Said]) -> None:
    with xr.open_dataset(run[0] / "metrics.nc") as metrics:
        assert metrics["regret"].dims == ("cell", "seed", "round", "agent")
        assert metrics.attrs["study"] == "target-localization"
