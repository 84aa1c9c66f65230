"""The paper's equations 2, 3, 4, 9 and 10 in plain Python, to be read beside the paper. It is the engine's reference.

It loops over agents and neighbours, one model at a time, in float64. It shares the inputs of a run with the engine:
random draws, lists of neighbours, initial models, and the parameters of the rule and the attack. It shares no
computation with it. Losses are those of one agent's module (or formula) on one agent's sample. Gradients come from
ordinary autograd.

Symbols: agent k, neighbour l (k is a neighbour of itself), θ_k the model, θ̂_k the adapted model, φ_lk the smoothed loss
of l's model on k's data, a_lk the weight that k gives to l, μ_k step size, ν_k forgetting factor, ξ_k sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from varangian import attacks, rules
from varangian.core.graph import Graph
from varangian.core.models.base import Formula, Model
from varangian.core.models.stacked import Stacked
from varangian.core.optimisers import Optimiser, adam, sgd
from varangian.engine.world import World

Vector = Tensor
"""The parameters of one agent; the shared ones come first."""
Sample = tuple[Tensor, ...]
"""One agent's sample."""
Message = Vector | None
"""What arrives from a neighbour; None if nothing was sent."""


@dataclass
class Agent:
    """Everything that one agent knows and remembers."""

    number: int
    theta: Vector
    sample: Sample
    step_size: float
    forgetting: float
    skip: float
    fresh: bool = True
    """Whether it has not trained on its sample yet."""
    phi: dict[int, float] = field(default_factory=dict[int, float])
    """φ_lk of every neighbour l."""
    observations: dict[int, int] = field(default_factory=dict[int, int])
    """How often each neighbour was observed."""
    weights: dict[int, float] = field(default_factory=dict[int, float])
    """a_lk of the last round."""
    velocity: Vector | None = None
    square: Vector | None = None
    steps: int = 0


