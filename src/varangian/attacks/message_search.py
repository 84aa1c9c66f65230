"""The search for the most harmful message of one round: many messages are tried on the victims' rule at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from varangian.attacks.base import Knowledge, View
from varangian.attacks.blind_spots import blind_direction, null_space
from varangian.attacks.true_risk import Length, PerAgent, Told, gradient_of_risk, improved
from varangian.attacks.victims import Company, audience_of, of_victims
from varangian.core.messages import ToEach
from varangian.core.models.base import Models
from varangian.rules.base import Rule

Own = Float[Tensor, "byzantine parameter"]
Trials = Float[Tensor, "trial agent parameter"]


@dataclass(frozen=True)
class Search:
    """The search of one round, without playing ahead. The fields are those of `best_response`."""

    lengths: int
    refinements: int
    horizon: int
    patience: float
    reach: float
    every: int
    rule: Rule[Any] | None

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages", "rule", "sample", "truth")

    def init(self, own: Own) -> tuple[Told]:
        return (own[:0],)

    def send(self, view: View, state: tuple[Told]) -> tuple[ToEach, tuple[Told]]:
        outlook = Outlook.of(view, self.rule, self.horizon, self.patience)
        (last,) = state
        best = again(outlook, last) if len(last) and view.round % self.every else self.found(view, outlook)
        return best.sent(view), (best.told - view.adapted,)

    def found(self, view: View, outlook: Outlook) -> Best:
        """The best message along all rays."""
        worst = worst_neighbour(view)
        low, between = scales(view, worst)
        ratio = (self.reach * between / low) ** (1 / max(1, self.lengths - 1))
        rays = Rays.of(view, worst, between)
        size = torch.arange(self.lengths, dtype=low.dtype, device=low.device)
        told = rays.told(low * ratio ** size[:, None, None])
        best = Best.of(rays, told, outlook.tried(told), low, ratio)
        for halving in range(1, self.refinements + 1):
            sides = torch.tensor([-1.0, 1.0], dtype=low.dtype, device=low.device)[:, None, None] * 0.5**halving
            length = torch.minimum(best.length * ratio**sides, self.reach * between)
            best = best.or_nearby(outlook, length)
        return best


def again(outlook: Outlook, offset: Told) -> Best:
    """What was found in the last round, longer or shorter; `offset` is its distance from the victim's model."""
    adapted = outlook.view.adapted
    factors = torch.tensor([0.0, 0.5, 0.8, 1.0, 1.25, 2.0], dtype=adapted.dtype, device=adapted.device)
    told = adapted + factors[:, None, None] * offset
    tried = outlook.tried(told)
    found, agent = tried.gain.max(0), torch.arange(len(adapted), device=adapted.device)
    still = torch.zeros_like(adapted)
    return Best(found.values, tried.of_honesty, told[found.indices, agent], adapted, still, still[:, :1])


