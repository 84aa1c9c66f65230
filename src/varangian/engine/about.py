"""What a result says about itself: rule, attack, Byzantine agents, settings, version, and what its seeds change."""

from __future__ import annotations

import json
from typing import Any

import torch

from varangian.attacks.base import AnyAttack
from varangian.core.scene import Byzantine
from varangian.core.spelling import name_of, settings_of
from varangian.core.task import Task
from varangian.core.version import __version__
from varangian.engine.options import RunOptions
from varangian.rules.base import Rule
from varangian.studies.own_task import OwnTask, SceneOfSeed
from varangian.studies.study import Study

FIXED = "One fixed task: seeds change who is Byzantine, the attack and the order of data, not the data or the start."
DRAWN = "Seeds change the task too: its data and its starting models are drawn anew."


def seeds_change(task: Task | Study | SceneOfSeed) -> str:
    """What differs from seed to seed, as a sentence for captions."""
    fixed = isinstance(task, Task) or (isinstance(task, OwnTask) and task.fixed)
    return FIXED if fixed else DRAWN


def about_plan(study: Study, options: RunOptions) -> dict[str, str]:
    """The attributes of the results of a whole sweep."""
    settings = {**task_settings(study), **dict(options.fingerprint), "rounds": study.rounds}
    said = {"settings": json.dumps(settings, default=str), "seeds_change": seeds_change(study)}
    return {**said, "version": __version__}


def about(
    task: Task | Study | SceneOfSeed,
    rule: Rule[Any],
    attack: AnyAttack,
    byzantine: Byzantine,
    rounds: int,
    options: RunOptions,
) -> dict[str, str | int]:
    """The attributes of a result. Only what decides its numbers is in them.

    Args:
        task: What the agents learn.
        rule: How agents combine what they hear.
        attack: What Byzantine agents send.
        byzantine: How many or which agents are Byzantine.
        rounds: The number of rounds.
        options: How the run was computed.
    """
    settings = {**task_settings(task), **dict(options.fingerprint), "rounds": rounds}
    return {
        "rule": name_of(rule),
        "attack": name_of(attack),
        "byzantine": str(byzantine) if isinstance(byzantine, int | float) else json.dumps(list(map(int, byzantine))),
        "settings": json.dumps(settings, default=str),
        "seeds_change": seeds_change(task),
        "version": __version__,
    }


def task_settings(task: Task | Study | SceneOfSeed) -> dict[str, Any]:
    """The settings of a study by name, or those of a task."""
    if isinstance(task, Study):
        return {"study": task.name, **settings_of(task)}
    if not isinstance(task, Task):
        return {"study": getattr(task, "__name__", type(task).__name__)}
    names = ("step_size", "forgetting", "skip", "judge", "stale", "epoch")
    shown = {name: getattr(task, name) for name in names}
    several = {name: value.tolist() for name, value in shown.items() if isinstance(value, torch.Tensor)}
    return {**shown, **{name: _brief(values) for name, values in several.items()}, "optimiser": name_of(task.optimiser)}


def _brief(values: Any) -> Any:
    """One value per agent: all of them for a few agents, else the smallest and the largest."""
    few = not isinstance(values, list) or len(values) <= 20
    return values if few else f"{min(values):g} … {max(values):g}"
