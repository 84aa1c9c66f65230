"""Errors of rules, attacks, models and metrics in the middle of a run: who failed, in which round, what is saved."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from varangian.attacks.base import Attack
from varangian.core.checks import one_line
from varangian.core.errors import BadInput, RunFailed
from varangian.engine import recorder, round
from varangian.engine.first_round import named
from varangian.rules.base import Rule


def explained(
    error: Exception, rule: Rule[Any], attack: Attack[Any], number: int, saved: Path | None
) -> Exception | None:
    """The error to raise instead, if a part of the round failed; None if the error speaks for itself.

    Args:
        error: What was raised.
        rule: The rule of the run.
        attack: Its attack.
        number: The number of the round.
        saved: The checkpoint with the rounds before, if there is one.
    """
    who = _culprit(error, rule, attack)
    if who is None or isinstance(error, BadInput):
        return None
    where = f"the rounds before are in {saved}; mend it and run again with resume=True"
    hint = where if saved is not None else "with checkpoint=FOLDER, the rounds before would be kept"
    return RunFailed(f"{who} failed in round {number}: {one_line(error)}; {hint}")


def _culprit(error: Exception, rule: Rule[Any], attack: Attack[Any]) -> str | None:
    """Whose code failed, by the first function of the round or of the recorder that the error passed through."""
    stages = {
        round.adapt: "training",
        round.byzantine_messages: named("attack", attack),
        round.next_sample: "drawing samples",
        round.combine: named("rule", rule),
        recorder.Recorder.record: "measuring",
    }
    by_code = {stage.__code__: who for stage, who in stages.items()}
    return next((by_code[at.f_code] for at, _ in traceback.walk_tb(error.__traceback__) if at.f_code in by_code), None)