class Tried(NamedTuple):
    """The consequences of some messages."""

    gain: Float[Tensor, "trial agent"]
    """harm · influence^patience where there is harm, otherwise the (negative) harm itself."""
    of_honesty: PerAgent
    """The harm if Byzantine agents sent what honest ones would."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """How the consequences of messages are measured."""

    view: View
    rule: Rule[Any] | None
    horizon: int
    patience: float
    step_size: Length

    @staticmethod
    def of(view: View, rule: Rule[Any] | None, horizon: int, patience: float) -> Outlook:
        insight, shared = view.insight, view.adapted.shape[1]
        before = torch.cat((view.previous, insight.models[:, shared:]), 1)
        slope = insight.model.gradient(before, insight.sample).norm(dim=1, keepdim=True)
        # μ_k, or the effective step size of another optimiser in the last round.
        step_size = (insight.models - before).norm(dim=1, keepdim=True) / torch.where(slope > 0, slope, 1)
        return Outlook(view, rule, horizon, patience, step_size)

    def risk(self, models: Float[Tensor, "*trial agent parameter"]) -> Float[Tensor, "*trial agent"]:
        for _ in range(self.horizon):
            models = models - self.step_size * gradient_of_risk(self.view, models)
        risk: Tensor = self.view.insight.risk(models)
        return risk

    def tried(self, told: Trials) -> Tried:
        """Try messages, silence and honesty on all victims at once."""
        view, shared = self.view, told.shape[2]
        silence = torch.full_like(told[:1], torch.nan)
        models = view.insight.foresee_each(torch.cat((silence, told)), self.rule)
        honest = view.insight.foresee(ToEach(view.adapted[view.sender]), self.rule)
        of_silence, *others = self.risk(torch.cat((models, honest[None])))
        harm = torch.stack(others) - of_silence
        harm, of_honesty = torch.where(harm.isnan(), -torch.inf, harm).tensor_split([len(told)])
        quiet, models = models[0, :, :shared], models[1:, :, :shared]
        way = (told - quiet).norm(dim=2)
        influence = ((models - quiet).norm(dim=2) / torch.where(way > 0, way, 1)).clamp(max=1)
        return Tried(torch.where(harm > 0, harm * influence**self.patience, harm), of_honesty[0])


@dataclass(frozen=True, eq=False)
class Rays:
    """Where to look for messages: single models, and rays from a model in a direction, a unit vector."""

    points: Float[Tensor, "point agent parameter"]
    """The first is what an agent hears if nothing does harm: its own adapted model."""
    base: Float[Tensor, "ray agent parameter"]
    direction: Float[Tensor, "ray agent parameter"]

    @staticmethod
    def of(view: View, worst: Told, far: Length) -> Rays:
        blind = blind_direction().told(view)
        points = (view.adapted, view.previous, worst, torch.zeros_like(worst), blind, null_space().told(view))
        base, direction = zip(*directions(view, worst, blind, far), strict=True)
        return Rays(torch.stack(points), torch.stack(base), torch.stack(direction))

    def told(self, lengths: Float[Tensor, "length agent 1"]) -> Trials:
        """All messages to try: the points, then the rays at each length."""
        along = self.base[:, None] + self.direction[:, None] * lengths
        return torch.cat((self.points, along.flatten(0, 1)))


@dataclass(frozen=True, eq=False)
class Best:
    """The most harmful message to each agent so far."""

    gain: PerAgent
    of_honesty: PerAgent
    told: Told
    base: Told
    direction: Told
    length: Length

    @staticmethod
    def of(rays: Rays, told: Trials, tried: Tried, low: Length, ratio: Length) -> Best:
        best = tried.gain.max(0)
        place, lengths = best.indices - len(rays.points), (len(told) - len(rays.points)) // len(rays.base)
        agent = torch.arange(told.shape[1], device=told.device)
        ray = (place // lengths).clamp(min=0)
        # A single model has no direction to refine along.
        moves = (place >= 0)[:, None]
        length = low * ratio ** (place % lengths)[:, None]
        direction = rays.direction[ray, agent] * moves
        chosen, base = told[best.indices, agent], rays.base[ray, agent]
        return Best(best.values, tried.of_honesty, chosen, base, direction, length)

    def or_nearby(self, outlook: Outlook, lengths: Float[Tensor, "length agent 1"]) -> Best:
        """The better of this message and of others along the same ray."""
        moves = self.direction.abs().amax(1, keepdim=True) > 0
        told = torch.where(moves, self.base + self.direction * lengths, self.told)
        found = outlook.tried(told).gain.max(0)
        more, agent = found.values > self.gain, torch.arange(len(self.gain), device=told.device)
        return Best(
            torch.where(more, found.values, self.gain),
            self.of_honesty,
            torch.where(more[:, None], told[found.indices, agent], self.told),
            self.base,
            self.direction,
            torch.where(more[:, None], lengths[found.indices, agent], self.length),
        )

    def sent(self, view: View) -> ToEach:
        """The message, or the sender's own model or silence, where that does more harm."""
        receiver = view.receiver
        honest = ((self.of_honesty > self.gain) & (self.of_honesty >= 0))[receiver]
        silent = ((self.gain < 0) & (self.of_honesty < 0))[receiver]
        rows = torch.where(honest[:, None], view.adapted[view.sender], self.told[receiver])
        return ToEach(rows, silent=silent)


def scales(view: View, worst: Told) -> tuple[Length, Length]:
    """A length that is hardly noticed, and one above all distances between models."""
    update = (view.adapted - view.previous).norm(dim=1, keepdim=True)
    between = update + (worst - view.adapted).norm(dim=1, keepdim=True) + view.adapted.norm(dim=1, keepdim=True)
    between = torch.where(between > 0, between, 1)
    return 0.1 * torch.maximum(update, 1e-4 * between), between


def directions(view: View, worst: Told, blind: Told, far: Length, climbs: int = 3) -> Iterator[tuple[Told, Told]]:
    """The rays to try: where each starts, and its direction, a unit vector."""
    adapted, shared = view.adapted, view.adapted.shape[1]
    private = view.insight.models[:, shared:]

    def uphill(models: Models) -> Told:
        return normalize(gradient_of_risk(view, models)[:, :shared])

    up = steepest = uphill(view.insight.models)
    for _ in range(climbs):
        # Far away, the gradient points to where the risk bends most.
        steepest = uphill(torch.cat((adapted + far * steepest, private), 1))
    to_worst = normalize(worst - adapted)
    hardly_seen = normalize(to_worst - steepest * (to_worst * steepest).sum(1, keepdim=True))
    gift = improved(view, far)
    flat = normalize(blind - gift)
    yield adapted, up
    yield view.previous, up
    yield adapted, steepest
    yield adapted, normalize(view.previous - adapted)
    yield adapted, to_worst
    yield adapted, -normalize(adapted)
    yield gift, hardly_seen
    yield gift, -hardly_seen
    yield gift, flat
    yield gift, -flat


def worst_neighbour(view: View) -> Told:
    """For each victim, the model it hears with the largest loss on its last sample; for other agents, their own."""
    insight, shared = view.insight, view.adapted.shape[1]

    def craft(around: Company) -> Tensor:
        private = insight.models[around.victim, None, shared:].expand(-1, around.slots.shape[1], -1)
        sample = tuple(part[around.victim] for part in insight.sample)
        loss = insight.model.judge(torch.cat((around.models, private), 2), sample)
        worst: Int[Tensor, " victim"] = torch.where(loss.isnan(), -torch.inf, loss).argmax(1)
        return view.adapted[around.slots.gather(1, worst[:, None])[:, 0]]

    return view.adapted.index_copy(0, audience_of(view).victim, of_victims(view, craft))
