"""The strongest attack here: an adversary that tries messages on its victims' rule before it sends one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from varangian.attacks.base import View
from varangian.attacks.victims import Company, audience_of, of_victims
from varangian.core.messages import ToEach
from varangian.core.models.base import Models
from varangian.errors import BadInput
from varangian.rules.base import Rule

Own = Float[Tensor, "byzantine parameter"]
Told = Float[Tensor, "agent parameter"]
"""The message that each agent hears from all its Byzantine neighbours."""
PerAgent = Float[Tensor, " agent"]
Length = Float[Tensor, "agent 1"]


@dataclass(frozen=True)
class best_response:
    """Tries many messages on the rule of each neighbour beforehand, and sends the most harmful of them.

    Equation:
        m_k = argmax_m h_k(m) · w_k(m)^ρ
        h_k(m) = r_k(D θ_k(m)) − r_k(D θ_k(∅))
        w_k(m) = min(1, ‖θ_k(m) − θ_k(∅)‖ / ‖m − θ_k(∅)‖)

    Two-faced: each victim k hears a different message. θ_k(m) is the model that k would combine if its Byzantine
    neighbours sent m, and θ_k(∅) if they were silent. r_k is the true risk of k. D is `horizon` steps of k down this
    risk, so harm that is repaired at once does not count. h is the harm, w the influence of m on k, and ρ the
    `patience`. A negative harm is not multiplied by the influence.

    Messages are tried along eight rays, at lengths from a tenth of the victim's last update to `reach` times all
    distances between models. Six rays start at the victim's models. They lead up the risk, up where it bends most,
    back against the update, to the worst neighbour, and to zero. Two start at a gift, a model that is better for k
    than its own, and add an error that k hardly notices. Silence, honesty and a few single models are tried too, and
    the best length is refined. If nothing does harm, k hears its own adapted model, which no rule judges worse than
    its own.

    It works against any rule, so measure a rule by it. It finds a bad message, not the worst one: it looks one round
    ahead, along few rays. An attack made for one rule can do far more harm. It cannot run where the network is split
    into shards.

    Knows: All models, the rule and its state, the true risk, and the sample that each victim has just trained on. It
    does not know the sample that the victim judges on next.
    Cost: 8 · lengths + 2 · refinements + 6 trials per round. Each trial judges and combines for all agents, and takes
    `horizon` gradients.

    Example:
        >>> from varangian import attacks, rules
        >>> attacks.best_response(lengths=4, refinements=1, rule=rules.average())
        best_response(lengths=4, refinements=1, horizon=5, patience=2.0, reach=100.0, rule=average())

    Reference:
        Ours. It stands for the omniscient adversary of the theory.
    """

    lengths: int = 6
    """How many lengths to try along each ray."""
    refinements: int = 2
    """How often to halve the gap between the best length and the lengths beside it."""
    horizon: int = 5
    """After how many steps of the victim the harm is measured; 0 measures it at once."""
    patience: float = 2.0
    """ρ: how much influence counts; 0 takes the largest harm of this round, whatever it costs in later rounds."""
    reach: float = 100.0
    """The largest length to try, in distances between models."""
    rule: Rule[Any] | None = None
    """The rule to try. By default the rule that victims follow, with all that it remembers."""

    def __post_init__(self) -> None:
        if self.lengths < 1:
            raise BadInput(f"best-response tries at least one length, but lengths is {self.lengths}")
        for name in ("refinements", "horizon", "patience"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"best-response: {name} must not be negative or infinite, but is {getattr(self, name)}")
        if not 0 < self.reach < float("inf"):
            raise BadInput(f"best-response needs a positive reach, but reach is {self.reach}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        outlook = Outlook.of(view, self.rule, self.horizon, self.patience)
        worst = worst_neighbour(view)
        low, between = scales(view, worst)
        ratio = (self.reach * between / low) ** (1 / max(1, self.lengths - 1))
        still = torch.zeros_like(view.adapted)
        best = Best.of(outlook, view.adapted).or_honest(outlook).or_silent()
        for told in (view.previous, worst, still):
            best = best.or_along(outlook, told, still, still[:, :1])
        for base, direction in directions(view, worst, between):
            for step in range(self.lengths):
                best = best.or_along(outlook, base, direction, low * ratio**step)
        for halving in range(1, self.refinements + 1):
            around = best
            for side in (-1, 1):
                length = (around.length * ratio ** (side * 0.5**halving)).minimum(self.reach * between)
                best = best.or_along(outlook, around.base, around.direction, length)
        return best.sent(view), state


@dataclass(frozen=True, eq=False)
class Outlook:
    """The consequences of a message for each agent."""

    view: View
    rule: Rule[Any] | None
    horizon: int
    patience: float
    step_size: Length
    quiet: Models
    """The models that agents would combine if Byzantine agents were silent: θ_k(∅)."""

    @staticmethod
    def of(view: View, rule: Rule[Any] | None, horizon: int, patience: float) -> Outlook:
        insight, shared = view.insight, view.adapted.shape[1]
        before = torch.cat((view.previous, insight.models[:, shared:]), 1)
        slope = insight.model.gradient(before, insight.sample).norm(dim=1, keepdim=True)
        # μ_k, or the effective step size of another optimiser in the last round.
        step_size = (insight.models - before).norm(dim=1, keepdim=True) / torch.where(slope > 0, slope, 1)
        nobody = torch.ones_like(view.sender, dtype=torch.bool)
        quiet = insight.foresee(ToEach(view.adapted[view.sender], nobody), rule)
        return Outlook(view, rule, horizon, patience, step_size, quiet)

    def risk(self, models: Models) -> PerAgent:
        for _ in range(self.horizon):
            models = models - self.step_size * gradient_of_risk(self.view, models)
        return self.view.insight.risk(models)

    @cached_property
    def risk_of_silence(self) -> PerAgent:
        return self.risk(self.quiet)

    def gain(self, told: Told) -> PerAgent:
        """harm · influence^patience where there is harm, otherwise the (negative) harm itself."""
        shared = told.shape[1]
        models = self.view.insight.foresee(ToEach(told[self.view.receiver]), self.rule)
        harm, quiet = self.harm(models), self.quiet[:, :shared]
        way = (told - quiet).norm(dim=1)
        influence = ((models[:, :shared] - quiet).norm(dim=1) / torch.where(way > 0, way, 1)).clamp(max=1)
        return torch.where(harm > 0, harm * influence**self.patience, harm)

    def harm(self, models: Models) -> PerAgent:
        harm = self.risk(models) - self.risk_of_silence
        return torch.where(harm.isnan(), -torch.inf, harm)


class Best(NamedTuple):
    """The most harmful message to each agent so far: base + length · direction, the sender's own model, or silence."""

    gain: PerAgent
    base: Told
    direction: Told
    length: Length
    honest: Bool[Tensor, " agent"]
    silent: Bool[Tensor, " agent"]

    @staticmethod
    def of(outlook: Outlook, told: Told) -> Best:
        still, neither = torch.zeros_like(told), torch.zeros(len(told), dtype=torch.bool, device=told.device)
        return Best(outlook.gain(told), told, still, still[:, :1], neither, neither)

    def or_along(self, outlook: Outlook, base: Told, direction: Told, length: Length) -> Best:
        gain = outlook.gain(torch.addcmul(base, direction, length))
        more = gain > self.gain
        return Best(
            torch.where(more, gain, self.gain),
            torch.where(more[:, None], base, self.base),
            torch.where(more[:, None], direction, self.direction),
            torch.where(more[:, None], length, self.length),
            self.honest & ~more,
            self.silent & ~more,
        )

    def or_honest(self, outlook: Outlook) -> Best:
        sent = ToEach(outlook.view.adapted[outlook.view.sender])
        gain = outlook.harm(outlook.view.insight.foresee(sent, outlook.rule))
        more = gain > self.gain
        return self._replace(gain=torch.where(more, gain, self.gain), honest=self.honest | more)

    def or_silent(self) -> Best:
        """Silence is what harm is measured from."""
        more = self.gain < 0
        return self._replace(gain=self.gain.clamp(min=0), honest=self.honest & ~more, silent=self.silent | more)

    def sent(self, view: View) -> ToEach:
        told = torch.addcmul(self.base, self.direction, self.length)[view.receiver]
        rows = torch.where(self.honest[view.receiver, None], view.adapted[view.sender], told)
        return ToEach(rows, silent=self.silent[view.receiver])


