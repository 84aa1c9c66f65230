"""The check at the door: everything a run is given, looked at before the first round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from varangian import attacks, rules, studies
from varangian.attacks.base import Attack
from varangian.core.checks import first_repeated, one_line, plain, shown, whole_number, whole_numbers, with_plain_fields
from varangian.core.errors import BadInput
from varangian.core.graph import AnyGraph, Graph, TimeVarying, as_graph
from varangian.core.scene import Byzantine, read_byzantine
from varangian.core.task import Task
from varangian.rules.base import Rule
from varangian.studies.own_task import SceneOfSeed
from varangian.studies.study import Study

_MOST_SEED = 2**63
_SCHEDULE_ROUNDS = 10_000
"""In how many rounds a schedule is tried, at most."""


class Given(NamedTuple):
    """What a run was given, checked and in one form."""

    task: Task | Study | SceneOfSeed
    graph: Graph | TimeVarying | None
    rule: Rule[Any]
    attack: Attack[Any]
    byzantine: Byzantine
    rounds: int
    seeds: Sequence[int]
    folder: Path | None


def check_run(
    task: Task | Study | SceneOfSeed,
    graph: AnyGraph | TimeVarying | None,
    rule: Rule[Any],
    attack: Attack[Any],
    byzantine: Any,
    rounds: Any,
    seeds: Any,
    callbacks: Any,
    checkpoint: Path | str | None,
    resume: bool,
) -> Given:
    """Refuse what cannot run, in one line, and bring the rest into one form.

    Args:
        task: A study, a task, or a function from the seed to a task.
        graph: Who hears whom: also a networkx graph.
        rule: How agents combine what they hear.
        attack: What Byzantine agents send.
        byzantine: A number, a share or a list; also of NumPy.
        rounds: The number of rounds; by default the study's own, or 100.
        seeds: A number of seeds, or the seeds.
        callbacks: Objects with the hooks start, round and end.
        checkpoint: A folder.
        resume: Whether to continue from it.
    """
    _check_task(task)
    if isinstance(task, Study) and graph is not None:
        raise BadInput("a study has its own graph; leave out graph, or pass a task")
    _check_value(rule, "rule", ("init", "combine"), rules, attacks)
    _check_value(attack, "attack", ("init", "send"), attacks, rules)
    if rounds is None:
        rounds = task.rounds if isinstance(task, Study) else 100
    _check_callbacks(callbacks)
    if resume and checkpoint is None:
        raise BadInput("resume=True needs checkpoint=, the folder that the interrupted run was given")
    return Given(
        task=task,
        graph=None if graph is None else as_graph(graph),
        rule=with_plain_fields(rule),
        attack=with_plain_fields(attack),
        byzantine=read_byzantine(byzantine),
        rounds=whole_number(rounds, "rounds", least=1),
        seeds=read_seeds(seeds),
        folder=_folder(checkpoint),
    )


def read_seeds(seeds: Any) -> Sequence[int]:
    """The seeds of a run: `seeds=5` means seeds 0 … 4; a sequence names them.

    >>> list(read_seeds(3)), read_seeds([5, 2])
    ([0, 1, 2], [5, 2])
    >>> read_seeds([1, 4, 1])
    Traceback (most recent call last):
    varangian.core.errors.BadInput: seeds names seed 1 twice; name each seed once
    """
    seeds = plain(seeds)
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        return range(whole_number(seeds, "seeds", least=1))
    numbers = whole_numbers(seeds, "seeds")
    if not numbers:
        raise BadInput(f"a run needs at least one seed, but seeds is {shown(seeds)}")
    for seed in numbers:
        if not 0 <= seed < _MOST_SEED:
            raise BadInput(f"a seed is a whole number from 0 to 2⁶³ − 1, but one of seeds is {seed}")
    twice = first_repeated(numbers)
    if twice is not None:
        raise BadInput(f"seeds names seed {twice} twice; name each seed once")
    return numbers


def check_schedule(schedule: Callable[[int], Any] | None, rounds: int) -> tuple[float, ...]:
    """The factors of a schedule in all rounds; in a long run, in evenly spaced ones. Each must be a finite number.

    >>> check_schedule(lambda round: 1 / (round + 1), 3)
    (1.0, 0.5, 0.3333333333333333)
    """
    if schedule is None:
        return ()
    step = -(-rounds // _SCHEDULE_ROUNDS)
    factors: list[float] = []
    for round in sorted({*range(0, rounds, step), rounds - 1}):
        try:
            factor = float(schedule(round))
        except Exception as error:
            raise BadInput(f"schedule({round}) failed; it must return a number: {one_line(error)}") from error
        if not (math.isfinite(factor) and factor >= 0):
            raise BadInput(f"schedule({round}) is {factor}; a factor on the step size must be finite and not negative")
        factors.append(factor)
    return tuple(factors)


def _check_task(task: Any) -> None:
    known = isinstance(task, Task | Study) or (callable(task) and not isinstance(task, nn.Module))
    if isinstance(task, type) or not known:
        built_in = _called(studies, task if isinstance(task, str) else getattr(task, "__name__", ""))
        hint = f"write {built_in}" if built_in else "pass a Task, a study or a function from the seed to a Task"
        raise BadInput(f"task is {_what(task)}; {hint}")


def _check_value(value: Any, kind: str, methods: Sequence[str], own: ModuleType, other: ModuleType) -> None:
    """Refuse a rule or an attack given by its class or its name, or one in the place of the other."""
    if not isinstance(value, type | str) and all(callable(getattr(value, method, None)) for method in methods):
        return
    name = value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
    if _called(own, name):
        hint = f"write {_called(own, name)}"
    elif _called(other, name):
        hint = f"that is not for {kind}="
    elif isinstance(value, type):
        hint = f"pass a value, such as {name}()"
    else:
        hint = f"pass a value with the methods {' and '.join(methods)}"
    raise BadInput(f"{kind} is {_what(value)}; {hint}")


def _called(module: ModuleType, name: str) -> str:
    """How to write a built-in of that name; empty if there is none."""
    name = name.replace("-", "_")
    short = module.__name__.rpartition(".")[2]
    return f"{short}.{name}()" if name in module.__all__ and isinstance(getattr(module, name), type) else ""


def _what(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"the text {shown(value)}" if isinstance(value, str) else shown(value)


def _check_callbacks(callbacks: Any) -> None:
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise BadInput(f"callbacks must be a list of objects with start, round and end, but is {shown(callbacks)}")
    for callback in callbacks:
        if isinstance(callback, type) or not all(callable(getattr(callback, hook, None)) for hook in _HOOKS):
            raise BadInput(f"a callback needs the methods start, round and end, but one is {_what(callback)}")


_HOOKS = ("start", "round", "end")


def _folder(checkpoint: Any) -> Path | None:
    if checkpoint is None:
        return None
    try:
        folder = Path(checkpoint)
    except TypeError:
        raise BadInput(f"checkpoint must be the path of a folder, but is {shown(checkpoint)}") from None
    if folder.is_file():
        raise BadInput(f"checkpoint must be a folder, but {folder} is a file")
    return folder
