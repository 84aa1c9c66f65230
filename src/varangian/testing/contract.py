"""The contract of rules and attacks, for anyone who writes one: `check_rule(rule)` and `check_attack(attack)`.

Both run the candidate for a few rounds in small networks, some of them hostile. They raise an AssertionError that names
the first property that the candidate violates. A property is a function that takes the candidate and a dtype and
returns complaints. The two tables at the end of this file list all properties, in the order of checking.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from varangian.attacks.base import Attack, View
from varangian.core.draws import Draws
from varangian.core.graph import Graph
from varangian.core.inbox import Inbox
from varangian.core.messages import ToAll, ToEach
from varangian.rules.base import Combined, Rule, companion_of
from varangian.testing.knowledge import undeclared
from varangian.testing.scenarios import ORDER, InPart, Stage, Story, network, relabelled, squared_error, stories

Complaints = Iterator[str]
Property = Callable[..., Complaints]


def check_rule(rule: Rule[Any]) -> None:
    """Raise an AssertionError that names the first property that this rule violates.

    >>> from varangian import rules
    >>> check_rule(rules.loss_based())
    >>> class trusting(rules.average):
    ...     def combine(self, inbox, state):  # ignores which neighbours were heard
    ...         weights = torch.full_like(inbox.loss(), 1 / inbox.heard.shape[1])
    ...         return rules.Combined(inbox.mix(weights), weights, state)
    >>> check_rule(trusting())
    Traceback (most recent call last):
    AssertionError: trusting() violates row-stochastic weights: a neighbour that was not heard has a weight (float32)
    """
    _check(rule, RULE_PROPERTIES)


def check_attack(attack: Attack[Any], parameters: int = 2) -> None:
    """Raise an AssertionError that names the first property that this attack violates.

    `parameters` is the number of parameters of the models, for attacks that depend on it.

    >>> from varangian import attacks
    >>> check_attack(attacks.pulling(point=(1.0, 2.0, 3.0)), parameters=3)
    >>> class secretive(attacks.pulling):
    ...     knows = ()
    >>> check_attack(secretive())
    Traceback (most recent call last):
    AssertionError: secretive(point=(0.0,), step=0.05) violates declared knowledge: the models of normal agents change \
what it sends, but it does not declare 'messages' (float32)
    """
    _check(attack, {name: partial(of, parameters=parameters) for name, of in ATTACK_PROPERTIES.items()})


def _check(candidate: object, properties: Mapping[str, Property]) -> None:
    for name, complaints in properties.items():
        for dtype in (torch.float32, torch.float64):
            try:
                complaint = next(complaints(candidate, dtype), None)
            except Exception as error:
                complaint = f"it raised {error!r}"
            if complaint:
                raise AssertionError(f"{candidate!r} violates {name}: {complaint} ({str(dtype)[6:]})")


def _rule_shapes(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    for inbox, before, combined in Story.calm(dtype, network()).play(rule):
        table = inbox.own.new_empty(inbox.heard.shape)
        for leaf in tree_leaves(before):
            if not isinstance(leaf, Tensor):
                yield f"a state holds tensors only, not {leaf!r}"
            elif leaf.ndim == 0 or leaf.shape[:2] != table.shape[: min(2, leaf.ndim)]:
                yield f"a state's tensors are per agent or per (agent, slot), but one is {_kind(leaf)}"
        named = {"models": (combined.models, inbox.own), "the state": (combined.state, before)}
        if combined.weights is not None:
            named["weights"] = (combined.weights, table)
        if combined.personal is not None:
            named["personal models"] = (combined.personal, inbox.own)
            if companion_of(rule) != "personal":
                yield 'it returns personal models, but its companion is not "personal"'
        for what, (got, wanted) in named.items():
            if tree_map(_kind, got) != tree_map(_kind, wanted):
                yield f"{what} should be {tree_map(_kind, wanted)}, not {tree_map(_kind, got)}"


def _same_rule_twice(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    return _twice(lambda: [combined for _, _, combined in Story.calm(dtype, network()).play(rule)])


def _rule_mutates(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    return _mutations(rule, "combine", Story.calm(dtype, network()).play)


def _unsound(rule: Rule[Any], dtype: torch.dtype, turned: Callable[[Story], Sequence[Story]]) -> Complaints:
    """Errors in models and weights, in the stories that `turned` makes of the calm story."""
    for story in (other for calm in stories(dtype) for other in turned(calm)):
        for inbox, _, (models, weights, _, personal) in story.play(rule):
            if not models.isfinite().all():
                yield "models are not finite"
            if personal is not None and not personal.isfinite().all():
                yield "personal models are not finite"
            if companion_of(rule) == "alone":
                models = models - _towards_anchor(inbox, models, weights)
            if not _close([models[:, 3:]], [inbox.own[:, 3:]]):
                yield "a parameter that is never sent has changed"
            if weights is None:
                continue
            if (weights[~inbox.heard] != 0).any():
                yield "a neighbour that was not heard has a weight"
            if not (weights >= 0).all():
                yield "a weight is negative or nan"
            if not _close([weights.sum(1)], [torch.ones_like(weights[:, 0])]):
                yield f"weights of an agent sum to {weights.sum(1).min():.4g} … {weights.sum(1).max():.4g}, not to 1"
            if not _close([inbox.mix(weights)], [models]):
                yield "the models are not the mix that the weights give"


def _towards_anchor(inbox: Inbox, models: Tensor, weights: Tensor | None) -> Tensor:
    """The part of the models that the anchor explains: c (a_k − θ̂_k), where c is at most the agent's own weight."""
    towards, rest = inbox.anchor - inbox.own, models - (inbox.own if weights is None else inbox.mix(weights))
    seen = towards.abs()
    if weights is None:
        seen[:, :3] = 0  # without weights, only parameters that are never sent can be explained
    # Use the largest coordinate: squares of large numbers would overflow.
    largest = seen.argmax(1, keepdim=True)
    share = (rest.gather(1, largest) / towards.gather(1, largest)).nan_to_num(0.0, 0.0, 0.0)
    most = torch.ones_like(share) if weights is None else weights[:, :1]
    return towards * share.clamp(min=0.0).minimum(most)


