"""The outcome of a tournament in words and numbers: rows, a table in Markdown, a table on the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

from varangian.attacks.base import in_words
from varangian.experiments.tournament.standings import REFERENCE, Outcome, Panel, Standings
from varangian.report.plain_text import plain


def csv_rows(standings: Standings) -> Iterator[dict[str, Any]]:
    """One row per outcome. Differences from no cooperation are paired by seed."""
    for outcome in standings.outcomes:
        yield {
            "rule": outcome.rule,
            "attack": outcome.attack or ("any" if outcome.byzantine else "none"),
            "byzantine": outcome.byzantine,
            "seeds": len(outcome.values),
            "metric": standings.metric,
            "mean": outcome.mean,
            "se": outcome.error,
            "worst": outcome.worst,
            "alone_mean": outcome.alone_mean,
            "difference": outcome.difference,
            "difference_se": outcome.difference_error,
            "ratio": outcome.ratio,
            "seconds": round(outcome.seconds, 4),
            "status": outcome.status,
            "knows": in_words(standings.known(outcome.attack)) if outcome.attack else "",
        }


def compact(value: float, digits: int = 3) -> str:
    """A number in few characters.

    >>> [compact(value) for value in (0.01999, 25.61, 1234.5, 1.2e7, 4.56e-6, 0, math.inf)]
    ['0.0200', '25.6', '1234', '1.2e7', '4.6e-6', '0', '∞']
    """
    if not math.isfinite(value):
        return "∞"
    if value and not 1e-4 <= abs(value) < 1e4:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.0f}" if not value or abs(value) >= 10**digits else f"{value:#.{digits}g}".rstrip(".")


def measured(standings: Standings, outcome: Outcome) -> tuple[str, str]:
    """Mean and standard error in few characters, in percent for accuracies. The error is empty if it is unknown.

    >>> measured(Standings("s", "accuracy", 9, 5, 2, ()), Outcome("average", "", 0, (0.9, 0.94), (0.8, 0.8)))
    ('92.0', '2.0')
    """
    mean, error = outcome.mean, outcome.error
    if standings.scale.in_points:
        shown = f"{100 * mean:.1f}" if math.isfinite(mean) else "∞"
        return shown, "" if math.isnan(error) else f"{100 * error:.1f}"
    return compact(mean), "" if math.isnan(error) else compact(error, 2)


def relative(standings: Standings, outcome: Outcome) -> str:
    """The outcome relative to no cooperation: a factor, or points won (+) and lost (−)."""
    harm = standings.harm(outcome)
    if harm == math.inf:
        return "not finite"
    if standings.scale.in_points:
        return f"{-harm:+.1f}".replace("-", "−") if abs(harm) >= 0.05 else "0.0"
    return f"{compact(outcome.ratio)}×"


def place(standings: Standings, panel: Panel) -> str:
    return f"{panel.byzantine} of {standings.agents} agents Byzantine" if panel.byzantine else "No Byzantine agents"


def _cell(standings: Standings, outcome: Outcome | None) -> str:
    """Mean ± standard error, with `≈` if it is as good as no cooperation, and bold if it is better."""
    if outcome is None:
        return ""
    if outcome.problem:
        return "n/a" if outcome.problem.startswith("not applicable") else "failed"
    mean, error = measured(standings, outcome)
    text = f"{mean} ± {error}" if error else mean
    if outcome.rule == REFERENCE:
        return text
    if standings.near(outcome):
        return f"≈ {text}"
    return f"**{text}**" if standings.harm(outcome) < 0 and not standings.broken_seeds(outcome) else text


def _lines(standings: Standings, panel: Panel) -> Iterator[list[str]]:
    calm = panel.byzantine > 0 and standings.at(REFERENCE, "", 0) is not None
    hostile = panel.byzantine > 0
    if len(panel.groups) > 1:  # one heading per group, above its first attack
        headings = [part for group in panel.groups for part in (f"*{group.title}*", *[""] * (len(group.attacks) - 1))]
        yield ["*attacks know*", *[""] * calm, *headings, ""]
    yield ["rule", *["no attack"] * (calm or not hostile), *(panel.attacks if hostile else ()), "worst attack"]
    for rule in panel.rules:
        line = [rule, *[_cell(standings, standings.at(rule, "", 0))] * calm]
        line += [_cell(standings, standings.at(rule, attack, panel.byzantine)) for attack in panel.attacks]
        worst = standings.worst(rule, panel.byzantine)
        if worst is None or rule == REFERENCE:
            yield [*line, "" if worst is None else "the reference"]
        else:
            verdict = standings.verdict(rule, panel.byzantine)
            yield [*line, f"{worst.attack or 'no attack'}: {relative(standings, worst)}, {verdict}"]


def _by_knowledge(standings: Standings, panel: Panel) -> Iterator[list[str]]:
    """For each rule, the worst case among attacks that know no more than each group."""
    yield ["rule", *(group.title for group in panel.groups)]
    for rule in panel.rules:
        if rule != REFERENCE:
            worst = [standings.worst(rule, panel.byzantine, group.knowledge) for group in panel.groups]
            yield [rule, *(f"{relative(standings, each)} ({each.attack})" if each else "n/a" for each in worst)]


def markdown(standings: Standings) -> str:
    """One table per number of Byzantine agents: rules by their worst case, attacks by their knowledge and harm."""
    scale = standings.scale
    unit = " in percent" if scale.in_points else ""
    error = f" ± standard error over {standings.seeds} seeds" if standings.seeds > 1 else ", one seed"
    parts = [
        f"# Tournament: {standings.study}",
        f"{standings.metric.capitalize()}{unit} after {standings.rounds} rounds, mean over normal agents{error}. "
        "Rules stand in the order of their worst case, the best first; attacks in "
        "groups by what they know, and in the order of the harm they do, the most harmful first. The last column "
        "compares with no cooperation: "
        + ("points won or lost." if scale.in_points else "a factor, below 1 being better."),
        "**Bold** is better than no cooperation; ≈ is within two standard errors of it, and no seed is "
        f"{scale.broken_in_words} it; where one is, the rule breaks.",
    ]
    for panel in standings.panels:
        parts += [f"## {place(standings, panel)}", _table(_lines(standings, panel))]
        if len(panel.groups) > 1:
            parts += [
                "Worst case by knowledge, compared with no cooperation: what the strongest attack does that knows no "
                "more than the head of the column says.",
                _table(_by_knowledge(standings, panel)),
            ]
    problems: dict[str, list[str]] = {}
    for outcome in standings.outcomes:
        if outcome.problem:
            under = f" under {outcome.attack} ({outcome.byzantine} Byzantine)" if outcome.attack else ""
            problems.setdefault(outcome.problem, []).append(f"{outcome.rule}{under}")
    if problems:
        listed = [f"- {_some(who)}: {problem}" for problem, who in problems.items()]
        parts += ["## Without result", "\n".join(listed)]
    return "\n\n".join(parts) + "\n"


def _table(rows: Iterator[list[str]]) -> str:
    heads, *lines = rows
    table = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in table)


def _plain(text: str) -> str:
    return text.replace("|", "\\|")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def print_standings(standings: Standings) -> None:
    """Print one table per number of Byzantine agents: rule, no attack, worst case by knowledge, verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 10_000)
    styles = {"better": "green", "breaks": "red", "worse": "yellow"}
    for panel in standings.panels:
        title = f"{standings.study}, {place(standings, panel)}: {standings.metric} at the end, {_seeds(standings)}"
        shown = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        calm = panel.byzantine > 0 and standings.at(REFERENCE, "", 0) is not None
        levels = {f"knowing {group.title}": group.knowledge for group in panel.levels}
        heads = [
            "rule",
            *["no attack"] * calm,
            *levels,
            *["worst attack"] * (panel.byzantine > 0),
            "value",
            "vs alone",
            "verdict",
        ]
        for head in heads:
            right = head in ("no attack", *levels, "value", "vs alone")
            shown.add_column(head, justify="right" if right else "left", overflow="fold")
        for rule in panel.rules:
            verdict, worst = standings.verdict(rule, panel.byzantine), standings.worst(rule, panel.byzantine)
            line = [rule, *[_mean(standings, standings.at(rule, "", 0))] * calm]
            line += [_mean(standings, standings.worst(rule, panel.byzantine, known)) for known in levels.values()]
            line += [worst.attack if worst else ""] * (panel.byzantine > 0)
            line += [_mean(standings, worst), relative(standings, worst) if worst else ""]
            style = next((style for start, style in styles.items() if verdict.startswith(start)), "")
            bold = "bold" if rule == REFERENCE else ""
            shown.add_row(*(Text(plain(text, console.encoding), bold) for text in line), Text(verdict, style or bold))
        console.print(shown)
        console.print()


def _seeds(standings: Standings) -> str:
    return f"{standings.seeds} seed{'s' * (standings.seeds != 1)}"


def _mean(standings: Standings, outcome: Outcome | None) -> str:
    return measured(standings, outcome)[0] if outcome and outcome.values else "n/a"