class Network:
    """The network of one seed. To run it: `for _ in range(50): network.play_round()`."""

    def __init__(self, world: World, rule: Any, attack: Any) -> None:
        if len(world.seeds) != 1:
            raise ValueError("the reference runs one seed at a time")
        self.world, self.rule, self.attack = world, rule, attack
        self.round = 0
        self.shared = world.model.shared
        self.byzantine = set(world.byzantine.tolist())
        self.training_loss, self.judging_loss = losses_of(world.model)
        first = world.sample(0)
        self.agents = [
            Agent(
                number=k,
                theta=world.start[k].clone(),
                sample=tuple(part[k] for part in first),
                step_size=float(world.step_size[k]),
                forgetting=float(world.forgetting[k]),
                skip=0.0 if world.skip is None else float(world.skip[k]),
            )
            for k in range(world.agents)
        ]
        self._lots: tuple[str, int, Tensor] = "", -1, torch.empty(0)
        self._shrunken: dict[int, tuple[int, Vector, Vector]] = {}
        self._lists: tuple[Graph, list[list[int]]] | None = None

    @torch.no_grad()
    def play_round(self) -> None:
        """One round in the paper's order: adapt, send, hear, judge, combine."""
        schedule = self.world.task.schedule
        factor = 1.0 if schedule is None else schedule(self.round)
        adapted = [self.adapt(agent, agent.step_size * factor) for agent in self.agents]
        arriving = self.world.sample(self.round + 1)
        lots = self.world.draws.uniform("skip", self.round + 1, 1, torch.float64)
        combined: list[Vector] = []
        for agent in self.agents:
            k, trained_on, trained = agent.number, agent.sample, agent.fresh
            agent.fresh = float(lots[k]) >= agent.skip
            if agent.fresh or self.world.task.stale == "skipped":
                agent.sample = tuple(part[k] for part in arriving)
            if k in self.byzantine:
                # Byzantine agents train alone; attacks use these models as their honest ones.
                combined.append(adapted[k])
            else:
                inbox = self.hear(agent, adapted)
                combined.append(self.combine(agent, adapted[k], inbox, trained_on, trained, agent.step_size * factor))
        for agent, theta in zip(self.agents, combined, strict=True):
            agent.theta = theta
        self.round += 1

    # Adapt ----------------------------------------------------------------------------------------------------

    def adapt(self, agent: Agent, step_size: float) -> Vector:
        """θ̂_k,i = θ_k,i−1 − μ_k ∇ℓ(θ_k,i−1; ξ_k^(i−1)) (eq. 2).

        Agents without a new batch take no step. A step that does not lead to finite numbers is not taken either.
        """
        if not agent.fresh:
            return agent.theta
        gradient = gradient_of(self.training_loss, agent.theta, agent.sample)
        before = agent.velocity, agent.square, agent.steps
        stepped = agent.theta - step_size * direction(self.world.task.optimiser, agent, gradient)
        if not finite(stepped):
            agent.velocity, agent.square, agent.steps = before
            return agent.theta
        return stepped

    # Send and hear --------------------------------------------------------------------------------------------

    def neighbours(self, k: int) -> list[int]:
        """N_k without k itself, this round."""
        graph = self.world.scenes[0].graph
        now = graph if isinstance(graph, Graph) else graph(self.round)
        if self._lists is None or self._lists[0] is not now:
            self._lists = now, [now.neighbours(agent) for agent in range(now.agents)]
        return self._lists[1][k]

    def hear(self, agent: Agent, adapted: list[Vector]) -> dict[int, Message]:
        """The messages to this agent, its own first. Messages that are not finite count as silence."""
        inbox: dict[int, Message] = {agent.number: adapted[agent.number][: self.shared]}
        for neighbour in self.neighbours(agent.number):
            if neighbour in self.byzantine:
                message = self.byzantine_message(self.attack, neighbour, agent.number, adapted)
                inbox[neighbour] = message if message is not None and finite(message) else None
            else:
                inbox[neighbour] = adapted[neighbour][: self.shared]
        return inbox

    def byzantine_message(self, attack: Any, sender: int, receiver: int, adapted: list[Vector]) -> Message:
        """What a Byzantine agent sends to one receiver."""
        honest = adapted[sender][: self.shared]
        match attack:
            case attacks.uniform():
                return attack.low + (attack.high - attack.low) * self.lot("uniform", self.shared)[sender]
            case attacks.gaussian():
                return attack.mean + attack.std * self.lot("gaussian", self.shared)[sender]
            case attacks.sign_flip():
                return -attack.scale * honest
            case attacks.shrink():
                return self.shrunken(attack, sender, honest)
            case attacks.pulling():
                victim = self.agents[receiver].theta[: self.shared]
                return victim + attack.step * (torch.tensor(attack.point, dtype=torch.float64) - victim)
            case attacks.not_finite():
                return torch.full_like(honest, [math.nan, math.inf, 1e38][self.round % 3])
            case attacks.silent():
                return None
            case attacks.crash():
                return honest if self.round < attack.at else None
            case attacks.sleeper():
                if self.round < attack.until:
                    return honest
                return self.byzantine_message(attack.then, sender, receiver, adapted)
        raise ValueError(f"the reference does not know the attack {attack}")

    def shrunken(self, attack: attacks.shrink, sender: int, honest: Vector) -> Vector:
        """The model that takes the sender's honest steps and is shrunk in every round, tensor by tensor."""
        first = self.world.start[sender][: self.shared]
        round, sent, before = self._shrunken.get(sender, (-1, first, first))
        if round < self.round:
            model = self.world.model
            sizes = [shape.numel() for shape in model.shapes] if isinstance(model, Stacked) else [self.shared]
            while sum(sizes) > self.shared:
                sizes.pop()
            lots = self.lot("shrink", len(sizes))[sender]
            parts = (sent + honest - before).split(sizes)
            sent = torch.cat([attack.most * lot * part for lot, part in zip(lots, parts, strict=True)])
            self._shrunken[sender] = self.round, sent, honest
        return sent

    def lot(self, attack: str, width: int) -> Tensor:
        """The random numbers of an attack in this round, one row per agent."""
        if self._lots[:2] != (attack, self.round):
            draw = self.world.draws.normal if attack == "gaussian" else self.world.draws.uniform
            self._lots = attack, self.round, draw(f"{attack} attack", self.round, width, torch.float64)
        return self._lots[2]

    # Weigh and combine ----------------------------------------------------------------------------------------

    def combine(
        self, agent: Agent, own: Vector, inbox: dict[int, Message], trained_on: Sample, trained: bool, step_size: float
    ) -> Vector:
        """θ_k,i = Σ_{l ∈ N_k} a_lk(i) θ̂_l,i (eq. 3). Private parameters stay the agent's own."""
        self.remember_only(agent, inbox)
        agent.weights = self.weights(agent, own, inbox, trained_on, trained, step_size)
        theta = torch.zeros(self.shared, dtype=torch.float64)
        for neighbour, weight in agent.weights.items():
            message = inbox[neighbour]
            if message is not None and weight != 0:
                theta = theta + weight * message
        theta = torch.cat((theta, own[self.shared :]))
        return theta if finite(theta) else own

    def weights(
        self, agent: Agent, own: Vector, inbox: dict[int, Message], trained_on: Sample, trained: bool, step_size: float
    ) -> dict[int, float]:
        """a_lk for every neighbour that was heard. They are not negative and sum to one.

        `trained` says whether the agent had a new sample to train on in this round.
        """
        k, rule = agent.number, self.rule
        if isinstance(rule, rules.alone):
            return {k: 1.0}
        if isinstance(rule, rules.average):
            return weigh(dict.fromkeys(inbox, 1.0), heard(inbox), k)
        nu = agent.forgetting if rule.smoothing is None else rule.smoothing
        if isinstance(rule, rules.distance_based):
            # eq. 4: a_lk ∝ ‖θ̃_k − θ̂_l‖^−2, θ̃_k being θ_k,i−1 or one step ahead of θ̂_k.
            target = agent.theta
            if rule.target == "ahead":
                target = own + step_size * gradient_of(self.training_loss, own, trained_on)
            evidence = {
                neighbour: smooth(agent, neighbour, self.distance(target, message, rule.p) ** 2, nu, rule.start)
                for neighbour, message in inbox.items()
            }
            return weigh(evidence, keep_all(evidence), k)
        if isinstance(rule, rules.loss_based):
            # eq. 9: a_lk ∝ r_k(θ̂_l)^−1; eq. 10: the same for neighbours with r_k(θ̂_l) ≤ r_k(θ̂_k).
            on_next = (rule.judge or self.world.task.judge) == "next"
            sample = agent.sample if on_next else trained_on
            if self.world.task.stale == "wait" and not (agent.fresh if on_next else trained):
                # Without a new sample an agent neither judges nor listens.
                return {k: 1.0}
            risk = {
                neighbour: smooth(agent, neighbour, self.judge(own, message, sample), nu, rule.start)
                for neighbour, message in inbox.items()
            }
            kept = keep_all(risk) if rule.keep == "all" else keep_not_worse(risk, k)
            if rule.weigh == "regret":
                risk = {neighbour: max(0.0, value - risk[k]) for neighbour, value in risk.items()}
            return weigh(risk, kept, k)
        raise ValueError(f"the reference does not know the rule {rule}")

    def judge(self, own: Vector, message: Message, sample: Sample) -> float:
        """ℓ(θ̂_l; ξ_k): the loss of a neighbour's shared part, with the agent's private part, on the agent's data."""
        if message is None:
            return math.inf
        return float(self.judging_loss(torch.cat((message, own[self.shared :])), sample))

    def distance(self, target: Vector, message: Message, p: float) -> float:
        """‖θ̃_k − θ̂_l‖_p over the shared parameters."""
        if message is None:
            return math.inf
        gaps: list[float] = (target[: self.shared] - message).abs().tolist()
        if math.isinf(p):
            return max(gaps)
        return float(sum(gap**p for gap in gaps) ** (1 / p))

    def remember_only(self, agent: Agent, inbox: Iterable[int]) -> None:
        """Forget agents that are not neighbours in this round. If they return, they start anew."""
        agent.phi = {neighbour: agent.phi[neighbour] for neighbour in inbox if neighbour in agent.phi}
        agent.observations = {who: count for who, count in agent.observations.items() if who in agent.phi}


