"""A tournament as one figure: which rule to use, and what breaks it.

Rules are sorted by their worst case, the best at the top. Rules above the row of no cooperation are worth using, rules
below it are not. Colour is harm relative to no cooperation: blue if cooperation helps, red if it harms. Attacks are
grouped by what they know, and the worst case is shown for each knowledge.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from varangian.experiments.tournament.standings import REFERENCE, Group, Outcome, Panel, Standings
from varangian.report.standings import measured, place, relative

CELL = (0.6, 0.33)
"""Width and height in inches: enough for a mean with its standard error below it."""
APART = 0.25
"""The gap between no attack, the attacks and the worst case, in cells."""
ABOVE, BELOW, BETWEEN = 0.95, 1.65, 0.3
"""Inches for the text above all panels, for the text below them, and between two panels."""
COLOURS = colormaps["RdBu_r"]
INK, GREY, HATCH = "#1a1a1a", "#f2f2f2", "#b5b5b5"
HATCHES = {"not applicable": "////", "failed": "xxxx"}
LINE, LETTER = 0.13, 0.052
"""Inches for one line and one letter in the strip that says what attacks know."""
KNOW = "attacks know:"
LONGEST = 36
"""The largest number of characters of a name that are shown."""


def draw_heatmap(standings: Standings) -> Figure:
    """One panel per number of Byzantine agents: rules as rows, attacks as columns, the worst case at the right."""
    grids = [_Grid(standings, panel) for panel in standings.panels]
    left = 0.3 + 0.078 * max(len(_short(name)) for grid in grids for name in (*grid.panel.rules, KNOW))
    heads = [0.4 + grid.strip + 0.052 * max(len(_short(name)) for name in grid.columns) for grid in grids]
    # The last column title leans to the right, and the text below the panels needs some width.
    width = max(left + CELL[0] * max(grid.width for grid in grids) + 0.8, 7.5)
    height = ABOVE + sum(heads) + CELL[1] * sum(len(grid.panel.rules) for grid in grids) + BELOW
    height += BETWEEN * (len(grids) - 1)
    figure = Figure(figsize=(width, height))
    colour = _scale(standings)
    reached = ABOVE
    for grid, head in zip(grids, heads, strict=True):
        tall = CELL[1] * len(grid.panel.rules)
        title = {"fontsize": 11, "fontweight": "bold", "va": "top"}
        figure.text(0.15 / width, 1 - reached / height, place(standings, grid.panel), title)
        inches = (left, height - reached - head - tall, CELL[0] * grid.width, tall)
        grid.draw(figure.add_axes(_share(inches, width, height)), colour)
        reached += head + tall + BETWEEN
    _say(figure, standings, width, height)
    _explain(figure, standings, colour, left, width, height)
    return figure


def _share(inches: tuple[float, float, float, float], width: float, height: float) -> tuple[float, float, float, float]:
    x, y, wide, tall = inches
    return x / width, y / height, wide / width, tall / height


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


@dataclass(frozen=True)
class _Colour:
    """Maps harm to colour. Each side of the scale ends at the largest value that occurs."""

    good: float
    bad: float

    @property
    def mappable(self) -> ScalarMappable:
        return ScalarMappable(TwoSlopeNorm(0.0, -self.good, self.bad), COLOURS)

    def of(self, harm: float) -> tuple[float, float, float, float]:
        side = self.good if harm < 0 else self.bad
        return COLOURS(0.5 + 0.5 * min(max(harm / side, -1.0), 1.0))


def _scale(standings: Standings) -> _Colour:
    """The colour scale. Each side covers at most a factor of ten or fifty points; larger differences do not matter."""
    harms = [standings.harm(outcome) for outcome in standings.outcomes]
    known = [harm for harm in harms if not math.isnan(harm)]
    fewest, most = ((5.0, 10.0), 50.0) if standings.scale.in_points else ((math.log10(2), math.log10(3)), 1.0)
    good = min(max(-min(known, default=0.0), fewest[0]), most)
    return _Colour(good, min(max(max(known, default=0.0), fewest[1]), most))


@dataclass(frozen=True)
class _Grid:
    """One panel, in units of one cell: the columns and their positions."""

    standings: Standings
    panel: Panel

    @cached_property
    def columns(self) -> dict[str, float]:
        calm = self.standings.at(REFERENCE, "", 0) is not None
        names = {"no attack": 0.0} if calm else {}
        after = 1 + APART if calm else 0.0
        for group in self.panel.groups:
            names |= {attack: after + place for place, attack in enumerate(group.attacks) if attack}
            after += len(group.attacks) + APART
        return names | ({"worst case": after + len(self.panel.levels)} if self.panel.byzantine else {})

    @cached_property
    def levels(self) -> dict[float, Group]:
        """Where the worst case of each knowledge stands: left of the worst case of all attacks."""
        first = self.columns.get("worst case", 0.0) - len(self.panel.levels)
        return {first + place: group for place, group in enumerate(self.panel.levels)}

    @property
    def width(self) -> float:
        return max(self.columns.values()) + 1

    @cached_property
    def strips(self) -> list[tuple[float, int, str]]:
        """What attacks know, above their columns: place, number of columns, text in lines that fit."""
        if len(self.panel.groups) < 2:
            return []
        spans = [(self.columns[group.attacks[0]], len(group.attacks), group.title) for group in self.panel.groups]
        spans += [(x, 1, group.title) for x, group in self.levels.items()]
        spans += [(self.columns["worst case"], 1, "all attacks")]
        return [(x, n, "\n".join(textwrap.wrap(title, int(n * CELL[0] / LETTER) + 2))) for x, n, title in spans]

    @property
    def strip(self) -> float:
        """The height of the strip in inches."""
        return max((LINE * (text.count("\n") + 1) + 0.05 for _, _, text in self.strips), default=0.0)

    def draw(self, ax: Axes, colour: _Colour) -> None:
        rules = self.panel.rules
        ax.set_xlim(0, self.width)
        ax.set_ylim(len(rules), 0)
        for row, rule in enumerate(rules):
            self._draw_rule(ax, colour, row, rule)
        ax.set_yticks([row + 0.5 for row in range(len(rules))], [_short(rule) for rule in rules], fontsize=9)
        for tick, rule in zip(ax.get_yticklabels(), rules, strict=True):
            tick.set_fontweight("bold" if rule == REFERENCE else "normal")
        columns = sorted([*self.columns.items(), *(("worst case", x) for x in self.levels)], key=lambda each: each[1])
        middles = [x + 0.5 for _, x in columns]
        ax.set_xticks(middles, [_short(name) for name, _ in columns], fontsize=9, rotation=45, ha="left")
        for head, (name, _) in zip(ax.get_xticklabels(), columns, strict=True):
            head.set(rotation_mode="anchor", fontweight="bold" if name == "worst case" else "normal")
        ax.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False, pad=3)
        ax.tick_params(axis="x", pad=3 + 72 * self.strip)
        ax.spines[:].set_visible(False)
        tall = self.strip / CELL[1]
        if self.strips:
            ax.text(-0.1, -tall / 2, KNOW, ha="right", va="center", fontsize=8, color="0.35")
        for x, cells, text in self.strips:
            look: dict[str, Any] = {"facecolor": GREY, "edgecolor": "white", "linewidth": 0.8, "clip_on": False}
            ax.add_patch(Rectangle((x, -tall), cells, tall, **look))
            ax.text(x + cells / 2, -tall / 2, text, ha="center", va="center", fontsize=6, color=INK, linespacing=1.1)

    def _draw_rule(self, ax: Axes, colour: _Colour, row: int, rule: str) -> None:
        worst = self.standings.worst(rule, self.panel.byzantine)
        for x, group in self.levels.items():
            self._draw_worst(ax, colour, x, row, self.standings.worst(rule, self.panel.byzantine, group.knowledge))
        for name, x in self.columns.items():
            if name == "worst case":
                self._draw_worst(ax, colour, x, row, worst)
                continue
            calm = name == "no attack"
            outcome = self.standings.at(rule, "" if calm else name, 0 if calm else self.panel.byzantine)
            if rule == REFERENCE:
                ax.add_patch(Rectangle((x, row), 1, 1, facecolor=colour.of(0.0), edgecolor="none"))
            else:
                self._draw_cell(ax, colour, x, row, outcome)
        if rule == REFERENCE:
            self._draw_reference(ax, row)
        elif worst and worst.attack in self.columns and self._tells_apart(rule):
            box = (self.columns[worst.attack] + 0.03, row + 0.05)
            for edge, line in (("white", 3.6), (INK, 1.8)):  # a white outline makes the black visible on dark cells
                ax.add_patch(Rectangle(box, 0.94, 0.9, facecolor="none", edgecolor=edge, linewidth=line, zorder=3))

    def _tells_apart(self, rule: str) -> bool:
        """Whether attacks differ in harm. If the rule ignores them all, none is the most harmful."""
        outcomes = [self.standings.at(rule, attack, self.panel.byzantine) for attack in self.panel.attacks]
        return len({self.standings.harm(outcome) for outcome in outcomes}) > 1

    def _draw_cell(self, ax: Axes, colour: _Colour, x: float, row: int, outcome: Outcome | None) -> None:
        if outcome is None or outcome.problem:
            hatch = HATCHES[outcome.problem.partition(":")[0]] if outcome else ""
            look: dict[str, Any] = {"facecolor": GREY, "edgecolor": HATCH, "hatch": hatch, "linewidth": 0}
            ax.add_patch(Rectangle((x, row), 1, 1, **look))
            _frame(ax, x, row)
            return
        ink = self._fill(ax, colour, x, row, self.standings.harm(outcome))
        mean, error = measured(self.standings, outcome)
        near = "≈ " if self.standings.near(outcome) else ""
        up = 0.36 if error else 0.5
        ax.text(x + 0.5, row + up, near + mean, ha="center", va="center_baseline", fontsize=7, color=ink)
        if error:
            ax.text(x + 0.5, row + 0.74, f"±{error}", ha="center", va="center_baseline", fontsize=5.5, color=ink)

    def _draw_worst(self, ax: Axes, colour: _Colour, x: float, row: int, worst: Outcome | None) -> None:
        if worst is None:
            return
        ink = self._fill(ax, colour, x, row, self.standings.harm(worst))
        near = "≈ " if self.standings.near(worst) and worst.rule != REFERENCE else ""
        text = near + relative(self.standings, worst)
        weight = "bold" if len(text) < 9 else "normal"
        ax.text(x + 0.5, row + 0.5, text, ha="center", va="center_baseline", fontsize=7, color=ink, fontweight=weight)

    def _fill(self, ax: Axes, colour: _Colour, x: float, row: int, harm: float) -> str:
        """Colour a cell; returns the colour of the text on it."""
        shade = colour.of(harm)
        ax.add_patch(Rectangle((x, row), 1, 1, facecolor=shade, edgecolor="none"))
        _frame(ax, x, row)
        red, green, blue, _ = shade
        return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else INK

    def _draw_reference(self, ax: Axes, row: int) -> None:
        """Draw the row of no cooperation. No attack can affect it, so its numbers are written once for all attacks."""
        hostile = [x for name, x in self.columns.items() if name not in ("no attack", "worst case")]
        spans = [(0.5, 0, 1)] if "no attack" in self.columns else []
        spans += [((hostile[0] + hostile[-1] + 1) / 2, self.panel.byzantine, len(hostile))] if hostile else []
        for middle, count, cells in spans:
            outcome = self.standings.at(REFERENCE, "", count)
            if outcome and outcome.values:
                mean, error = measured(self.standings, outcome)
                text = f"no cooperation: {mean}" + (f" ± {error}" if error else "") if cells > 3 else mean
                ax.text(middle, row + 0.5, text, ha="center", va="center_baseline", fontsize=7.5, color=INK)
        for y in (row, row + 1):
            ax.plot([0, self.width], [y, y], color=INK, linewidth=1.2, zorder=4, clip_on=False)


def _frame(ax: Axes, x: float, row: int) -> None:
    ax.add_patch(Rectangle((x, row), 1, 1, facecolor="none", edgecolor="white", linewidth=0.8, zorder=2))


def _say(figure: Figure, standings: Standings, width: float, height: float) -> None:
    title = f"{standings.study}: which rule to use, and what breaks it"
    unit = " in percent" if standings.scale.in_points else ""
    error = f" ± standard error over {standings.seeds} seeds" if standings.seeds > 1 else ", one seed"
    text = (
        f"{standings.metric.capitalize()}{unit} after {standings.rounds} rounds, mean over normal agents{error}.\n"
        "Best worst case on top. Attacks stand in groups by what they know, the most harmful to the left."
    )
    figure.text(0.15 / width, 1 - 0.15 / height, title, fontsize=13, fontweight="bold", va="top")
    figure.text(0.15 / width, 1 - 0.43 / height, text, fontsize=9, va="top", color="0.35", linespacing=1.35)


def _explain(figure: Figure, standings: Standings, colour: _Colour, left: float, width: float, height: float) -> None:
    """Explain the colours and the marks, below all panels."""
    bar = figure.add_axes(_share((left, 1.12, min(4.0, width - left - 0.5), 0.16), width, height))
    shown = figure.colorbar(colour.mappable, cax=bar, orientation="horizontal", extend="max")
    in_points = standings.scale.in_points
    ticks = [-50, -25, -10, -5, 0, 5, 10, 25, 50] if in_points else [0.1, 0.2, 0.5, 1, 2, 5, 10]
    labels = {(tick if in_points else math.log10(tick)): tick for tick in ticks}
    # Labels near the middle of a long side would overlap.
    labels = {at: tick for at, tick in labels.items() if -colour.good - 1e-9 <= at <= colour.bad + 1e-9}
    labels = {
        at: tick for at, tick in labels.items() if not at or abs(at) > 0.18 * (colour.good if at < 0 else colour.bad)
    }
    words = [
        (f"{-tick:+g}".replace("-", "−") if tick else "0") if in_points else f"{tick:g}×" for tick in labels.values()
    ]
    shown.set_ticks(list(labels), labels=words)
    bar.tick_params(labelsize=8)
    shown.outline.set_visible(False)
    what = f"{standings.metric}: points won or lost" if in_points else standings.metric
    bar.set_title(f"{what}, relative to no cooperation", fontsize=8.5, loc="left", pad=4)
    marks = [
        Patch(facecolor="none", edgecolor=INK, linewidth=1.8, label="the attack that harms this rule most"),
        Patch(
            alpha=0,
            label=f"≈  within two standard errors of no cooperation, and no seed {standings.scale.broken_in_words} it",
        ),
    ]
    problems = [outcome.problem for outcome in standings.outcomes if outcome.problem]
    for start, hatch in HATCHES.items():
        if any(problem.startswith(start) for problem in problems):
            marks.append(Patch(facecolor=GREY, edgecolor=HATCH, hatch=hatch, linewidth=0, label=start))
    where: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (left / width, 0.85 / height),
        "borderaxespad": 0,
    }
    figure.legend(handles=marks, fontsize=8, frameon=False, **where)