def _lies(calm: Story, value: float) -> Sequence[Story]:
    """Bad messages from two agents, from all agents, and from all agents in the second round only."""
    which = ((1, [1, 4]), (1, list(range(7))), (0, [1]))
    return [replace(calm, sent=calm.sent.index_fill(dim, torch.tensor(who), value)) for dim, who in which]


def _zero_losses(calm: Story) -> Sequence[Story]:
    alike = torch.ones_like(calm.own)
    agreed = replace(calm, own=alike, previous=alike, sent=alike[..., :3], y=calm.u.sum(-1))
    return [replace(calm, u=calm.u * 0, y=calm.y * 0), agreed]


def _nan_losses(calm: Story) -> Sequence[Story]:
    who = torch.tensor([0, 3])
    return [replace(calm, y=calm.y.index_fill(1, who, math.nan)), replace(calm, own=calm.own.index_fill(1, who, 77.0))]


def _silence_matters(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    for calm in stories(dtype):
        silent = _lies(calm, math.nan)[0]
        edges = [(s, r) for s, r in zip(calm.graph.senders.tolist(), calm.graph.receivers.tolist(), strict=True)]
        without = replace(calm, graph=Graph.from_edges(7, [(s, r) for s, r in edges if s not in (1, 4)]))
        if not _close(silent.outcome(rule), without.outcome(rule)):
            yield "a neighbour that was never heard has an influence"


def _strangers_matter(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    for calm in stories(dtype):
        usual = calm.outcome(rule)[0]
        for agent in range(7):
            other = calm.with_each(lambda values, agent=agent: values.index_fill(1, torch.tensor([agent]), 9.0))  # type: ignore[misc]
            changed = (usual != other.outcome(rule)[0]).any(2).any(0)
            changed[calm.graph.receivers[calm.graph.senders == agent]] = False
            if changed.any():
                yield f"agent {int(changed.nonzero()[0])} changes with agent {agent}, whom it does not hear"


def _slot_order_matters(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    for calm in stories(dtype):
        rows = calm.graph.senders.split(calm.graph.offsets.diff().tolist())
        turned = Graph(torch.cat([torch.cat((row[:1], row[1:].flip(0))) for row in rows]), calm.graph.offsets)
        if not _close(calm.outcome(rule), replace(calm, graph=turned).outcome(rule)):
            yield "the order in which neighbours are listed changes the outcome"


def _labels_matter(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    for calm in stories(dtype):
        moved = replace(calm.with_each(lambda values: values[:, ORDER]), graph=relabelled(calm.graph))
        models, *weights = calm.outcome(rule)
        if not _close([models[:, ORDER], *(w[:, ORDER][:, :, ORDER] for w in weights)], moved.outcome(rule)):
            yield "the numbers of the agents change the outcome"


def _old_samples_matter(rule: Rule[Any], dtype: torch.dtype) -> Complaints:
    """In the first of three rounds, two agents have no new sample. What their last one holds must not matter."""
    who = torch.tensor([0, 3])

    def played(calm: Story, changed: bool, old: bool) -> list[Combined[Any]]:
        state, out = rule.init(calm.own.new_zeros(calm.inbox(0).heard.shape)), list[Combined[Any]]()
        for round in range(3):
            inbox = calm.inbox(round)
            if round == 0:
                u, y = inbox.samples["next"]
                y = y.index_fill(0, who, 9.0) if changed else y
                fresh = inbox.fresh.index_fill(0, who, not old)
                inbox = replace(inbox, samples={**inbox.samples, "next": (u, y)}, fresh=fresh)
            out.append(rule.combine(inbox, state))
            state = out[-1].state
        return out

    for calm in stories(dtype):
        judges = not _same(played(calm, False, False), played(calm, True, False))
        waited = played(calm, False, True)
        if not _same(waited, played(calm, True, True)):
            yield "it judges on a sample that is not new"
        if judges and not _same(waited[0].models[who], calm.own[0][who]):
            yield "an agent without a new sample to judge on does not keep its own model"


# Attacks --------------------------------------------------------------------------------------------------------


def _attack_shapes(attack: Attack[Any], dtype: torch.dtype, parameters: int) -> Complaints:
    """With some Byzantine agents, with one that nobody hears, with one, and with no honest agent."""
    for liars in ((1, 4, 5), (6,), (2,), tuple(range(7))):
        for view, state, sent in Stage.of(dtype, parameters, liars=liars).play(attack):
            if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(state)):
                yield f"a state holds tensors only, not {state!r}"
            if not isinstance(sent, ToAll | ToEach):
                yield f"an attack sends ToAll or ToEach, not {type(sent).__name__}"
            count, what = (len(liars), "sender") if isinstance(sent, ToAll) else (len(view.sender), "edge")
            if _kind(sent.rows) != _kind(view.adapted.new_empty(count, parameters)):
                yield f"there should be one row for each of {count} Byzantine {what}s, not {_kind(sent.rows)}"
            if sent.silent is not None and _kind(sent.silent) != _kind(torch.empty(count, dtype=torch.bool)):
                yield f"silent should hold True or False for each of {count} {what}s, not {_kind(sent.silent)}"


def _attack_forgets_its_shape(attack: Attack[Any], dtype: torch.dtype, parameters: int) -> Complaints:
    """A resumed run fills the state of `init`. Only a tensor without rows may get rows in the first round."""
    states = [state for _, state, _ in Stage.of(dtype, parameters).play(attack)]
    for before, after in pairwise(states):
        old, new = tree_leaves(before), tree_leaves(after)
        if tree_structure(before) != tree_structure(after) or any(
            _kind(one) != _kind(other) and len(one) for one, other in zip(old, new, strict=True)
        ):
            yield f"a state keeps its structure and its shapes, but {before!r} became {after!r}"


def _same_attack_twice(attack: Attack[Any], dtype: torch.dtype, parameters: int) -> Complaints:
    return _twice(lambda: [sent for _, _, sent in Stage.of(dtype, parameters).play(attack)])


def _attack_mutates(attack: Attack[Any], dtype: torch.dtype, parameters: int) -> Complaints:
    return _mutations(attack, "send", Stage.of(dtype, parameters).play)


def _attack_labels_matter(attack: Attack[Any], dtype: torch.dtype, parameters: int) -> Complaints:
    stage = Stage.of(dtype, parameters)
    lying, models = stage.lying[ORDER], stage.models[:, ORDER]
    moved = Stage(relabelled(stage.graph), lying, stage.draws.take(ORDER), models)
    expected = [sent[ORDER] if sent.ndim == 2 else sent[ORDER][:, ORDER] for sent in stage.outcome(attack)]
    if not _close(expected, moved.outcome(attack)):
        yield "the numbers of the agents change what is sent"


def _other_seeds_matter(attack: Attack[Any], dtype: torch.dtype, parameters: int) -> Complaints:
    one, other = (Stage.of(dtype, parameters, seed, liars) for seed, liars in ((1, (1, 4, 5)), (2, (0, 2))))
    for parts, own in (((one, other), slice(0, 7)), ((other, one), slice(7, 14))):
        both = Stage(
            Graph.disjoint_union([part.graph for part in parts]),
            torch.cat([part.lying for part in parts]),
            Draws.join([part.draws for part in parts]),
            torch.cat([part.models for part in parts], 1),
        )
        seen = [sent[own] if sent.ndim == 2 else sent[own, own] for sent in both.outcome(attack)]
        if not _close(one.outcome(attack), seen):
            yield "the network of another seed, run side by side, changes what is sent"


# Both -----------------------------------------------------------------------------------------------------------


def _twice(play: Callable[[], object]) -> Complaints:
    def generators() -> object:
        return torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())

    with torch.random.fork_rng(devices=[]):
        torch.rand(1)  # so that seeding the generator is noticed, too
        before = generators()
        first, second = play(), play()
        if not _same(first, second):
            yield "two equal calls give different results"
        if not _same(before, generators()):
            yield "it uses a global random generator, not Draws"


def _mutations(candidate: object, method: str, play: Callable[[Any], Iterator[object]]) -> Complaints:
    """Compare all arguments of `method` before and after each call."""
    complaints: list[str] = []

    def watched(shown: Inbox | View, state: Any) -> Any:
        if isinstance(shown, Inbox):  # losses are cached: compute them all, so that a change is noticed
            shown.loss("next"), shown.loss("same"), shown.anchor_loss("next"), shown.anchor_loss("same")
            shown.unseen_losses(), shown.unseen_anchor_losses()
        given = vars(shown) | {"the state": state}
        before = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, given)
        result = getattr(candidate, method)(shown, state)
        complaints.extend(f"it changed {name}" for name in given if not _same(given[name], before[name]))
        return result

    for _ in play(SimpleNamespace(**{"init": candidate.init, method: watched})):  # type: ignore[attr-defined]
        yield from complaints


def _kind(leaf: Any) -> object:
    return (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, Tensor) else type(leaf).__name__


def _same(one: object, other: object) -> bool:
    """Equal bit by bit, where nan equals nan."""
    pairs = list(zip(tree_leaves(one), tree_leaves(other), strict=True))
    return all(_equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def _equal(a: Tensor, b: Tensor) -> bool:
    return _kind(a) == _kind(b) and bool(((a == b) | ((a != a) & (b != b))).all())


def _close(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Equal up to rounding."""
    tolerance = torch.finfo(some[0].dtype).eps ** 0.6
    pairs = list(zip(some, others, strict=True))
    return all(a.shape == b.shape and torch.allclose(a, b, tolerance, tolerance, equal_nan=True) for a, b in pairs)


_HOSTILE: Mapping[str, Callable[[Story], Sequence[Story]]] = {
    "nan": partial(_lies, value=math.nan),
    "inf": partial(_lies, value=math.inf),
    "1e38": lambda calm: [*_lies(calm, 1e38), *_lies(calm, -1e38)],
    "silence": partial(_lies, value=math.nan),
    "an empty neighbourhood": lambda calm: [Story.calm(calm.own.dtype, Graph.from_edges(n, [])) for n in (1, 3)],
    "losses of exactly zero": _zero_losses,
    "losses below zero": lambda calm: [replace(calm, model=InPart(4, lambda t, s: squared_error(t, s) - 2))],
    "an own loss that is nan": _nan_losses,
    "an own model of 1e38": lambda calm: [replace(calm, own=torch.full_like(calm.own, 1e38))],
}

RULE_PROPERTIES: Mapping[str, Property] = {
    "shapes and types": _rule_shapes,
    "determinism": _same_rule_twice,
    "no mutation of inputs": _rule_mutates,
    "row-stochastic weights": partial(_unsound, turned=lambda calm: [calm]),
    **{f"survival of {what}": partial(_unsound, turned=turned) for what, turned in _HOSTILE.items()},
    "no influence of the order of slots": _slot_order_matters,
    "silence is absence": _silence_matters,
    "no influence of non-neighbours": _strangers_matter,
    "equivariance to relabelling agents": _labels_matter,
    "no judging on old samples": _old_samples_matter,
}

ATTACK_PROPERTIES: Mapping[str, Property] = {
    "one row for each sender or edge": _attack_shapes,
    "declared knowledge": undeclared,
    "a state of one shape": _attack_forgets_its_shape,
    "determinism": _same_attack_twice,
    "no mutation of the view": _attack_mutates,
    "equivariance to relabelling agents": _attack_labels_matter,
    "no influence of other seeds": _other_seeds_matter,
}
