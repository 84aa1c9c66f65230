"""What decides the numbers of a run, as a short text: `rule=91ab… attack=… loss=…`.

Only a run with the same text can use a checkpoint or a finished file. Where two texts differ, the words say what has
changed.
"""

from __future__ import annotations

from typing import Any

from varangian.attacks.base import Attack
from varangian.core.models.stacked import Stacked
from varangian.core.scene import Scene
from varangian.engine.check import check_schedule
from varangian.engine.code_hash import hash_of, layers_of
from varangian.engine.options import RunOptions
from varangian.engine.world import World
from varangian.rules.base import Rule


def fingerprint(world: World, rule: Rule[Any], attack: Attack[Any], rounds: int, options: RunOptions) -> str:
    """The text for a run.

    The code of a rule or an attack does not count, only its name and its parameters. So a rule that failed in the
    middle of a run can be mended, and the run goes on.

    Args:
        world: The network. Its parameters, its first sample and its first graph count.
        rule: How agents combine what they hear.
        attack: What Byzantine agents send.
        rounds: The number of rounds.
        options: Only those that change results count.
    """
    task = world.task
    return text_of(
        {
            "rule": identity(rule),
            "attack": identity(attack),
            "rounds": rounds,
            "seeds": world.seeds,
            "model": (world.start, world.model.shared, *map(_made_of, world.scenes)),
            "loss": getattr(world.scenes[0].task.model, "loss", None),
            "schedule": check_schedule(task.schedule, rounds),
            "optimiser": repr(task.optimiser),
            "judging": (task.judge, task.stale, world.forgetting),
            "step-size": world.step_size,
            "skipping": world.skip,
            "options": repr(options.fingerprint),
            "data": world.sample(0),
            "graph": [(table.receivers, table.senders) for table in world.wiring(0).tables],
            "byzantine": world.byzantine,
        }
    )


def identity(value: object) -> object:
    """What makes a rule or an attack this one: how it prints, or its class and its fields if it prints an address."""
    return value if type(value).__repr__ is object.__repr__ else repr(value)


def text_of(parts: dict[str, object]) -> str:
    """A text from what decides a run, by its name.

    >>> text_of({"rounds": 5, "rule": "krum(f=1)"})
    'rounds=... rule=...'
    """
    return " ".join(f"{name}={hash_of(value)}" for name, value in parts.items())


def what_differs(one: str, other: str) -> str:
    """The names of the parts in which two texts differ, in words.

    >>> what_differs("rule=1 loss=2 data=3", "rule=1 loss=5 data=4")
    'another loss and data'
    """
    mine, yours = (dict(part.split("=", 1) for part in text.split() if "=" in part) for text in (one, other))
    names = [name for name in mine if mine[name] != yours.get(name)]
    if not names or len(names) == len(mine):
        return "everything is another"
    return "another " + " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _made_of(scene: Scene) -> object:
    """What a model is made of, without the numbers that agents train, which are in the first models."""
    model = scene.task.model
    return (layers_of(model.module), model.frozen_values) if isinstance(model, Stacked) else type(model)
