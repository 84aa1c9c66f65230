"""What to run: a study, and every combination of rules, attacks, numbers of Byzantine agents and seeds.

A plan holds the entries of a configuration file and the options of the command line. An unknown name is an error.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch

from varangian.attacks.base import AnyAttack
from varangian.core.draws import Draws
from varangian.core.errors import BadInput, unknown
from varangian.core.memory import check_fits
from varangian.core.models.low_precision import LowPrecision
from varangian.core.scene import Byzantine, Scene, choose_byzantine
from varangian.core.sizes import read_size
from varangian.engine.compute.compile import check_compiler
from varangian.engine.compute.memory import LEAST_PER_AGENT, estimate
from varangian.engine.device import execution_for, torch_dtype
from varangian.engine.options import RunOptions, RunSettings, option_types, takes_run_options
from varangian.experiments.own_code import NOWHERE, Offered, Origin, Within, check_own_study, joined_origins
from varangian.experiments.spec import failed_in, headed, made, no_such, settings_of, tidied, with_settings
from varangian.studies.own_task import scene_of
from varangian.studies.study import Study

Result = TypeVar("Result")
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
    named: str = ""
    """What the study was named by, such as `mystudy.py:landmines`. Empty for the study's own name."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where everything in this plan came from that is not built in."""

    @property
    def usual_attacks(self) -> dict[str, AnyAttack]:
        """The attacks of this study, by name: an attack named without parameters has the parameters of the study."""
        return {type(attack).__name__.replace("_", "-"): attack for attack in self.study.attacks}

    def rule(self, name: str) -> Any:
        return self.own[name] if name in self.own else self._rule(name, Offered(("rule",), self.origins, planned=True))

    def attack(self, name: str) -> Any:
        return (
            self.own[name] if name in self.own else self._attack(name, Offered(("attack",), self.origins, planned=True))
        )

    def _rule(self, name: str, offered: Offered) -> Any:
        return made(name, "rule", offered)

    def _attack(self, name: str, offered: Offered) -> Any:
        also = {name: type(attack) for name, attack in self.usual_attacks.items()}  # a study may bring its own
        offered = replace(offered, also=also)
        # A parameter of an attack may be a rule: the rule that the attack assumes its victims use.
        either = replace(offered, kinds=("rule", "attack"))
        value = made(name, "attack", offered, self.usual_attacks, within=either)
        own = [usual for usual in self.study.attacks if type(usual) is type(value)]
        return own[0] if own and not headed(name)[1] else value

    def sources_of(self, name: str) -> str:
        """The hashes of the files that a rule or an attack comes from; empty if it is built in."""
        own = (
            origin for place, origin in sorted(self.origins.items()) if re.search(rf"(^|[=/]){re.escape(place)}", name)
        )
        return " ".join(one for origin in own for one in (origin.sha256, *origin.imports.values()))

    def with_names(
        self, rules: Sequence[str] = (), attacks: Sequence[str] = (), within: Mapping[str, Within] = NOWHERE
    ) -> Plan:
        """The plan with these rules and attacks, where some are given. Each is made once, to see where it came from."""
        origins = self.origins
        looked = {name: within.get(name, Within()) for name in ("rules", "attacks")}
        offered = Offered(("rule",), looked["rules"].origins, looked["rules"].folder)
        for name in rules:
            self._rule(name, offered)
        origins = joined_origins(origins, offered.used)
        offered = Offered(("attack",), looked["attacks"].origins, looked["attacks"].folder)
        for name in attacks:
            self._attack(name, offered)
        return replace(
            self,
            rules=tuple(dict.fromkeys(map(tidied, rules))) or self.rules,
            attacks=tuple(dict.fromkeys(map(tidied, attacks))) or self.attacks,
            origins=joined_origins(origins, offered.used),
        )


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
    within: Mapping[str, Within] = NOWHERE,
    **options: Unpack[RunSettings],
) -> Plan:
    """A plan. By default all values are those of the study.

    Args:
        study: The name of a study, or `FILE.py:NAME`.
        rules: Names of rules. By default those of the paper's figures.
        attacks: Names of attacks. By default the study's first.
        byzantine: How many agents are Byzantine, each as a number, a share or a list of agents.
        seeds: `seeds=5` means seeds 0 … 4.
        rounds: The number of rounds.
        settings: Settings of the study, by name.
        within: What relative paths in `study`, `rules` and `attacks` refer to. By default the current folder.
        **options: The fields of `RunOptions`.
    """
    where = within.get("study", Within())
    offered = Offered(("study",), where.origins, where.folder)
    label, parameters = headed(study)
    if parameters:
        raise BadInput(f"study {study!r}: the settings of a study do not stand in its name; use --set {parameters}")
    if label not in offered:
        raise no_such("study", study, offered)
    value: Study = with_settings(offered[label], settings or {}, f"study {label}")
    if offered.used:
        check_own_study(value, label)
    if rounds is not None:
        if rounds < 1:
            raise BadInput(f"a run needs at least one round, but rounds is {rounds}")
        value = with_rounds(value, rounds)
    if seeds < 1:
        raise BadInput(f"a run needs at least one seed, but seeds is {seeds}")
    usual = next((type(attack).__name__.replace("_", "-") for attack in value.attacks), "silent")
    plan = Plan(
        study=value,
        attacks=(usual,),
        byzantine=tuple(dict.fromkeys(b if isinstance(b, int | float) else tuple(b) for b in byzantine))
        or usual_byzantine(value),
        seeds=seeds,
        options=RunOptions.of(options),
        named=label if offered.used else "",
        origins=offered.used,
    )
    return plan.with_names(rules, attacks, within)


