"""The figures: what is drawn, how much of it, and that drawing leaves nothing behind."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib import _pylab_helpers
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from PIL import Image

from varangian import rules, studies
from varangian.attacks import uniform
from varangian.core.errors import BadInput
from varangian.engine.run import simulate
from varangian.report import curves, draw_figures, network
from varangian.report.curve_data import scenarios
from varangian.report.network_data import final_trust, in_the_middle, largest_minority, neighbours, positions
from varangian.report.paper import paper_figure
from varangian.report.paper_panels import Panel
from varangian.report.payload import shown
from varangian.report.spread import drawn_points, is_logarithmic, looks_of, spread, trailing_mean

pytestmark = pytest.mark.filterwarnings("error")

RULES = {"loss-based": rules.loss_based(), "average": rules.average()}
SHARED = ["position", "group", "sender"]


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """No test may leave a figure in pyplot's registry. Others, such as the manual's notebooks, use pyplot."""
    _pylab_helpers.Gcf.destroy_all()
    yield
    assert not _pylab_helpers.Gcf.figs


@pytest.fixture(scope="module")
def run() -> xr.Dataset:
    """Two rules, without attack and with 6 of 30 and 29 of 30 Byzantine."""
    cells, names = [], []
    for count in (0, 6, 29):
        for name, rule in RULES.items():
            study = studies.target_localization(agents=30)
            cells.append(simulate(study, rule=rule, attack=uniform(15, 16), byzantine=count, rounds=60, seeds=2))
            names.append((name, "uniform:low=15,high=16", count))
    joined = xr.concat([cell.drop_vars(SHARED) for cell in cells], "cell").merge(cells[0][SHARED])
    return _named(joined, names)


def _named(data: xr.Dataset, cells: list[tuple[str, str, int]]) -> xr.Dataset:
    rule, attack, byzantine = (list(column) for column in zip(*cells, strict=True))
    named = data.assign_coords(rule=("cell", rule), attack=("cell", attack), byzantine=("cell", byzantine))
    return named.assign_attrs(study="tiny", metric="loss", by_group="0")


def tiny(cells: list[tuple[str, str, int]], rounds: int = 4, agents: int = 3, name: str = "loss") -> xr.Dataset:
    """Numbers made up for two seeds; the first agents are Byzantine."""
    values = np.random.default_rng(0).uniform(0.1, 1, (len(cells), 2, rounds, agents))
    lying = np.arange(agents) < np.array([count for _, _, count in cells])[:, None, None]
    data = {
        name: (("cell", "seed", "round", "agent"), values),
        "byzantine_agent": (("cell", "seed", "agent"), np.broadcast_to(lying, (len(cells), 2, agents))),
    }
    return _named(xr.Dataset(data, {"round": np.arange(1, rounds + 1)}), cells)


def visible(figure: Figure) -> list[str]:
    """The titles of the panels to be seen."""
    return [ax.get_title() for ax in figure.axes if ax.get_visible()]


def names_in_legend(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_all_figures_are_written_small_and_openable(run: xr.Dataset, tmp_path: Path) -> None:
    written = draw_figures(run.isel(cell=[2, 3]), tmp_path)
    assert {path.name for path in written if path.suffix == ".png"} == {
        "loss.png",
        "regret.png",
        "byzantine_weight.png",
        "network.png",
    }
    assert set(written) == set((tmp_path / "figures").iterdir())
    for path in written:
        assert path.stat().st_size < 300_000
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        else:
            assert path.read_bytes().startswith(b"%PDF")


def test_each_group_has_its_figure_where_the_study_asks(tmp_path: Path) -> None:
    data = tiny([("average", "uniform", 0)]).assign_attrs(by_group="1")
    data["group"] = (("seed", "agent"), [["MNIST", "MNIST", "made up"]] * 2)
    names = {path.name for path in draw_figures(data, tmp_path) if path.suffix == ".png"}
    assert names == {"loss.png", "loss-group-MNIST.png", "loss-group-made-up.png"}


def test_the_palette_keeps_even_rare_colours(tmp_path: Path) -> None:
    names = ["loss-based", "alone", "a", "b", "c", "d", "e", "f"]
    draw_figures(tiny([(name, "uniform", 0) for name in names]), tmp_path)
    with Image.open(tmp_path / "figures" / "loss.png") as image:
        seen = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0).astype(int)
    assert seen.max(0).min() == 255  # paper stays white
    for colour, _ in looks_of(tiny([(name, "uniform", 0) for name in names])).values():
        wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
        assert np.abs(seen - wanted).max(1).min() < 16


def test_a_panel_for_each_number_and_a_line_and_band_for_each_rule(run: xr.Dataset) -> None:
    figure = curves(run, "loss")
    assert visible(figure) == ["No attack", "6 Byzantine: uniform", "29 Byzantine: uniform"]
    for ax in figure.axes:
        assert len(ax.lines) == 2
        assert sum(isinstance(drawn, PolyCollection) for drawn in ax.collections) == 2
        assert ax.get_yscale() == "log"
    assert names_in_legend(figure) == ["loss-based", "average"]


def test_band_and_line_are_those_computed_by_hand() -> None:
    data = tiny([("average", "uniform", 1)])
    normal = data["loss"].values[0, :, :, 1:]
    curve = spread(data.isel(cell=0), "loss")
    np.testing.assert_allclose(curve["low"], normal.min(2).mean(0))
    np.testing.assert_allclose(curve["high"], normal.max(2).mean(0))
    np.testing.assert_allclose(curve["mean"], normal.mean((0, 2)))
    (ax,) = curves(data, "loss").axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), normal.mean((0, 2)))
    corners = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx(normal.max(2).mean(0).max())
    assert corners.min() == pytest.approx(normal.min(2).mean(0).min())


def test_group_shows_only_its_agents() -> None:
    data = tiny([("average", "uniform", 0)])
    data["group"] = (("seed", "agent"), [["a", "a", "b"], ["a", "a", "b"]])
    np.testing.assert_allclose(spread(data.isel(cell=0), "loss", "b")["mean"], data["loss"].values[0, :, :, 2].mean(0))


def test_moving_mean_looks_back_skips_nan_and_survives_a_huge_value() -> None:
    values = np.array([1e300, 2.0, 4.0, np.nan, 6.0, np.nan, np.nan])
    means = trailing_mean(values, 2, np.arange(7))
    np.testing.assert_array_equal(means, [1e300, 5e299, 3.0, 4.0, 6.0, 6.0, np.nan])


@pytest.mark.parametrize("window", [1, 3, 40])
def test_moving_mean_is_that_of_every_window_alone(window: int) -> None:
    random = np.random.default_rng(0)
    values = np.where(random.random((30, 2, 4)) < 0.3, np.nan, random.normal(size=(30, 2, 4)))
    values[:, 1, 2] = np.nan  # an agent that is Byzantine
    ends = drawn_points(len(values), 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        alone = [np.nanmean(values[max(0, end - window + 1) : end + 1], axis=0) for end in ends]
    np.testing.assert_allclose(trailing_mean(values, window, ends), alone, rtol=1e-14)


def test_a_long_run_is_thinned_smoothed_and_says_so() -> None:
    data = tiny([("average", "uniform", 0)], rounds=2000)
    (ax,) = curves(data, "loss").axes
    at = ax.lines[0].get_xdata()
    assert (len(at), at[0], at[-1]) == (500, 1, 2000)
    assert "moving mean over 40 rounds" in ax.get_ylabel()
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(data["loss"].values[..., -40:, :].mean())


def test_attacks_make_rows_each_headed_by_the_panel_without() -> None:
    data = tiny([("a", "none", 0), ("a", "flip", 1), ("a", "noise:std=1", 1), ("a", "noise:std=1", 2)])
    first, second = [p for p in scenarios(data, "loss") if p.row == 0], [p for p in scenarios(data, "loss") if p.row]
    assert [panel.title for panel in first] == ["No attack", "1 Byzantine: flip"]
    assert [panel.title for panel in second] == ["No attack", "1 Byzantine: noise", "2 Byzantine: noise"]
    assert len(visible(curves(data, "loss"))) == 5  # of six places


def test_settings_are_named_where_only_they_tell_attacks_apart() -> None:
    data = tiny([("a", "noise:std=1", 1), ("a", "noise:std=2", 1)])
    assert [panel.title for panel in scenarios(data, "loss")] == [
        "1 Byzantine: noise:std=1",
        "1 Byzantine: noise:std=2",
    ]


def test_many_rules_look_different_and_the_papers_always_the_same() -> None:
    names = ["median", "loss-based", "krum", "alone", "loss-based:keep=all", "average", "distance-based", "mean:trim=2"]
    data = tiny([(name, "uniform", 0) for name in names])
    looks = looks_of(data)
    assert len(set(looks.values())) == len(names)
    assert looks["loss-based"] == looks_of(tiny([("loss-based", "uniform", 0)]))["loss-based"]
    assert names_in_legend(curves(data, "loss")) == names


def test_rules_without_weights_have_no_line_and_unmeasured_metrics_no_file(run: xr.Dataset, tmp_path: Path) -> None:
    some = run.assign(byzantine_weight=run["byzantine_weight"].where(run["rule"] == "average"))
    figure = curves(some, "byzantine_weight")
    assert visible(figure) == ["6 Byzantine: uniform", "29 Byzantine: uniform"]
    assert names_in_legend(figure) == ["average"]
    none = tiny([("average", "uniform", 1)]).assign_attrs(metric="missing")
    none["regret"] = none["loss"] * np.nan
    assert [text.get_text() for text in curves(none, "regret").axes[0].texts] == ["not measured"]
    assert draw_figures(none, tmp_path) == []


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, 1e300])
def test_values_no_logarithmic_axis_can_show_still_give_a_figure(value: float, tmp_path: Path) -> None:
    data = tiny([("average", "uniform", 0), ("alone", "uniform", 0)])
    curves(data.assign(loss=data["loss"] * 0 + value), "loss").savefig(tmp_path / "all.png", dpi=40)
    data["loss"] = data["loss"].where(data["rule"] == "alone", value)
    curves(data, "loss").savefig(tmp_path / "one.png", dpi=40)


def test_what_diverges_leaves_the_panel_and_the_rest_stays_readable() -> None:
    data = tiny([("average", "uniform", 0), ("alone", "uniform", 0)])
    data["loss"] = data["loss"].where(data["rule"] == "alone", 1e30)
    low, high = curves(data, "loss").axes[0].get_ylim()
    assert low > 1e-2
    assert high < 1e10


def test_epochs_have_their_own_axis_and_accuracy_a_linear_one_even_of_one_epoch(tmp_path: Path) -> None:
    data = tiny([("average", "uniform", 0)], name="accuracy").rename(round="epoch").assign_attrs(metric="accuracy")
    (ax,) = curves(data, "accuracy").axes
    assert (ax.get_xlabel(), ax.get_yscale()) == ("Epoch", "linear")
    assert len(draw_figures(data.isel(epoch=[0]), tmp_path)) == 2  # and no network: none is known


def test_network_shows_the_largest_minority_and_whom_it_trusts(run: xr.Dataset) -> None:
    assert largest_minority(run) == 6
    figure = network(run)
    plain, weighted = figure.axes
    assert plain.get_title() == "30 agents, 6 Byzantine"
    assert "loss-based, attack uniform" in weighted.get_title()
    normal, lying = (len(drawn.get_offsets()) for drawn in plain.collections[1:])
    assert (normal, lying) == (24, 6)
    assert isinstance(plain.collections[0], LineCollection)
    assert len(plain.collections[0].get_segments()) == len(neighbours(run.isel(seed=0)))
    assert len(network(run.drop_vars("weight")).axes) == 1
    assert len(network(run.sel(cell=run["rule"] == "average")).axes) == 1
    assert network(run, 29).axes[0].get_title() == "30 agents, 29 Byzantine"
    with pytest.raises(BadInput, match="7 Byzantine"):
        network(run, 7)


def test_trust_is_the_heavier_direction_and_byzantine_receivers_do_not_count() -> None:
    data = tiny([("loss-based", "uniform", 1)])
    data["sender"] = (("seed", "agent", "slot"), np.array([[[0, 1, 2], [1, 0, 2], [2, 1, 2]]] * 2))
    table = np.array([[0.2, 0.8, 0.0], [0.6, 0.1, 0.3], [0.5, 0.5, 0.0]])
    data["weight"] = (("cell", "seed", "snapshot", "agent", "slot"), np.stack([table, table])[None, :, None])
    shown = data.isel(seed=0, cell=0)
    pairs = neighbours(shown)
    assert pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    np.testing.assert_allclose(final_trust(shown, pairs, np.array([True, False, False])), [0.1, 0.0, 0.5])


def test_a_single_agent_is_drawn_too(tmp_path: Path) -> None:
    result = simulate(studies.target_localization(agents=1), rounds=5)
    alone = result.drop_vars(SHARED, errors="ignore").expand_dims("cell").merge(result[["position", "group"]])
    data = _named(alone, [("loss-based", "none", 0)])
    curves(data, "loss").savefig(tmp_path / "loss.png", dpi=40)
    network(data).savefig(tmp_path / "network.png", dpi=40)


def test_tables_need_no_matplotlib() -> None:
    code = "import sys, varangian.report; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_papers_panels_say_whose_they_are() -> None:
    data = tiny([("alone", "uniform", 0), ("alone", "uniform", 2)])
    data["group"] = (("seed", "agent"), [[0, 0, 1]] * 2)
    figure = paper_figure(data, [Panel("loss", 0), Panel("loss", 2), Panel("loss", 0, 1), Panel("loss", 2, 0)])
    assert visible(figure) == ["No attack", "2 Byzantine", "Group 2: no attack", "Group 1: 2 Byzantine"]


def test_no_cooperation_is_seen_where_another_rule_equals_it() -> None:
    figure = curves(tiny([("alone", "uniform", 0), ("loss-based", "uniform", 0), ("median", "uniform", 0)]), "loss")
    alone, *others = figure.axes[0].lines
    assert alone.get_zorder() > max(line.get_zorder() for line in others)


@pytest.mark.parametrize(("least", "labels"), [(0.3, {"0.5", "1", "2"}), (3e-4, {"-3", "-2", "-1", "0"})])
def test_a_short_logarithmic_axis_has_plain_numbers(least: float, labels: set[str]) -> None:
    data = tiny([("alone", "uniform", 0)])
    data["loss"] = data["loss"] * 0 + xr.DataArray(np.geomspace(least, 3, data.sizes["round"]), dims="round")
    axis = curves(data, "loss").axes[0].yaxis
    places = [place for place in axis.get_majorticklocs() if least <= place <= 3]
    shown = axis.get_major_formatter().format_ticks(places)
    powers = {text.partition("10^{")[2].partition("}")[0] for text in shown}
    assert labels in (set(shown), powers)


def test_the_success_of_a_backdoor_is_a_share_and_not_a_loss() -> None:
    assert not is_logarithmic("backdoor_success") and is_logarithmic("test_loss")
    assert shown(0.984, "backdoor_success") == "98.4"
    count = 6
    accuracy = xr.DataArray(np.full((1, 2, count), 0.5), dims=("seed", "epoch", "agent"))
    told = xr.Dataset({"accuracy": accuracy, "backdoor_success": accuracy}).expand_dims("cell")
    about = {"rule": ("cell", ["average"]), "attack": ("cell", ["backdoor"]), "byzantine": ("cell", [2])}
    who = xr.DataArray(np.arange(count)[None, None] < 2, dims=("cell", "seed", "agent"))
    told = told.assign_coords(**about, epoch=[1, 2], round_of_epoch=("epoch", [5, 10])).assign(byzantine_agent=who)
    (axes,) = curves(told, "backdoor_success").axes
    assert [tick.get_text() for tick in axes.get_yticklabels()][-1].endswith("%")


def test_a_large_network_is_cut_to_the_agents_in_the_middle(run: xr.Dataset) -> None:
    first = run.isel(seed=0)
    some = in_the_middle(first, 10)
    assert some.sizes["agent"] == 10
    kept, places = some["agent"].values, positions(first)
    from_middle = np.abs(places - np.median(places, axis=0)).max(1)
    assert from_middle[kept].max() <= np.delete(from_middle, kept).min()
    inside = [pair for pair in neighbours(first).tolist() if set(pair) <= set(kept.tolist())]
    assert kept[neighbours(some)].tolist() == inside
    on_a_circle = in_the_middle(first.drop_vars(["position", "sender"]), 4)
    assert on_a_circle["agent"].values.tolist() == [0, 10, 19, 29]
    assert in_the_middle(first, 30) is first
