"""What came of a tournament: every rule under every attack, measured against no cooperation.

The one number is *harm*: log₁₀ of the ratio to no cooperation where small is good (regret, loss, error), points lost
where large is good (accuracy). Below zero, cooperating paid; what is not finite is harm without end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from varangian.engine.results import Array, higher_is_better

REFERENCE = "alone"


@dataclass(frozen=True)
class Outcome:
    """One rule under one attack: what every seed ended with, or why nothing is known."""

    rule: str
    attack: str
    """Empty without Byzantine agents, and for `alone`, which no attack reaches."""
    byzantine: int
    values: tuple[float, ...] = ()
    """The metric at the end, mean over normal agents, for every seed …"""
    alone: tuple[float, ...] = ()
    """… and the same seeds' without cooperation."""
    worst: float = math.nan
    """The worst agent, mean over seeds."""
    seconds: float = 0.0
    problem: str = ""
    """`not applicable: …` or `failed: …` where there are no values."""

    @property
    def status(self) -> str:
        return self.problem or "done"

    @property
    def mean(self) -> float:
        return _mean(self.values)

    @property
    def error(self) -> float:
        """Standard error over seeds."""
        return _error(np.asarray(self.values))

    @property
    def alone_mean(self) -> float:
        return _mean(self.alone)

    @property
    def difference(self) -> float:
        """To no cooperation."""
        return _mean(self._differences)

    @property
    def difference_error(self) -> float:
        """Standard error of the difference, paired by seed: what makes a seed hard is hard for both."""
        return _error(self._differences)

    @property
    def ratio(self) -> float:
        """To no cooperation; infinite where no number says how bad it is."""
        if not self.values or not self.alone:
            return math.nan
        return float(_ratios(np.array([self.mean]), np.array([self.alone_mean]))[0])

    @property
    def _differences(self) -> Array:
        if not self.values or not self.alone:
            return np.empty(0)
        with np.errstate(invalid="ignore"):
            return np.subtract(self.values, self.alone)


def _mean(values: tuple[float, ...] | Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(values)) if len(values) else math.nan


