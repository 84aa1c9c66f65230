"""`agent.toml`: who an agent is, whom it hears, what it learns and how. An unknown key is an error."""

from __future__ import annotations

import inspect
import tomllib
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from varangian.agent.mailbox import Limits
from varangian.agent.message import WireDtype
from varangian.agent.peer_round import Share
from varangian.core.errors import BadInput, unknown
from varangian.core.graph import Graph
from varangian.core.optimisers import adam, sgd
from varangian.core.task import Task
from varangian.engine.run import suited
from varangian.experiments.config import as_toml_value
from varangian.experiments.own_code import Offered
from varangian.experiments.spec import made, with_settings
from varangian.rules.base import Rule
from varangian.studies.study import Study

OPTIMISERS = {"sgd": sgd, "adam": adam}
ENDLESS = 2**53
"""The number of rounds of an agent that never stops."""


@dataclass(frozen=True)
class Neighbour:
    """Somebody to hear, and to be heard by."""

    name: str
    """The name in its certificate."""
    address: str | None = None
    """Where it listens: `host:port`. By default only the neighbour opens the connection."""
    agent: int | None = None
    """Its number in the study, if the task is a share of a study."""


@dataclass(frozen=True)
class TaskConfig:
    """What the agent learns: a task of your own, or a share of a study."""

    make: str | None = None
    """`FILE.py:NAME` or `package.module:NAME`: a function that returns the agent's `Task`.

    If it takes a parameter, it gets the agent's name."""
    study: str | None = None
    """The name of a study, or `FILE.py:NAME`."""
    agent: int | None = None
    """The number of this agent in the study."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the study."""
    seed: int | None = None
    """Random draws depend on it. By default 0 for a study, and else made from the agent's name."""


@dataclass(frozen=True)
class AgentConfig:
    """An agent on a network. Paths are relative to the folder of the file."""

    name: str
    """The name in the agent's certificate."""
    keys: str
    """The folder with the agent's key and certificate, as `varangian keys issue` makes it."""
    state: str
    """The folder for what the agent must not lose."""
    task: TaskConfig
    listen: str | None = None
    """Where neighbours reach the agent: `host:port`. By default they cannot, and the agent must reach them."""
    neighbours: tuple[Neighbour, ...] = ()
    fleet: str = "varangian"
    """The name of the fleet. Agents of different fleets do not hear each other."""
    rule: str = "loss-based"
    optimiser: str | None = None
    """`sgd`, or `adam:beta1=0.8`. By default that of the task."""
    step_size: float | None = None
    """By default that of the task."""
    wire_dtype: WireDtype = "float32"
    """The type of numbers on the wire. `bfloat16` halves the bytes."""
    pace: Literal["free", "lockstep"] = "free"
    """`free`: a round every `period` seconds, with what has arrived. `lockstep`: wait for the neighbours' round."""
    period: float = 1.0
    """Seconds from one round to the next at a free pace."""
    deadline: float = 5.0
    """In lockstep, seconds to wait for neighbours. One that was not heard in time is not waited for until it is."""
    start_deadline: float = 60.0
    """In lockstep, seconds to wait for neighbours to connect before the first round."""
    rounds: int | None = None
    """Stop after this many rounds. By default never."""
    save_every: float = 10.0
    """Seconds from one saved state to the next."""
    metrics: str = "127.0.0.1:9464"
    """Where to serve metrics and health: `host:port`. `none` serves nothing; port 0 takes a free one."""
    log: Literal["text", "json"] = "text"
    """`json`: one JSON object per line."""
    log_rounds: bool = False
    """Write a line for every round."""
    limits: Limits = field(default_factory=Limits)
    folder: str = "."
    """The folder that paths are relative to. By default that of the file."""

    def __post_init__(self) -> None:
        if self.listen is not None:
            host_and_port(self.listen, "listen")
        if self.metrics != "none":
            host_and_port(self.metrics, "metrics")
        for name in ("period", "deadline", "start_deadline", "save_every"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"{name} is a number of seconds, not {getattr(self, name)}")
        if self.rounds is not None and self.rounds < 1:
            raise BadInput(f"rounds must be at least 1, but is {self.rounds}")
        names = [self.name, *(one.name for one in self.neighbours)]
        for one in self.neighbours:
            if one.address is not None:
                host_and_port(one.address, f"the address of neighbour {one.name}")
            elif self.listen is None:
                raise BadInput(f"neighbour {one.name} has no address and the agent does not listen: give one of them")
            if names.count(one.name) > 1:
                raise BadInput(f"the neighbour {one.name} is named twice, or is the agent itself")
        if (self.task.make is None) == (self.task.study is None):
            raise BadInput("task needs either make, a function of your own, or study, a built-in study")
        if self.task.study is not None and None in (self.task.agent, *(one.agent for one in self.neighbours)):
            raise BadInput("in a share of a study, the task and every neighbour need agent, a number in the study")

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    def numbers(self) -> dict[str, int]:
        """The number of this agent and of every neighbour."""
        names = sorted((self.name, *(one.name for one in self.neighbours)))
        numbers = {name: place for place, name in enumerate(names)}
        if self.task.agent is not None:
            numbers = {self.name: self.task.agent, **{one.name: one.agent or 0 for one in self.neighbours}}
        return numbers


