"""The rules and attacks of a tournament: names and values, checked before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from varangian.attacks.base import Knowledge, knowledge_of
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.scene import Byzantine, choose_byzantine
from varangian.core.spelling import name_of
from varangian.engine.options import RunOptions, RunSettings, takes_run_options
from varangian.experiments.cells import Cell
from varangian.experiments.config import Plan, check, plan_for, with_rounds
from varangian.experiments.own_code import NOWHERE, PACKAGES, Kind, Offered, Within
from varangian.experiments.spec import catalogue, tidied
from varangian.experiments.tournament.standings import REFERENCE
from varangian.studies.study import Study

ALL = "all"


@dataclass(frozen=True)
class Contest:
    """The rules and attacks of a tournament. Their names are in the plan, with `alone` as the first rule."""

    plan: Plan
    own: Mapping[str, Any] = field(default_factory=dict)
    """Rules and attacks that were given as values, by name."""
    counts: Mapping[Byzantine, int] = field(default_factory=dict)
    """The number of Byzantine agents for each entry of `plan.byzantine`."""
    agents: int = 0
    rounds: int = 0

    def rule(self, name: str) -> Any:
        return self._value(name, self.plan.rule)

    def attack(self, name: str) -> Any:
        return self._value(name, self.plan.attack)

    def _value(self, name: str, made: Callable[[str], Any]) -> Any:
        return self.own[name] if name in self.own else made(name)

    @property
    def knowledge(self) -> dict[str, tuple[Knowledge, ...]]:
        """What each attack knows."""
        return {name: knowledge_of(self.attack(name)) for name in self.plan.attacks}

    @property
    def cells(self) -> list[Cell]:
        """All cells. No cooperation comes first, once for each number of Byzantine agents.

        Without Byzantine agents all attacks coincide, so there is only one cell per rule.
        """
        plan = self.plan
        reference = [Cell(REFERENCE, "", count) for count in plan.byzantine]
        calm = [Cell(rule, "", 0) for rule in plan.rules[1:] if 0 in plan.byzantine]
        hostile = [Cell(r, a, b) for b in plan.byzantine if b for a in plan.attacks for r in plan.rules[1:]]
        return reference + calm + hostile


@takes_run_options
def enter(
    study: str | Study,
    *,
    rules: Sequence[Any] = (ALL,),
    attacks: Sequence[Any] = (ALL,),
    byzantine: Sequence[Byzantine] = (),
    seeds: int = 5,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    within: Mapping[str, Within] = NOWHERE,
    **options: Unpack[RunSettings],
) -> Contest:
    """A checked contest.

    Args:
        study: The name of a study, or a study.
        rules: Names or values; `all` means all rules.
        attacks: Names or values; `all` means all attacks.
        byzantine: How many agents are Byzantine, each as a number, a share or a list of agents.
        seeds: `seeds=5` means seeds 0 … 4.
        rounds: The number of rounds. By default that of the study.
        settings: Settings of a study that is given by its name.
        within: What relative paths in names refer to. By default the current folder.
        **options: The fields of `RunOptions`.
    """
    chosen_options = RunOptions.of(options)
    if chosen_options.record_every is not None:
        raise BadInput("a tournament records only the end of each run; leave record_every out")
    if isinstance(study, str):
        about: dict[str, Any] = {"seeds": seeds, "rounds": rounds, "settings": settings, "within": within}
        plan = plan_for(study, byzantine=byzantine, **about, **options)
    else:
        if settings:
            raise BadInput("a study given as a value already has its settings; leave settings out")
        value = study if rounds is None else with_rounds(study, rounds)
        counted = tuple(b if isinstance(b, int | float) else tuple(b) for b in byzantine) or study.byzantine
        plan = Plan(value, byzantine=counted, seeds=seeds, options=chosen_options)
    own: dict[str, Any] = {}
    named_rules = names_of(rules, "rule", plan.rule, own)
    named_attacks = names_of(attacks, "attack", plan.attack, own)
    plan = looked_up(plan, named_rules, named_attacks, own, within)
    check(replace(plan, rules=(REFERENCE,), attacks=()))
    scene = plan.study.scene(0)
    draws = Draws.of(0, scene.task.agents)
    counts = {count: len(choose_byzantine(count, scene, draws)) for count in plan.byzantine}
    if scene.task.agents in counts.values():
        raise BadInput(f"all {scene.task.agents} agents are Byzantine, so there is no agent to measure")
    plan = replace(
        plan,
        rules=tuple(dict.fromkeys((REFERENCE, *named_rules))),
        attacks=named_attacks,
        byzantine=tuple(count if counts[count] else 0 for count in plan.byzantine),
    )
    return Contest(plan, own, counts | {0: 0}, scene.task.agents, plan.study.rounds)


def looked_up(
    plan: Plan,
    rules: Sequence[str],
    attacks: Sequence[str],
    own: Mapping[str, Any],
    within: Mapping[str, Within] = NOWHERE,
) -> Plan:
    """The plan with the origins of these names. A misspelt one is reported now, not after an hour.

    Built-in ones without parameters are left out. They are known, and one that needs parameters is not applicable.

    Args:
        plan: The plan so far.
        rules: Names of rules.
        attacks: Names of attacks.
        own: Those that were given as values, by name.
        within: What relative paths refer to.
    """
    known = {*own, *catalogue(PACKAGES["rule"]), *catalogue(PACKAGES["attack"])}
    texts = [[name for name in names if name not in known] for names in (rules, attacks)]
    return plan.with_names(texts[0], texts[1], within)


def names_of(asked: Sequence[Any], kind: Kind, made: Callable[[str], Any], own: dict[str, Any]) -> tuple[str, ...]:
    """The names of the given rules or attacks, without duplicates. Those given as values are added to `own`."""
    if isinstance(asked, str) or not asked:
        raise BadInput(f"rules and attacks must be non-empty lists of names or values, but got {asked!r}")
    names: dict[str, None] = {}
    built_in = catalogue(PACKAGES[kind])
    for one in asked:
        if one == ALL:
            names |= dict.fromkeys(sorted(Offered((kind,))))
        elif isinstance(one, str):
            names[tidied(one)] = None
        else:
            name = name_of(one, made)
            if built_in.get(name.partition(":")[0], type(one)) is not type(one):
                raise BadInput(f"{name} is the name of a built-in class; give your own class another name")
            names[name], own[name] = None, one
    return tuple(names)