def smooth(agent: Agent, neighbour: int, observed: float, nu: float, start: float) -> float:
    """Update φ_lk^i = (1 − ν_k) φ_lk^(i−1) + ν_k · observed, and return φ corrected for its start.

    Starting from φ^(−1) = 0, t observations have a total weight of 1 − (1 − ν)^t. Division by it changes nothing among
    neighbours that were always heard, and gives no advantage to those that were not. Values that are not finite are not
    observations.
    """
    phi = agent.phi.setdefault(neighbour, start)
    if not math.isfinite(observed):
        return math.inf
    agent.phi[neighbour] = phi = (1 - nu) * phi + nu * observed
    agent.observations[neighbour] = count = agent.observations.get(neighbour, 0) + 1
    return phi if start != 0 else phi / (1 - (1 - nu) ** count)


def heard(inbox: dict[int, Message]) -> list[int]:
    return [neighbour for neighbour, message in inbox.items() if message is not None]


def keep_all(evidence: dict[int, float]) -> list[int]:
    """All neighbours with finite evidence (eq. 4, eq. 9)."""
    return [neighbour for neighbour, value in evidence.items() if math.isfinite(value)]


def keep_not_worse(risk: dict[int, float], k: int) -> list[int]:
    """N_k^≤ = {l : r_k(θ̂_l) ≤ r_k(θ̂_k)} (eq. 10)."""
    return [neighbour for neighbour, value in risk.items() if value <= risk[k] and math.isfinite(value)]