def read_config(path: Path) -> AgentConfig:
    """The configuration in a file."""
    try:
        stored = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a configuration file: {error}") from error
    try:
        read: AgentConfig = with_settings(AgentConfig, stored, "agent")
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    return replace(read, folder=str(path.parent / read.folder))


def as_toml(config: AgentConfig) -> str:
    """The configuration as a file that `read_config` reads."""
    values = asdict(config).items()
    return "".join(f"{name} = {as_toml_value(value)}\n" for name, value in values if value is not None)


def rule_of(config: AgentConfig) -> Rule[Any]:
    """The rule that the configuration names."""
    rule: Rule[Any] = made(config.rule, "rule", Offered(("rule",), folder=Path(config.folder)))
    return rule


def learns(config: AgentConfig) -> tuple[Share, Rule[Any]]:
    """What the agent learns, and the rule by which it combines what it hears.

    As in a simulation, `anchored` is another rule where agents have few items and go over them again. In a study all
    agents count, as they do there. With a task of one's own, only the items of this agent are known.
    """
    task = _task(config)
    return _share(config, task), suited(rule_of(config), task, ENDLESS if config.rounds is None else config.rounds)


def share_of(config: AgentConfig) -> Share:
    """What the agent learns, from its configuration."""
    return _share(config, _task(config))


def _task(config: AgentConfig) -> Task:
    """The task of all agents of a study, or the agent's own task."""
    return _made(config.task.make or "", config) if config.task.study is None else _of_study(config)


def _share(config: AgentConfig, task: Task) -> Share:
    about, numbers = config.task, config.numbers()
    if about.study is not None:
        task, seed = task.part(torch.tensor([about.agent])), about.seed or 0
    else:
        seed = zlib.crc32(config.name.encode()) if about.seed is None else about.seed
    if config.optimiser is not None:
        task = replace(task, optimiser=made(config.optimiser, "optimiser", OPTIMISERS))
    if config.step_size is not None:
        task = replace(task, step_size=config.step_size)
    others = tuple(number for name, number in numbers.items() if name != config.name)
    return Share(task, numbers[config.name], others, seed)


def study_of(config: AgentConfig) -> Study:
    """The study that the agent's task is a share of."""
    offered, name = Offered(("study",), folder=Path(config.folder)), str(config.task.study)
    if name not in offered:
        raise unknown("study", name, offered)
    study: Study = with_settings(offered[name], config.task.settings, f"study {name}")
    return study


def _of_study(config: AgentConfig) -> Task:
    about = config.task
    scene, number = study_of(config).scene(about.seed or 0), about.agent or 0
    if not isinstance(scene.graph, Graph):
        raise BadInput(f"the graph of {about.study} changes from round to round, but agents have fixed neighbours")
    if not 0 <= number < scene.task.agents:
        raise BadInput(f"{about.study} has the agents 0 … {scene.task.agents - 1}, but agent is {number}")
    return scene.task


def _made(text: str, config: AgentConfig) -> Task:
    """The task that a function of the user's own returns."""
    place, _, name = text.rpartition(":")
    function = getattr(Offered((), folder=Path(config.folder)).module(place)[0], name, None) if place else None
    if not callable(function):
        raise BadInput(f"task: make = {text!r} names no function; write FILE.py:NAME or package.module:NAME")
    task = function(config.name) if inspect.signature(function).parameters else function()
    if not isinstance(task, Task):
        raise BadInput(f"{text} returned {type(task).__name__}, but an agent learns a varangian.Task")
    return task


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """
    >>> host_and_port("127.0.0.1:7447", "listen")
    ('127.0.0.1', 7447)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{where} takes host:port, as in 127.0.0.1:7447, but is {text!r}")
    return host.strip("[]"), int(port)
