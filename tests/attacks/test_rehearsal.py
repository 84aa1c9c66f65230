"""Attacks that play others ahead: what they choose, and what they do with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from attack_views import column, view_of
from torch import Tensor

from varangian import BadInput, attacks, rules, simulate, studies
from varangian.attacks.base import knowledge_of
from varangian.attacks.rehearsal import Plans, each_edge, most_harmful, sent_by_chosen, strongest
from varangian.core.graph import Graph
from varangian.core.messages import ToAll
from varangian.engine.results import final
from varangian.testing import check_attack

PAIR = Graph.complete(2)


@dataclass(frozen=True)
class point:
    """Sends a number; the average of the stage then harms by its square."""

    at: float = 1.0
    strength: ClassVar[str] = "at"
    strengths: ClassVar[tuple[float, ...]] = (2.0, -5.0, 3.0)
    knows: ClassVar[tuple[Any, ...]] = ()

    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: Any, state: Any) -> Any:
        return ToAll(torch.full_like(view.own, self.at)), state


@dataclass(frozen=True)
class late:
    """Sends one point in the first five rounds and another one afterwards."""

    first: float
    then: float

    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: Any, state: Any) -> Any:
        return ToAll(torch.full_like(view.own, self.first if view.round < 5 else self.then)), state


def test_the_strength_that_harms_most_is_played() -> None:
    """Agent 0 is at 0 and averages: −5 takes it farthest from its optimum, zero."""
    attack = strongest(of=point())
    assert [choice.at for choice in attack.choices] == [1, 2, -5, 3]  # type: ignore[attr-defined]
    view = view_of(PAIR, [1], column(0, 0))
    sent, state = attack.send(view, attack.init(view.own))
    assert sent.rows.tolist() == [[-5]]
    # Between two searches the strength stays, whatever the models are.
    later = view_of(PAIR, [1], column(-100, 0), round=7)
    assert attack.send(later, state)[0].rows.tolist() == [[-5]]
    assert attack.send(view_of(PAIR, [1], column(-100, 0), round=50), state)[0].rows.tolist() == [[-5]]
    given = strongest(of=point(), values=(4.0,))
    assert given.send(view, given.init(view.own))[0].rows.tolist() == [[4]]


def test_every_network_has_its_own_choice() -> None:
    graph = Graph.disjoint_union([PAIR, PAIR])
    view = view_of(graph, [1, 3], column(0, 0, 10, 0))
    view.network[2:] = 1
    choices = (point(-4.0), point(2.0))
    chosen = most_harmful(view, choices, [(), ()], 1)
    assert chosen.tolist() == [0, 1], "a victim at 10 is harmed more by 2 than by −4"
    sent, after = sent_by_chosen(view, choices, Plans(chosen, ((), ())))
    assert sent.rows[:, 0].tolist() == [-4, 2] and after.states == ((), ())


def test_two_finalists_are_played_to_the_end() -> None:
    """After 3 rounds −5 harms most and 4 is second, but in the end 4 is worse. A third attack is not played on."""
    view = view_of(PAIR, [1], column(0, 0))
    choices = (point(-5.0), late(4.0, 90.0), late(3.0, 99.0))
    rounds: list[int] = []

    def rehearse(attack: Any, state: Any, some: int) -> Any:
        def further(more: int) -> Any:
            rounds.append(more)
            return usual(attack, state, some + more)

        return usual(attack, state, some)._replace(further=further)

    usual = view.insight.rehearse
    view = replace(view, insight=replace(view.insight, rehearse=rehearse))
    assert most_harmful(view, choices, [()] * 3, 10, heat=3).tolist() == [1]
    assert rounds == [7, 7]
    assert most_harmful(view, choices, [()] * 3, 10).tolist() == [2], "without heats all are played to the end"
    assert most_harmful(view, choices, [()] * 3, 2, heat=3).tolist() == [0]


def test_silence_stays_silence() -> None:
    view = view_of(PAIR, [1], column(0, 0))
    sent, _ = sent_by_chosen(view, (attacks.silent(),), Plans(torch.tensor([0]), ((),)))
    assert sent.silent is not None and sent.silent.all()
    rows, silent = each_edge(ToAll(column(3), None), torch.tensor([0, 0]))
    assert rows.tolist() == [[3], [3]] and not silent.any()


ADJUSTABLE = [
    attacks.alie(),
    attacks.inner_product(),
    attacks.dissensus(),
    attacks.spectral_dissensus(),
    attacks.fang_trimmed_mean(),
    attacks.fang_krum(),
    attacks.min_max(),
    attacks.min_sum(),
    attacks.scaled(),
    attacks.pulling(),
    attacks.sign_flip(),
]


@pytest.mark.parametrize("attack", ADJUSTABLE, ids=repr)
def test_every_attack_with_one_strength_can_be_searched(attack: Any) -> None:
    searched = strongest(of=attack, rounds=2)
    assert searched.choices[0] == attack and len(searched.choices) > 4
    assert set(knowledge_of(searched)) == {"messages", "rule", "sample", "truth"}


def test_it_is_an_attack() -> None:
    check_attack(strongest(of=attacks.dissensus(), values=(0.1, 2.0), rounds=1))


def test_a_search_harms_more_than_the_usual_strength() -> None:
    """After 500 rounds and 5 seeds 0.0252 against 0.0180; in a short run the order is the same."""

    def regret(attack: Any) -> float:
        study = studies.target_localization(agents=30)
        found = simulate(study, rule=rules.loss_based(), attack=attack, byzantine=6, rounds=120, seeds=3)
        return float(final(found, "regret").mean())

    usual = attacks.inner_product()
    assert regret(strongest(of=usual, values=(5.0, 30.0), rounds=30)) > regret(usual)


def test_what_cannot_be_searched_is_said() -> None:
    with pytest.raises(BadInput, match="does not declare its strength"):
        strongest(of=attacks.silent())
    with pytest.raises(BadInput, match="at least one round"):
        strongest(rounds=0)
    with pytest.raises(BadInput, match="b > 1"):
        strongest(of=attacks.fang_trimmed_mean(), values=(0.5,))