def usual_byzantine(study: Study) -> tuple[int, ...]:
    """The study's numbers of Byzantine agents. In a network that is too small for one, its share of the agents stays.

    >>> from varangian import studies
    >>> [usual_byzantine(studies.target_localization(agents=agents)) for agents in (100, 10, 1)]
    [(0, 20, 99), (0, 2, 9), (0,)]
    """
    agents, usually = settings_of(study).get("agents"), getattr(type(study), "agents", None)
    if not isinstance(agents, int) or not isinstance(usually, int) or not 0 < agents < usually:
        return study.byzantine
    fitting = (
        count if count < agents else min(round(count * agents / usually), agents - 1) for count in study.byzantine
    )
    return tuple(dict.fromkeys(fitting))


def with_rounds(study: Any, rounds: int) -> Study:
    """The study with this number of rounds. Studies with epochs have a field that limits the rounds."""
    if "rounds" in settings_of(study):
        changed: Study = replace(study, rounds=rounds)
    else:  # an epoch has at least one round, so this number of epochs is enough
        changed = replace(study, max_rounds=rounds, epochs=max(study.epochs, rounds))
    return changed


def check(plan: Plan) -> Scene:
    """Create each object once, so that errors are raised before anything is written. Returns the scene of seed 0."""
    options = plan.options
    settings = settings_of(plan.study)
    rounds = settings.get("rounds", settings.get("max_rounds"))
    if rounds is not None and rounds < 1:
        raise BadInput(f"a run needs at least one round, but rounds is {rounds}")
    budget = None if options.memory is None else read_size(options.memory)
    agents = settings.get("agents")
    if isinstance(agents, int):  # check this before the network is created
        check_fits(agents * LEAST_PER_AGENT, f"a network of {agents} agents", budget=budget)
    scene = _tried(f"study {plan.study.name}", plan.study, lambda: scene_of(plan.study, None, 0))
    if not isinstance(scene, Scene):
        raise BadInput(f"study {plan.study.name}: scene(0) is of type {type(scene).__name__}, but must be a Scene")
    start = torch.zeros(1, scene.task.model.shared)
    for name in plan.rules:
        rule = plan.rule(name)
        _tried(f"rule {name}", rule, lambda rule=rule: rule.init(torch.zeros(1, 1)))  # type: ignore[misc]
    for name in plan.attacks:
        attack = plan.attack(name)
        _tried(f"attack {name}", attack, lambda attack=attack: attack.init(start))  # type: ignore[misc]
    execution = execution_for(options, [scene])
    for name in plan.rules:
        recorded = min(plan.study.rounds, 10**7 // scene.task.agents)
        needed = estimate([scene], plan.rule(name), recorded, torch_dtype(options.dtype), any(plan.byzantine))
        check_fits(needed, f"{plan.study.name} with {name}", execution.device, execution.memory)
    if options.judge_dtype is not None:
        LowPrecision.of(scene.task.model, options.judge_dtype)
    if options.compile == "on":
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
    return scene


def _tried(what: str, value: Any, function: Callable[[], Result]) -> Result:
    """The result of a function of somebody's class. Its errors become one line that says where it failed."""
    try:
        return function()
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        raise BadInput(f"{what}: {failed_in(value, error)}") from error


def as_toml(plan: Plan) -> str:
    """The plan as a configuration file. Running this file gives bitwise identical results."""
    top = {
        "study": plan.named or plan.study.name,
        "rules": list(plan.rules),
        "attacks": list(plan.attacks),
        "byzantine": list(plan.byzantine),
        "seeds": plan.seeds,
        **asdict(plan.options),
    }
    lines = [f"{name} = {as_toml_value(value)}" for name, value in top.items() if value is not None]
    settings = {name: value for name, value in settings_of(plan.study).items() if value is not None}
    lines += ["", "[settings]", *(f"{name} = {as_toml_value(value)}" for name, value in settings.items())]
    if plan.origins:
        origins = (
            f"{as_toml_value(place)} = {as_toml_value(origin.entry)}" for place, origin in sorted(plan.origins.items())
        )
        lines += ["", "[sources]  # your own code: where it was, and its SHA-256", *origins]
    return "\n".join(lines) + "\n"


def as_toml_value(value: Any) -> str:
    """
    >>> as_toml_value([1, 0.5, {"a": True}])
    '[1, 0.5, {a = true}]'
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {as_toml_value(of)}' for name, of in value.items() if of is not None)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # All other numbers, strings and booleans have the same form in JSON and in TOML.
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else as_toml_value(name)


_KEYS: dict[str, tuple[type, ...]] = {
    "study": (str,),
    "rules": (list,),
    "attacks": (list,),
    "byzantine": (list,),
    "seeds": (int,),
    "rounds": (int,),
    "settings": (dict,),
    "sources": (dict,),
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
    sources = {place: _read_origin(path, place, value) for place, value in stored.pop("sources", {}).items()}
    within = Within(path.parent, sources)
    stored["within"] = dict.fromkeys(("study", "rules", "attacks"), within)
    stored["byzantine"] = [read_byzantine(value) for value in stored.get("byzantine", [])]
    return stored


def _read_origin(file: Path, place: str, value: Any) -> Origin:
    """An entry of [sources]."""
    texts = {"path", "sha256"}
    if isinstance(value, dict) and {*value} <= {*texts, "imports"} and isinstance(value.get("path"), str):
        imports = value.get("imports", {})
        hashes = [value.get("sha256", ""), *(imports.values() if isinstance(imports, dict) else [None])]
        if all(isinstance(one, str) and re.fullmatch("[0-9a-f]{64}|", one) for one in hashes):
            return Origin(value["path"], hashes[0], imports)
    raise BadInput(f"{file}: the entry {place} of [sources] needs a path and a sha256 of 64 digits, but is {value!r}")


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
