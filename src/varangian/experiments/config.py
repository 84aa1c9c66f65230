"""What to run: a study, and every combination of rules, attacks, numbers of Byzantine agents and seeds.

A plan holds the entries of a configuration file and the options of the command line. An unknown name is an error.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from varangian import attacks, rules, studies
from varangian.attacks.base import AnyAttack
from varangian.core.draws import Draws
from varangian.core.errors import BadInput, unknown
from varangian.core.memory import check_fits
from varangian.core.models.low_precision import LowPrecision
from varangian.core.scene import Byzantine, choose_byzantine
from varangian.core.sizes import read_size
from varangian.engine.compute.compile import check_compiler
from varangian.engine.compute.memory import LEAST_PER_AGENT, estimate
from varangian.engine.device import execution_for, torch_dtype
from varangian.engine.options import RunOptions, RunSettings, option_types, takes_run_options
from varangian.experiments.spec import catalogue, made, settings_of, tidied, with_settings
from varangian.studies.study import Study

DEFAULT_RULES = ("alone", "average", "distance-based", "loss-based")


@dataclass(frozen=True)
class Plan:
    """A study, and the names of the rules and attacks to run on it."""

    study: Study
    rules: tuple[str, ...] = DEFAULT_RULES
    attacks: tuple[str, ...] = ()
    byzantine: tuple[Byzantine, ...] = ()
    seeds: int = 1
    options: RunOptions = field(default_factory=RunOptions)
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Rules and attacks that were given as values, by name."""

    @property
    def usual_attacks(self) -> dict[str, AnyAttack]:
        """The attacks of this study, by name: an attack named without parameters has the parameters of the study."""
        return {type(attack).__name__.replace("_", "-"): attack for attack in self.study.attacks}

    def rule(self, name: str) -> Any:
        return self.own[name] if name in self.own else made(name, "rule", catalogue(rules))

    def attack(self, name: str) -> Any:
        if name in self.own:
            return self.own[name]
        # A parameter of an attack may be a rule: the rule that the attack assumes its victims use.
        either = catalogue(rules) | catalogue(attacks)
        return made(name, "attack", catalogue(attacks), self.usual_attacks, within=either)


@takes_run_options
def plan_for(
    study: str,
    *,
    rules: Sequence[str] = (),
    attacks: Sequence[str] = (),
    byzantine: Sequence[Byzantine] = (),
    seeds: int = 1,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[RunSettings],
) -> Plan:
    """A plan. By default all values are those of the study.

    Args:
        study: The name of a study.
        rules: Names of rules. By default those of the paper's figures.
        attacks: Names of attacks. By default the study's first.
        byzantine: How many agents are Byzantine, each as a number, a share or a list of agents.
        seeds: `seeds=5` means seeds 0 … 4.
        rounds: The number of rounds.
        settings: Settings of the study, by name.
        **options: The fields of `RunOptions`.
    """
    offered = catalogue(studies)
    if study not in offered:
        raise unknown("study", study, offered)
    value: Study = with_settings(offered[study], settings or {}, f"study {study}")
    if rounds is not None:
        if rounds < 1:
            raise BadInput(f"a run needs at least one round, but rounds is {rounds}")
        value = with_rounds(value, rounds)
    if seeds < 1:
        raise BadInput(f"a run needs at least one seed, but seeds is {seeds}")
    usual = next(iter(type(attack).__name__.replace("_", "-") for attack in value.attacks))
    return Plan(
        study=value,
        rules=tuple(dict.fromkeys(map(tidied, rules))) or DEFAULT_RULES,
        attacks=tuple(dict.fromkeys(map(tidied, attacks))) or (usual,),
        byzantine=tuple(dict.fromkeys(b if isinstance(b, int | float) else tuple(b) for b in byzantine))
        or value.byzantine,
        seeds=seeds,
        options=RunOptions.of(options),
    )


def with_rounds(study: Any, rounds: int) -> Study:
    """The study with this number of rounds. Studies with epochs have a field that limits the rounds."""
    if "rounds" in settings_of(study):
        changed: Study = replace(study, rounds=rounds)
    else:  # an epoch has at least one round, so this number of epochs is enough
        changed = replace(study, max_rounds=rounds, epochs=max(study.epochs, rounds))
    return changed


