"""The first round, played with a rule and an attack whose results are checked.

Rules and attacks are often a user's own. Their mistakes are found here, in one line with the name of the culprit. Later
rounds are not checked: a check has to wait for the numbers, and a GPU should never wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from varangian.attacks.base import Attack, View
from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox, Table
from varangian.core.messages import ToAll, ToEach
from varangian.engine.compute.blocks import Blocks
from varangian.engine.round import play_round
from varangian.engine.state import Seen, State
from varangian.engine.world import World
from varangian.rules.base import Combined, Companion, Rule, companion_of

_USUAL = 1e10
"""Messages with larger numbers may overflow in a correct rule. Its models are then not checked."""
_ROUNDING = 1e-3
"""How far a sum of weights may be from one."""


def play_first_round(world: World, rule: Rule[Any], attack: Attack[Any], state: State) -> tuple[State, Seen]:
    """As `play_round`, with checks. It is not compiled, since the checked rule is used only once."""
    return play_round(replace(world, executor=Blocks(world.execution)), CheckedRule(rule), CheckedAttack(attack), state)


def named(kind: str, value: object) -> str:
    """
    >>> from varangian import rules
    >>> named("rule", rules.median())
    'rule median()'
    """
    # Of a class inside a function, processes may know the name alone.
    text = repr(value).replace(type(value).__qualname__, type(value).__name__, 1)
    return f"{kind} {text if len(text) <= 100 else text[:100] + '…'}"


@dataclass(frozen=True)
class CheckedRule:
    """A rule whose results are checked: their types, shapes and numbers."""

    rule: Rule[Any]

    @property
    def companion(self) -> Companion | None:
        return companion_of(self.rule)

    def init(self, table: Table) -> Any:
        return self.rule.init(table)

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        who = named("rule", self.rule)
        combined: Any = self.rule.combine(inbox, state)
        if not isinstance(combined, tuple) or len(combined) != 4:
            raise BadInput(f"{who} returns {_kind(combined)}; return rules.Combined(models, weights, state)")
        models, weights, after, personal = combined
        _check_tensor(who, "models", models, inbox.own)
        if personal is not None:
            _check_tensor(who, "personal models", personal, inbox.own)
        _check_state(who, state, after)
        usual = inbox.rows.abs().max() < _USUAL
        if bool(usual & ~models.isfinite().all()):
            bad = int((~models.isfinite().all(1)).sum())
            raise BadInput(f"{who} returns models that are not finite, for {bad} of {len(models)} agents")
        if weights is not None:
            _check_tensor(who, "weights", weights, inbox.own.new_empty(inbox.heard.shape))
            _check_weights(who, weights, inbox)
        return Combined(*combined)


def _check_weights(who: str, weights: Table, inbox: Inbox) -> None:
    if not bool(weights.isfinite().all()):
        bad = int((~weights.isfinite().all(1)).sum())
        raise BadInput(f"{who} returns weights that are not finite, for {bad} of {len(weights)} agents")
    if bool((weights < 0).any()):
        raise BadInput(f"{who} returns a negative weight, {float(weights.min()):.4g}; return None for weights instead")
    total = weights.double().sum(1)
    worst = total[(total - 1).abs().argmax()]
    if bool((worst - 1).abs() > _ROUNDING):
        raise BadInput(f"{who} returns weights that sum to {float(worst):.4g} for an agent, but they must sum to 1")
    if bool((weights[:, 1:][~inbox.heard[:, 1:]] > 0).any()):
        raise BadInput(f"{who} gives a weight to a slot without a message; use inbox.heard to leave it out")


def _check_state(who: str, before: Any, after: Any) -> None:
    old, structure = tree_flatten(before)
    new, other = tree_flatten(after)
    for leaf in new:
        if not isinstance(leaf, Tensor):
            raise BadInput(f"{who} returns a state with {_kind(leaf)}; a state holds tensors only")
    if structure != other:
        raise BadInput(f"{who} returns a state of another structure than its init; both must be the same")
    for mine, first in zip(new, old, strict=True):
        if mine.shape != first.shape or mine.dtype != first.dtype:
            raise BadInput(f"{who} returns a state with {_kind(mine)} where its init has {_kind(first)}")


@dataclass(frozen=True)
class CheckedAttack:
    """An attack whose messages are checked: their types and shapes. Their numbers may be anything, also nan."""

    attack: Attack[Any]

    def init(self, own: Tensor) -> Any:
        return self.attack.init(own)

    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        who = named("attack", self.attack)
        answer: Any = self.attack.send(view, state)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], ToAll | ToEach):
            what = answer[0] if isinstance(answer, tuple) and len(answer) == 2 else answer
            raise BadInput(f"{who} sends {_kind(what)}; return ToAll(rows) or ToEach(rows), and the state")
        sent, after = answer
        edges = isinstance(sent, ToEach)
        count = len(view.sender if edges else view.byzantine)
        per = "edge on which it sends" if edges else "Byzantine agent"
        like = view.adapted.new_empty(count, view.adapted.shape[1])
        _check_tensor(who, f"messages, one row per {per},", sent.rows, like)
        if sent.silent is not None:
            _check_tensor(who, f"silent, one per {per},", sent.silent, view.byzantine.new_empty(count).bool())
        for leaf in tree_flatten(after)[0]:
            if not isinstance(leaf, Tensor):
                raise BadInput(f"{who} returns a state with {_kind(leaf)}; a state holds tensors only")
        return sent, after


def _check_tensor(who: str, what: str, got: Any, wanted: Tensor) -> None:
    if not isinstance(got, Tensor) or got.shape != wanted.shape or got.dtype != wanted.dtype:
        raise BadInput(f"{who} returns {what} as {_kind(got)}, but they must be {_kind(wanted)}")
    if got.device != wanted.device:
        raise BadInput(f"{who} returns {what} on {got.device}, but the run is on {wanted.device}")


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
