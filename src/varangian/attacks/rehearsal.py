"""Attacks that choose among other attacks: they play each of them ahead, and continue with the most harmful one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.attacks.base import KNOWLEDGE, AnyAttack, Knowledge, Poisons, View, knowledge_of
from varangian.attacks.statistical import inner_product
from varangian.attacks.victims import networks_of, sender_row
from varangian.core.errors import BadInput
from varangian.core.messages import ToAll, ToEach
from varangian.core.models.base import Models

Own = Float[Tensor, "byzantine parameter"]

FINALISTS = 2
"""How many attacks are played ahead to the end, per network."""


@runtime_checkable
class Adjustable(Protocol):
    """An attack with one parameter that says how strong it is."""

    strength: ClassVar[str]
    """The name of this parameter."""
    strengths: ClassVar[tuple[float, ...]]
    """The values that are worth trying."""


class Plans(NamedTuple):
    """Which attack each network suffers now, and the state of every attack."""

    chosen: Int[Tensor, " byzantine"]
    """The number of the attack, for every Byzantine agent."""
    states: tuple[Any, ...]


@dataclass(frozen=True)
class strongest:
    """Plays another attack with the strength that harms most, found by playing several strengths ahead.

    Equation:
        s = argmax_s Σ_{k∈H} r_k(θ_k^{i+T}(s))

    θ_k^{i+T}(s) is the model of agent k after T more rounds in which the attack `of` has strength s. H are the normal
    agents of the network, and r_k is the true risk of k. Every T rounds the adversary plays all strengths ahead from
    the present state of the network. It uses samples like those of the agents, but not the same. Then it plays the
    best strength for T rounds.

    A fixed strength says little about a rule: too strong an attack is noticed, and too weak a one does no harm.

    Knows: What the attack `of` knows. To play ahead, also the rule and its state, the last samples and the true risk.
    Cost: As many rounds without an attack as there are strengths, per round.

    Example:
        >>> from varangian import attacks
        >>> attacks.strongest(of=attacks.dissensus())
        strongest(of=dissensus(epsilon=1.5), values=(), rounds=50)

    Reference:
        Gaucher, Dieuleveut and Hendrikx, "Unified breakdown analysis for Byzantine robust gossip", ICML 2025,
        choose strengths like this. https://arxiv.org/abs/2410.10418 So do the optimised attacks of ByzFL, in each
        round anew.
    """

    of: AnyAttack = field(default_factory=inner_product)
    """The attack whose strength is chosen. By default `inner_product`."""
    values: tuple[float, ...] = ()
    """The strengths to try. By default those that the attack suggests."""
    rounds: int = 50
    """T: how many rounds to play ahead, and for how many rounds to keep a strength."""

    def __post_init__(self) -> None:
        if not isinstance(self.of, Adjustable):
            raise BadInput(f"{self.of} does not declare its strength; declare strength and strengths on its class")
        if self.rounds < 1:
            raise BadInput(f"strongest plays at least one round ahead, but rounds is {self.rounds}")
        assert self.choices  # a value that the attack refuses is reported now

    @property
    def choices(self) -> tuple[AnyAttack, ...]:
        """The attack with every strength to try. The first one is the attack as it was given."""
        assert isinstance(self.of, Adjustable)
        values = self.values or self.of.strengths
        others = [replace(self.of, **{self.of.strength: value}) for value in values]  # type: ignore[type-var]
        return tuple(dict.fromkeys((self.of, *others)))

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return known_by((self.of,))

    def init(self, own: Own) -> Plans:
        return begun(self.choices, own)

    def send(self, view: View, state: Plans) -> tuple[ToEach, Plans]:
        choices = self.choices
        if view.round % self.rounds == 0:
            state = state._replace(chosen=most_harmful(view, choices, state.states, self.rounds))
        return sent_by_chosen(view, choices, state)


def known_by(attacks: Sequence[AnyAttack]) -> tuple[Knowledge, ...]:
    """What somebody knows who plays these attacks ahead."""
    known = {"messages", "rule", "sample", "truth"}.union(*map(knowledge_of, attacks))
    return tuple(kind for kind in KNOWLEDGE if kind in known)


def check_choices(attacks: Sequence[AnyAttack], who: str) -> None:
    for attack in attacks:
        if isinstance(attack, Poisons):
            raise BadInput(f"{who} changes messages, but {attack} changes data; run it by itself")


def begun(attacks: Sequence[AnyAttack], own: Own) -> Plans:
    return Plans(torch.zeros(len(own), dtype=torch.long, device=own.device), tuple(a.init(own) for a in attacks))


def most_harmful(
    view: View, attacks: Sequence[AnyAttack], states: Sequence[Any], rounds: int, heat: int | None = None
) -> Int[Tensor, " byzantine"]:
    """The number of the attack that harms each network most after some rounds, for every Byzantine agent.

    With `heat`, all attacks are first played for only so many rounds. The most harmful ones, two for each network, are
    then played on to the end.
    """
    networks = networks_of(view)

    def harm(models: Models) -> Float[Tensor, " network"]:
        risk = view.insight.risk(models).nan_to_num(0)
        return (risk[networks.member] * networks.present).sum(1)

    first = rounds if heat is None else min(heat, rounds)
    played = [view.insight.rehearse(attack, state, first) for attack, state in zip(attacks, states, strict=True)]
    harms = torch.stack([harm(each.models) for each in played])
    if first < rounds and len(played) > FINALISTS:
        finalists = harms.topk(FINALISTS, dim=0).indices.unique().tolist()
        harms = torch.full_like(harms, -torch.inf)
        for number in finalists:
            harms[number] = harm(played[number].further(rounds - first).models)
    return harms.argmax(0)[networks.of_sender]


def sent_by_chosen(view: View, attacks: Sequence[AnyAttack], state: Plans) -> tuple[ToEach, Plans]:
    """The messages of the chosen attacks. The states of attacks that nobody chose stay as they are."""
    rows = torch.zeros_like(view.adapted[view.sender])
    silent = torch.zeros_like(view.sender, dtype=torch.bool)
    sender, states = sender_row(view), list(state.states)
    for number in state.chosen.unique().tolist():
        sent, states[number] = attacks[number].send(view, states[number])
        told, quiet = each_edge(sent, sender)
        mine = state.chosen[sender] == number
        rows, silent = torch.where(mine[:, None], told, rows), torch.where(mine, quiet, silent)
    return ToEach(rows, silent), Plans(state.chosen, tuple(states))


def each_edge(sent: ToAll | ToEach, sender: Int[Tensor, " edge"]) -> tuple[Tensor, Tensor]:
    """The message on every edge, and on which edges there is silence. `sender` is the row of each edge's sender."""
    silent = sent.rows.new_zeros(len(sent.rows), dtype=torch.bool) if sent.silent is None else sent.silent
    return (sent.rows, silent) if isinstance(sent, ToEach) else (sent.rows[sender], silent[sender])