def check(plan: Plan) -> None:
    """Create each object once, so that errors are raised before anything is written."""
    options = plan.options
    settings = settings_of(plan.study)
    rounds = settings.get("rounds", settings.get("max_rounds"))
    if rounds is not None and rounds < 1:
        raise BadInput(f"a run needs at least one round, but rounds is {rounds}")
    budget = None if options.memory is None else read_size(options.memory)
    agents = settings.get("agents")
    if isinstance(agents, int):  # check this before the network is created
        check_fits(agents * LEAST_PER_AGENT, f"a network of {agents} agents", budget=budget)
    scene = plan.study.scene(0)
    execution = execution_for(options, [scene])
    for name in plan.rules:
        recorded = min(plan.study.rounds, 10**7 // scene.task.agents)
        needed = estimate([scene], plan.rule(name), recorded, torch_dtype(options.dtype), any(plan.byzantine))
        check_fits(needed, f"{plan.study.name} with {name}", execution.device, execution.memory)
    if options.judge_dtype is not None:
        LowPrecision.of(scene.task.model, options.judge_dtype)
    if options.compile:
        check_compiler()
    draws = Draws.of(0, scene.task.agents)
    counts: dict[int, Byzantine] = {}
    for byzantine in plan.byzantine:
        count = len(choose_byzantine(byzantine, scene, draws))
        if count in counts:
            both = f"{as_toml_value(counts[count])} and {as_toml_value(byzantine)}"
            raise BadInput(
                f"byzantine {both} are both {count} agents, and results cannot distinguish them; run them separately"
            )
        counts[count] = byzantine
    start = torch.zeros(1, scene.task.model.shared)
    for name in plan.rules:
        plan.rule(name).init(torch.zeros(1, 1))
    for name in plan.attacks:
        plan.attack(name).init(start)


def as_toml(plan: Plan) -> str:
    """The plan as a configuration file. Running this file gives bitwise identical results."""
    top = {
        "study": plan.study.name,
        "rules": list(plan.rules),
        "attacks": list(plan.attacks),
        "byzantine": list(plan.byzantine),
        "seeds": plan.seeds,
        **asdict(plan.options),
    }
    lines = [f"{name} = {as_toml_value(value)}" for name, value in top.items() if value is not None]
    settings = {name: value for name, value in settings_of(plan.study).items() if value is not None}
    lines += ["", "[settings]", *(f"{name} = {as_toml_value(value)}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"


def as_toml_value(value: Any) -> str:
    """
    >>> as_toml_value([1, 0.5, {"a": True}])
    '[1, 0.5, {a = true}]'
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {as_toml_value(of)}' for name, of in value.items() if of is not None)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # All other numbers, strings and booleans have the same form in JSON and in TOML.
    return json.dumps(value, ensure_ascii=False)


_KEYS: dict[str, tuple[type, ...]] = {
    "study": (str,),
    "rules": (list,),
    "attacks": (list,),
    "byzantine": (list,),
    "seeds": (int,),
    "rounds": (int,),
    "settings": (dict,),
    **option_types(),
}
"""The keys of a configuration file, and their types."""
_WORDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "a table"}


def from_toml(path: Path) -> dict[str, Any]:
    """The arguments of `plan_for` that a configuration file holds."""
    try:
        stored = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a configuration file: {error}") from error
    for name, value in stored.items():
        if name not in _KEYS:
            raise unknown(f"key in {path}:", name, _KEYS)
        if not isinstance(value, _KEYS[name]) or (isinstance(value, bool) and bool not in _KEYS[name]):
            raise BadInput(f"{path}: {name} takes {_WORDS[_KEYS[name][0]]}, but got {value!r}")
    if "study" not in stored:
        raise BadInput(f'{path} names no study; add a line such as study = "target-localization"')
    for name in ("rules", "attacks"):
        for value in stored.get(name, []):
            if not isinstance(value, str):
                raise BadInput(f"{path}: {name} is a list of names, but holds {value!r}")
    stored["byzantine"] = [read_byzantine(value) for value in stored.get("byzantine", [])]
    return stored


def read_byzantine(value: Any) -> Byzantine:
    """The Byzantine agents, from a number, a share or a list of agents, given as text or as a TOML value.

    >>> read_byzantine("20"), read_byzantine("0.2"), read_byzantine("3,5")
    (20, 0.2, (3, 5))
    """
    try:
        if isinstance(value, str):
            if "," in value:
                return tuple(int(agent) for agent in value.split(",") if agent.strip())
            value = float(value) if "." in value or "e" in value else int(value)
        if isinstance(value, list) and all(type(agent) is int for agent in value):
            return tuple(value)
        if type(value) is int or (type(value) is float and math.isfinite(value)):
            return value
    except ValueError:
        pass
    raise BadInput(f"byzantine takes a number of agents, a share such as 0.2, or agents such as 3,5; not {value!r}")