def scales(view: View, worst: Told) -> tuple[Length, Length]:
    """A length that is hardly noticed, and one above all distances between models."""
    update = (view.adapted - view.previous).norm(dim=1, keepdim=True)
    between = update + (worst - view.adapted).norm(dim=1, keepdim=True) + view.adapted.norm(dim=1, keepdim=True)
    between = torch.where(between > 0, between, 1)
    return 0.1 * torch.maximum(update, 1e-4 * between), between


def directions(view: View, worst: Told, far: Length, climbs: int = 3) -> Iterator[tuple[Told, Told]]:
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
    yield adapted, up
    yield view.previous, up
    yield adapted, steepest
    yield adapted, normalize(view.previous - adapted)
    yield adapted, to_worst
    yield adapted, -normalize(adapted)
    yield gift, hardly_seen
    yield gift, -hardly_seen


def improved(view: View, far: Length, descents: int = 4, halvings: int = 8) -> Told:
    """A better model for each agent: a few steps down its true risk, each the best of several halved lengths."""
    models, shared = view.insight.models, view.adapted.shape[1]
    least = view.insight.risk(models)
    for _ in range(descents):
        up = gradient_of_risk(view, models)
        up[:, shared:] = 0
        start, up = models, normalize(up)
        for halving in range(halvings):
            tried = start - far * 0.5**halving * up
            risk = view.insight.risk(tried)
            better = risk < least
            least, models = torch.where(better, risk, least), torch.where(better[:, None], tried, models)
    return models[:, :shared]


def gradient_of_risk(view: View, models: Models) -> Models:
    """∇r_k(θ_k) for every agent. Where the risk has no gradient, that of the loss on the last sample."""
    with torch.enable_grad():
        leaf = models.detach().requires_grad_()
        risk = view.insight.risk(leaf)
        if risk.requires_grad:
            # The risk of an agent depends on its own model only, so the gradient of the sum holds all gradients.
            (gradient,) = torch.autograd.grad(risk.sum(), leaf)
        else:
            gradient = view.insight.model.gradient(models, view.insight.sample)
    return gradient.nan_to_num(0, 0, 0)


def worst_neighbour(view: View) -> Told:
    """For each victim, the model it hears with the largest loss on its last sample; for other agents, their own."""
    insight, shared = view.insight, view.adapted.shape[1]

    def craft(around: Company) -> Tensor:
        private = insight.models[around.victim, None, shared:].expand(-1, around.slots.shape[1], -1)
        sample = tuple(part[around.victim] for part in insight.sample)
        loss = insight.model.judge(torch.cat((around.models, private), 2), sample)
        worst = torch.where(loss.isnan(), -torch.inf, loss).argmax(1)
        return view.adapted[around.slots.gather(1, worst[:, None])[:, 0]]

    return view.adapted.index_copy(0, audience_of(view).victim, of_victims(view, craft))