def _error(values: Array) -> float:
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    with np.errstate(over="ignore"):
        return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _ratios(ours: Array, reference: Array) -> Array:
    """Ours over the reference; without end where ours is not finite.

    Where one is not above zero a ratio says nothing: then it is 0 for the better, 1 for the same, infinite for the
    worse.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        plain = np.where((ours > 0) & (reference > 0), ours / reference, np.where(ours > reference, math.inf, 0.0))
    return np.where(np.isfinite(ours), np.where(ours == reference, 1.0, plain), math.inf)


@dataclass(frozen=True)
class Scale:
    """How harm is measured: as a ratio or in points, and from where on a rule has broken."""

    metric: str

    @property
    def in_points(self) -> bool:
        return higher_is_better(self.metric)

    @property
    def broken(self) -> float:
        """Harm above which a seed counts as broken: twice as bad as no cooperation, or ten points lost."""
        return 10.0 if self.in_points else math.log10(2)

    @property
    def most(self) -> float:
        """Beyond this, worse is no longer of interest: a thousand times as bad, or all points lost."""
        return 100.0 if self.in_points else 3.0

    @property
    def broken_in_words(self) -> str:
        return "more than ten points below" if self.in_points else "more than twice as bad as"

    def harm(self, ours: Array, reference: Array) -> Array:
        if self.in_points:
            with np.errstate(invalid="ignore"):
                return np.where(np.isfinite(ours), 100 * (reference - ours), math.inf)
        with np.errstate(divide="ignore"):
            return np.log10(_ratios(ours, reference))


@dataclass(frozen=True)
class Panel:
    """One number of Byzantine agents: rules by their worst case, the best first; attacks, the most harmful first."""

    byzantine: int
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    """Only the empty one without Byzantine agents."""


@dataclass(frozen=True)
class Standings:
    """All outcomes of a tournament."""

    study: str
    metric: str
    agents: int
    rounds: int
    seeds: int
    outcomes: tuple[Outcome, ...] = field(repr=False)

    @property
    def scale(self) -> Scale:
        return Scale(self.metric)

    @cached_property
    def _at(self) -> Mapping[tuple[str, str, int], Outcome]:
        return {(each.rule, each.attack, each.byzantine): each for each in self.outcomes}

    def at(self, rule: str, attack: str, byzantine: int) -> Outcome | None:
        """What came of a rule under an attack; None where it was not played."""
        reached = byzantine and rule != REFERENCE
        return self._at.get((rule, attack if reached else "", byzantine))

    def harm(self, outcome: Outcome | None) -> float:
        """How much worse than no cooperation, by the mean over seeds; nan where nothing is known.

        >>> round(Standings("s", "regret", 9, 5, 1, ()).harm(Outcome("average", "", 0, (20.0,), (0.2,))), 6)
        2.0
        >>> round(Standings("s", "accuracy", 9, 5, 1, ()).harm(Outcome("average", "", 0, (0.95,), (0.9,))), 6)
        -5.0
        """
        if outcome is None or not outcome.values or not outcome.alone:
            return math.nan
        return float(self.scale.harm(np.array([outcome.mean]), np.array([outcome.alone_mean]))[0])

    def broken_seeds(self, outcome: Outcome) -> int:
        """In how many seeds the rule broke."""
        harms = self.scale.harm(np.asarray(outcome.values), np.asarray(outcome.alone))
        return int((harms > self.scale.broken).sum())

    def near(self, outcome: Outcome | None) -> bool:
        """Whether no difference to no cooperation is seen: at most two standard errors, and no seed broken.

        A rule that breaks in one seed of five differs by one standard error only; it is not as good as alone.
        """
        if outcome is None or not outcome.values or not outcome.alone or self.broken_seeds(outcome):
            return False
        return outcome.difference == 0 or abs(outcome.difference) <= 2 * outcome.difference_error

    def worst(self, rule: str, byzantine: int) -> Outcome | None:
        """The outcome under the attack that harms the rule most; None where nothing is known."""
        attacks = {each.attack for each in self.outcomes if each.byzantine == byzantine and each.attack} or {""}
        known = [each for attack in sorted(attacks) if (each := self.at(rule, attack, byzantine)) and each.values]
        return max(known, key=self.harm, default=None)

    def verdict(self, rule: str, byzantine: int) -> str:
        """The worst case in words."""
        if rule == REFERENCE:
            return "the reference"
        outcome = self.worst(rule, byzantine)
        if outcome is None:
            return "not applicable"
        missing = sum(1 for each in self.outcomes if (each.rule, each.byzantine) == (rule, byzantine) and each.problem)
        note = f"; {missing} without result" if missing else ""
        broken = self.broken_seeds(outcome)
        if broken:
            return ("breaks" if broken == self.seeds else f"breaks in {broken} of {self.seeds} seeds") + note
        if self.near(outcome):
            return "as good as alone" + note
        return ("better than alone" if self.harm(outcome) < 0 else "worse than alone") + note

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """One for each number of Byzantine agents; that without any only where there is no other."""
        counts = sorted({each.byzantine for each in self.outcomes})
        return tuple(self._panel(count) for count in ([count for count in counts if count] or counts))

    def _panel(self, byzantine: int) -> Panel:
        here = [each for each in self.outcomes if each.byzantine == byzantine]
        attacks = list(dict.fromkeys(each.attack for each in here if each.attack)) or [""]
        rules = list(dict.fromkeys(each.rule for each in here))

        def mean_harm(outcomes: list[Outcome | None]) -> float:
            harms = np.array([self.harm(outcome) for outcome in outcomes])
            known = harms[~np.isnan(harms)]
            # Bounded, for a rule that diverges once would drown all the rest.
            return float(np.minimum(known, self.scale.most).mean()) if len(known) else math.nan

        def of_rule(rule: str) -> tuple[bool, float, float, bool, str]:
            worst = self.worst(rule, byzantine)
            everywhere = mean_harm([self.at(rule, attack, byzantine) for attack in attacks])
            if worst is None:
                return True, 0.0, 0.0, True, rule
            return False, self.harm(worst), everywhere, rule != REFERENCE, rule

        def of_attack(attack: str) -> tuple[bool, float, str]:
            harm = mean_harm([self.at(rule, attack, byzantine) for rule in rules if rule != REFERENCE])
            return math.isnan(harm), 0.0 if math.isnan(harm) else -harm, attack

        return Panel(byzantine, tuple(sorted(rules, key=of_rule)), tuple(sorted(attacks, key=of_attack)))
