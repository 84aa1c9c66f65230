"""What attacks declare to know, and what the view shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from attack_views import common_goal

from varangian import attacks, simulate
from varangian.attacks.base import KNOWLEDGE, Informed, ToAll, View, in_words, knowledge_of
from varangian.core.errors import BadInput
from varangian.experiments.spec import catalogue


@pytest.mark.parametrize("name", sorted(catalogue(attacks)))
def test_every_attack_declares_what_it_knows(name: str) -> None:
    attack = catalogue(attacks)[name]()
    assert isinstance(attack, Informed)
    assert knowledge_of(attack) == attack.knows  # in the order of `Knowledge`


def test_knowledge_may_depend_on_parameters() -> None:
    assert knowledge_of(attacks.collusion()) == ("messages",)
    assert knowledge_of(attacks.collusion(point=(0.0,))) == ()
    for wraps in (attacks.sleeper, attacks.sybil):
        assert knowledge_of(wraps(then=attacks.uniform())) == ()
        assert knowledge_of(wraps(then=attacks.alie())) == ("messages",)


@dataclass(frozen=True)
class declares:
    knows: Any

    def init(self, own: torch.Tensor) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own), state


def test_knowledge_is_put_in_order_and_checked() -> None:
    assert knowledge_of(declares(("truth", "messages"))) == ("messages", "truth")
    assert in_words(knowledge_of(declares(("truth", "messages")))) == "messages, truth"
    assert knowledge_of(replace(declares(()), knows=KNOWLEDGE)) == KNOWLEDGE
    with pytest.raises(BadInput, match="did you mean 'sample'"):
        knowledge_of(declares(("samples",)))


@dataclass(frozen=True)
class remembers_what_comes:
    """Keeps the upcoming sample and compares it with the sample that agents train on one round later."""

    seen: list[Any]

    def init(self, own: torch.Tensor) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        self.seen.append((view.insight.sample, view.insight.upcoming()))
        return ToAll(view.own), state


def test_the_upcoming_sample_is_the_next_round_s_sample() -> None:
    attack = remembers_what_comes([])
    simulate(common_goal(6), attack=attack, byzantine=1, rounds=4, device="cpu")
    assert len(attack.seen) == 4
    for (last, coming), (after, _) in zip(attack.seen, attack.seen[1:], strict=False):
        assert all(torch.equal(one, other) for one, other in zip(coming, after, strict=True))
        assert not torch.equal(last[0], coming[0])
