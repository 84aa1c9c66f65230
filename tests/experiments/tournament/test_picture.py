"""The picture of a tournament says what its numbers say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from tournaments import FILES, first_tournament, large, made_up, outcome

from varangian.experiments.tournament.standings import Outcome, Standings
from varangian.report.heatmap import CELL, draw_heatmap

torch.set_num_threads(1)

standings = pytest.fixture(scope="module")(first_tournament)


def test_thirty_rules_against_twenty_eight_attacks_fit_the_picture() -> None:
    found = large()
    figure = draw_heatmap(found)
    ax = figure.axes[0]
    (panel,) = found.panels
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["no attack", *panel.attacks, "worst case"]
    assert len(ax.get_yticklabels()) == 30
    assert all(len(tick.get_text()) <= 36 for tick in ax.get_yticklabels())
    width, height = figure.get_size_inches()
    box = ax.get_position()
    assert box.width * width / ax.get_xlim()[1] == pytest.approx(CELL[0])
    assert box.height * height / 30 == pytest.approx(CELL[1])
    # Nothing is cut off, and no text of a cell is wider than the cell.
    canvas = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    everything = figure.get_tightbbox(renderer)
    assert everything.x0 >= 0 and everything.y0 >= 0 and everything.x1 <= width and everything.y1 <= height
    cell = CELL[0] * figure.dpi
    for text in ax.texts:
        if "no cooperation" not in text.get_text():
            assert text.get_window_extent(renderer).width <= cell


def boxes(figure: Any, row: int) -> list[Rectangle]:
    patches = figure.axes[0].patches
    return [patch for patch in patches if isinstance(patch, Rectangle) and math.floor(patch.get_y()) == row]


def test_colours_and_marks_say_what_the_numbers_say() -> None:
    one = (1.0, 1.0)
    parts = [outcome((0.6, 0.6), one, "good", "a"), outcome((0.5, 0.5), one, "good", "b")]
    parts += [outcome((1.0, 1.1), one, "even", "a"), outcome((0.95, 1.0), one, "even", "b")]
    parts += [outcome((math.nan, 1.0), one, "bad", "a"), outcome((3.0, 3.0), one, "bad", "b")]
    parts += [Outcome("none", attack, 3, (), one, problem="not applicable: no") for attack in "ab"]
    found = made_up(parts)
    figure = draw_heatmap(found)
    (panel,) = found.panels
    assert panel.rules == ("good", "alone", "even", "bad", "none") and panel.attacks == ("a", "b")
    filled = {
        (row, math.floor(patch.get_x())): patch.get_facecolor()
        for row in range(5)
        for patch in boxes(figure, row)
        if patch.get_facecolor()[3] and not patch.get_hatch()
    }

    def blueness(row: int, column: int) -> float:
        red, _, blue, _ = filled[row, column]
        return float(blue - red)

    assert blueness(0, 0) > 0.1 and blueness(0, 1) > 0.1, "blue is better"
    assert sum(filled[0, 1]) < sum(filled[0, 0]), "the better, the darker"
    assert abs(blueness(1, 0)) < 0.01, "no cooperation has the colour in the middle"
    assert blueness(3, 1) < -0.2 and filled[3, 0] == to_rgba("#67001f"), "what is not finite is worst"
    outlined = {
        (row, math.floor(patch.get_x()))
        for row in range(5)
        for patch in boxes(figure, row)
        if patch.get_edgecolor() == to_rgba("#1a1a1a")
    }
    assert outlined == {(0, 0), (2, 0), (3, 0)}
    hatched = {math.floor(patch.get_x()) for patch in boxes(figure, 4) if patch.get_hatch()}
    assert hatched == {0, 1}
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in texts if "≈" in text] == ["≈ 1.05", "≈ 0.975", "≈ 1.05×"]
    assert "∞" in texts and "not finite" in texts and "0.600×" in texts


def test_no_attack_is_the_worst_where_all_are_the_same() -> None:
    one = (1.0, 1.0)
    parts = [outcome((0.7, 0.8), one, "deaf", attack) for attack in "abc"]
    parts += [outcome((0.9, value), one, "hears", attack) for attack, value in zip("abc", (0.8, 0.9, 0.8), strict=True)]
    figure = draw_heatmap(made_up(parts))
    outlined = [
        (row, math.floor(patch.get_x()))
        for row in range(3)
        for patch in boxes(figure, row)
        if patch.get_edgecolor() == to_rgba("#1a1a1a")
    ]
    assert outlined == [(1, 0)], "b, which harms most and therefore stands first"


def test_a_picture_of_accuracy_tells_points() -> None:
    one = (0.9, 0.9)
    found = made_up([outcome((0.95, 0.95), one, "good"), outcome((0.4, 0.4), one, "bad")], "accuracy")
    figure = draw_heatmap(found)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"95.0", "+5.0", "40.0", "−50.0", "0.0"} <= set(texts)
    labels = [tick.get_text() for tick in figure.axes[1].get_xticklabels()]
    assert labels == ["+5", "0", "−10", "−25", "−50"]


def test_a_tournament_writes_a_picture(standings: tuple[Path, Standings]) -> None:
    folder = standings[0]
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "tournament.png").read_bytes().startswith(b"\x89PNG")


def test_columns_are_grouped_by_what_attacks_know() -> None:
    one = (1.0, 1.0)
    values = {"a": 0.5, "b": 0.9, "c": 3.0}
    known: Any = {"a": (), "b": ("messages",), "c": ("messages", "rule", "sample", "future sample", "truth")}
    parts = [outcome((value, value), one, "rule", attack) for attack, value in values.items()]
    figure = draw_heatmap(replace(made_up(parts), knowledge=known))
    ax = figure.axes[0]
    names = ["a", "b", "c", "worst case", "worst case", "worst case"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == names
    at = {text.get_text().replace("\n", " "): text.get_position() for text in ax.texts}
    middles = dict(zip(names, ax.get_xticks(), strict=False))
    assert at["messages, rule, sample, future sample, truth"][0] == pytest.approx(middles["c"])
    assert at["messages, rule, sample, future sample, truth"][1] < 0, "above the cells"
    shown = {text.get_text(): text.get_position()[0] for text in ax.texts if text.get_text().endswith("×")}
    assert [shown[text] for text in ("0.500×", "0.900×", "3.00×")] == list(ax.get_xticks()[3:])
    canvas = FigureCanvasAgg(figure)
    everything, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    assert everything.x0 >= 0 and everything.y0 >= 0 and everything.x1 <= width and everything.y1 <= height
    strips = [text for text in ax.texts if ", " in text.get_text()]
    assert all(strip.get_window_extent(canvas.get_renderer()).width <= 1.02 * CELL[0] * figure.dpi for strip in strips)