def weigh(evidence: dict[int, float], kept: list[int], k: int) -> dict[int, float]:
    """a_lk = φ_lk^−1 / Σ_p φ_pk^−1 for the neighbours kept, and 0 for the others. If none is kept, a_kk = 1.

    Evidence of 0 or less has no inverse that could be a weight. Neighbours with such evidence share all the weight.
    """
    if not kept:
        return {k: 1.0}
    perfect = [neighbour for neighbour in kept if evidence[neighbour] <= 0]
    if perfect:
        return {neighbour: 1 / len(perfect) for neighbour in perfect}
    inverse = {neighbour: 1 / evidence[neighbour] for neighbour in kept}
    return {neighbour: value / sum(inverse.values()) for neighbour, value in inverse.items()}


# One agent's model --------------------------------------------------------------------------------------------

LossOfOne = Callable[[Vector, Sample], Tensor]
"""ℓ(θ; ξ) of one model on one agent's sample."""


def losses_of(model: Model) -> tuple[LossOfOne, LossOfOne]:
    """The loss in training mode and in evaluation mode. They differ for modules such as dropout."""
    if isinstance(model, Formula):
        return model.loss, model.loss
    if not isinstance(model, Stacked):
        raise ValueError(f"the reference does not know the model {model}")

    def with_module(module: torch.nn.Module) -> LossOfOne:
        def loss(theta: Vector, sample: Sample) -> Tensor:
            own: dict[str, Tensor] = {}
            start = 0
            for name in model.names:
                shape = module.get_parameter(name).shape
                own[name] = theta[start : start + shape.numel()].reshape(shape)
                start += shape.numel()
            x, y = sample
            return model.loss(functional_call(module, own, (x,)), y)

        return loss

    return with_module(model.training), with_module(model.judging)


def gradient_of(loss: LossOfOne, theta: Vector, sample: Sample) -> Vector:
    """∇ℓ(θ; ξ), by autograd."""
    with torch.enable_grad():
        leaf = theta.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, sample), leaf)
    return gradient


def direction(optimiser: Optimiser, agent: Agent, gradient: Vector) -> Vector:
    """The direction of a step: the gradient (eq. 2), or that of momentum or Adam."""
    if isinstance(optimiser, sgd):
        gradient = gradient + optimiser.weight_decay * agent.theta
        if optimiser.momentum:
            if agent.velocity is not None:
                gradient = optimiser.momentum * agent.velocity + gradient
            agent.velocity = gradient
        return gradient
    if isinstance(optimiser, adam):
        gradient = gradient + optimiser.weight_decay * agent.theta
        mean = agent.velocity if agent.velocity is not None else torch.zeros_like(gradient)
        square = agent.square if agent.square is not None else torch.zeros_like(gradient)
        agent.steps += 1
        agent.velocity = optimiser.beta1 * mean + (1 - optimiser.beta1) * gradient
        agent.square = optimiser.beta2 * square + (1 - optimiser.beta2) * gradient**2
        mean = agent.velocity / (1 - optimiser.beta1**agent.steps)
        square = agent.square / (1 - optimiser.beta2**agent.steps)
        return mean / (square.sqrt() + optimiser.eps)
    raise ValueError(f"the reference does not know the optimiser {optimiser}")


def finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())
