"""The outcome of a tournament: every rule under every attack, compared with no cooperation.

The comparison is one number, the *harm*. For metrics where small is good (regret, loss, error), it is log₁₀ of the
ratio to no cooperation. For metrics where large is good (accuracy), it is the number of points lost. Negative harm
means that cooperation helped. A value that is not finite has infinite harm.

Attacks stand in groups by what they know, the weakest assumption first. The worst case *at* a knowledge is the worst
among all attacks that know no more: what this assumption buys an adversary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from varangian.attacks.base import KNOWLEDGE, Knowledge, in_words
from varangian.engine.results import Array, higher_is_better

REFERENCE = "alone"


@dataclass(frozen=True)
class Outcome:
    """One rule under one attack: the final value of every seed, or the reason why there is none."""

    rule: str
    attack: str
    """Empty without Byzantine agents, and for `alone`, which no attack can affect."""
    byzantine: int
    values: tuple[float, ...] = ()
    """The final metric, as the mean over normal agents, for every seed."""
    alone: tuple[float, ...] = ()
    """The same without cooperation, for the same seeds."""
    worst: float = math.nan
    """The worst agent, mean over seeds."""
    seconds: float = 0.0
    problem: str = ""
    """`not applicable: …` or `failed: …` if there are no values."""

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
        """The mean minus the mean of no cooperation."""
        return _mean(self._differences)

    @property
    def difference_error(self) -> float:
        """Standard error of the difference, paired by seed: a hard seed is hard for both."""
        return _error(self._differences)

    @property
    def ratio(self) -> float:
        """The mean divided by that of no cooperation; infinite if the mean is not finite."""
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
    """Our values divided by the reference; infinite if ours is not finite.

    If one of the two is not positive, a ratio has no meaning. The result is then 0 if ours is better, 1 if both are
    equal, and infinite if ours is worse.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        plain = np.where((ours > 0) & (reference > 0), ours / reference, np.where(ours > reference, math.inf, 0.0))
    return np.where(np.isfinite(ours), np.where(ours == reference, 1.0, plain), math.inf)


@dataclass(frozen=True)
class Scale:
    """How harm is measured: as a ratio or in points, and the limit above which a rule counts as broken."""

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
        """The upper limit of harm: a thousand times as bad, or all points lost."""
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
class Group:
    """The attacks that know the same, the most harmful first."""

    knowledge: tuple[Knowledge, ...]
    attacks: tuple[str, ...]

    @property
    def title(self) -> str:
        return in_words(self.knowledge)


@dataclass(frozen=True)
class Panel:
    """The ranking for one number of Byzantine agents.

    Rules are sorted by their worst case, the best first. Groups of attacks are sorted by knowledge: a group comes after
    all groups that know less.
    """

    byzantine: int
    rules: tuple[str, ...]
    groups: tuple[Group, ...]
    """Without Byzantine agents, one group with only the empty name."""

    @property
    def attacks(self) -> tuple[str, ...]:
        """The attacks of all groups."""
        return tuple(attack for group in self.groups for attack in group.attacks)

    @property
    def levels(self) -> tuple[Group, ...]:
        """The groups that know less than all groups together: their worst case is worth telling apart."""
        everything = {kind for group in self.groups for kind in group.knowledge}
        return tuple(group for group in self.groups if set(group.knowledge) != everything)


@dataclass(frozen=True)
class Standings:
    """All outcomes of a tournament."""

    study: str
    metric: str
    agents: int
    rounds: int
    seeds: int
    outcomes: tuple[Outcome, ...] = field(repr=False)
    knowledge: Mapping[str, tuple[Knowledge, ...]] = field(default_factory=dict, repr=False)
    """What each attack knows. One that is not listed may know everything."""

    @property
    def scale(self) -> Scale:
        return Scale(self.metric)

    @cached_property
    def _at(self) -> Mapping[tuple[str, str, int], Outcome]:
        return {(each.rule, each.attack, each.byzantine): each for each in self.outcomes}

    def at(self, rule: str, attack: str, byzantine: int) -> Outcome | None:
        """The outcome of a rule under an attack; None if it was not run."""
        reached = byzantine and rule != REFERENCE
        return self._at.get((rule, attack if reached else "", byzantine))

    def harm(self, outcome: Outcome | None) -> float:
        """How much worse the rule is than no cooperation, by the mean over seeds; nan if there is no result.

        >>> round(Standings("s", "regret", 9, 5, 1, ()).harm(Outcome("average", "", 0, (20.0,), (0.2,))), 6)
        2.0
        >>> round(Standings("s", "accuracy", 9, 5, 1, ()).harm(Outcome("average", "", 0, (0.95,), (0.9,))), 6)
        -5.0
        """
        if outcome is None or not outcome.values or not outcome.alone:
            return math.nan
        return float(self.scale.harm(np.array([outcome.mean]), np.array([outcome.alone_mean]))[0])

    def broken_seeds(self, outcome: Outcome) -> int:
        """The number of seeds in which the rule broke."""
        harms = self.scale.harm(np.asarray(outcome.values), np.asarray(outcome.alone))
        return int((harms > self.scale.broken).sum())

    def near(self, outcome: Outcome | None) -> bool:
        """Whether the rule is as good as no cooperation: within two standard errors, and broken in no seed.

        The second condition is needed because a rule that breaks in one of five seeds differs by only one standard
        error.
        """
        if outcome is None or not outcome.values or not outcome.alone or self.broken_seeds(outcome):
            return False
        return outcome.difference == 0 or abs(outcome.difference) <= 2 * outcome.difference_error

    def known(self, attack: str) -> tuple[Knowledge, ...]:
        """What an attack knows."""
        return self.knowledge.get(attack, KNOWLEDGE)

    def worst(self, rule: str, byzantine: int, knowledge: tuple[Knowledge, ...] | None = None) -> Outcome | None:
        """The outcome under the attack that harms the rule most; None if there is no result.

        With `knowledge`, only attacks that know no more than this count.
        """
        attacks = {each.attack for each in self.outcomes if each.byzantine == byzantine and each.attack} or {""}
        if knowledge is not None:
            attacks = {attack for attack in attacks if set(self.known(attack)) <= set(knowledge)}
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
        """One panel for each number of Byzantine agents. Zero has a panel only if it is the only number."""
        counts = sorted({each.byzantine for each in self.outcomes})
        return tuple(self._panel(count) for count in ([count for count in counts if count] or counts))

    def _panel(self, byzantine: int) -> Panel:
        here = [each for each in self.outcomes if each.byzantine == byzantine]
        attacks = list(dict.fromkeys(each.attack for each in here if each.attack)) or [""]
        rules = list(dict.fromkeys(each.rule for each in here))

        def mean_harm(outcomes: list[Outcome | None]) -> float:
            harms = np.array([self.harm(outcome) for outcome in outcomes])
            known = harms[~np.isnan(harms)]
            # Harm is bounded: otherwise one rule that diverges would dominate the mean.
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

        members: dict[tuple[Knowledge, ...], list[str]] = {}
        for attack in sorted(attacks, key=of_attack):
            members.setdefault(self.known(attack), []).append(attack)
        # As binary numbers, so that a set comes after all of its subsets.
        order = sorted(members, key=lambda known: sum(2 ** KNOWLEDGE.index(kind) for kind in known))
        groups = tuple(Group(known, tuple(members[known])) for known in order)
        return Panel(byzantine, tuple(sorted(rules, key=of_rule)), groups)
