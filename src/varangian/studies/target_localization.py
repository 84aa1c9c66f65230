"""Target localization: each of 100 agents locates one of four targets from noisy bearings and distances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.attacks import pulling, uniform
from varangian.attacks.base import AnyAttack
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.graph import Graph
from varangian.core.models.base import Formula, Models, Sample
from varangian.core.scene import Scene
from varangian.core.task import Quadratic, Task

JUMPS_EVERY = 100
"""After how many samples targets jump, if they do."""
TARGETS = ((10.84, 10.76), (20.42, 20.26), (20.51, 10.40), (10.78, 20.30))


@dataclass(frozen=True)
class target_localization:
    """Linear regression from a stream: 100 agents, four targets, squared error of the measured distance."""

    agents: int = 100
    field_size: float = 3.0
    """Agents stand in the square [0, field_size]²."""
    radius: float = 1.0
    """Agents hear each other if they are within this distance."""
    max_degree: int = 10
    """The largest number of other agents that an agent hears."""
    direction_noise: tuple[float, float] = (0.01, 0.1)
    """Each agent's σ_u² is drawn between these."""
    distance_noise: tuple[float, float] = (0.1, 0.2)
    """Each agent's σ_d² is drawn between these."""
    drift: float = 0.0
    """How far each target moves in a round. The four targets move in four directions."""
    jump: float = 0.0
    """How far each target jumps, to and fro, every 100 rounds."""
    step_size: float = 0.1
    forgetting: float = 0.1
    rounds: int = 500

    name: ClassVar[str] = "target-localization"
    byzantine: ClassVar[tuple[int, ...]] = (0, 20, 99)
    """The paper's numbers of Byzantine agents."""
    attacks: ClassVar[tuple[AnyAttack, ...]] = (uniform(15, 16), pulling(point=(0.0, 0.0), step=0.05))
    metric: ClassVar[str] = "loss"
    by_group: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise BadInput(f"target-localization needs at least one agent, but agents is {self.agents}")
        if not 0 < self.field_size < float("inf"):
            raise BadInput(f"field_size must be a positive number, but is {self.field_size}")
        for name in ("drift", "jump"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"{name} must be 0 or a positive number, but is {getattr(self, name)}")
        for name in ("direction_noise", "distance_noise"):
            low, high = getattr(self, name)
            if not 0 <= low <= high < float("inf"):
                raise BadInput(f"{name} must be two numbers 0 ≤ low ≤ high, but is {low}, {high}")

    def scene(self, seed: int) -> Scene:
        """The network and the task of one seed."""
        position = self._position(seed)
        graph = Graph.geometric(position, self.radius, self.max_degree, seed)
        return Scene(self._task(seed, position), graph, positions=position)

    def task(self, seed: int) -> Task:
        """The task of one seed, which does not depend on the graph."""
        return self._task(seed, self._position(seed))

    def _task(self, seed: int, position: Float[Tensor, "agent 2"]) -> Task:
        lot = Draws.of(seed, self.agents).uniform("noise", 0, 2, torch.float64)
        group = torch.arange(self.agents) % len(TARGETS)
        target = torch.tensor(TARGETS, dtype=torch.float64)[group]
        angle = group.double() * (torch.pi / 2)
        heading = torch.stack((angle.cos(), angle.sin()), 1)
        stream = Bearings(
            target=target,
            position=position,
            drift=self.drift * heading,
            jump=self.jump * heading,
            direction_noise=_between(self.direction_noise, lot[:, 0]),
            distance_noise=_between(self.distance_noise, lot[:, 1]),
        )
        return Task(
            model=Formula(2, squared_error, gradient_of_squared_error),
            stream=stream,
            step_size=self.step_size,
            forgetting=self.forgetting,
            exact=MovingRisk(stream) if self.drift or self.jump else stream.risk(),
            groups=group.tolist(),
            together=True,
        )

    def _position(self, seed: int) -> Float[Tensor, "agent 2"]:
        return Draws.of(seed, self.agents).uniform("position", 0, 2, torch.float64) * self.field_size


def squared_error(theta: Float[Tensor, "... 2"], sample: Sample) -> Tensor:
    """ℓ = (d − (θ − x)ᵀu)² = (y − θᵀu)², with y = d + xᵀu."""
    return _excess(theta, sample).square()


def gradient_of_squared_error(theta: Models, sample: Sample) -> Models:
    """∇ℓ = 2 (θᵀu − y) u."""
    return sample[0] * (_excess(theta, sample) * 2)[:, None]


def _excess(theta: Float[Tensor, "... 2"], sample: Sample) -> Tensor:
    """θᵀu − y, written out, because sums over only two numbers are slow."""
    u, y = sample
    (one, other), (one_u, other_u) = theta.unbind(-1), u.unbind(-1)
    return torch.addcmul(one * one_u - y, other, other_u)


@dataclass(frozen=True, eq=False)
class Bearings:
    """The stream of measurements. In each round every agent measures the direction to its target and its distance.

    The direction is u = u₀ + N(0, σ_u² I), and the distance along it is d = (target − x)ᵀu + N(0, σ_d²). A sample is
    (u, y) with y = d + xᵀu. Targets may move: see `target_at`."""

    target: Float[Tensor, "agent 2"]
    """Where each agent's target is at first."""
    position: Float[Tensor, "agent 2"]
    drift: Float[Tensor, "agent 2"]
    """How each target moves in a round."""
    jump: Float[Tensor, "agent 2"]
    """How each target jumps, to and fro."""
    direction_noise: Float[Tensor, " agent"]
    distance_noise: Float[Tensor, " agent"]

    @property
    def agents(self) -> int:
        return len(self.target)

    @property
    def direction(self) -> Float[Tensor, "agent 2"]:
        """u₀: the direction from each agent to the first place of its target."""
        return torch.nn.functional.normalize(self.target - self.position)

    def target_at(self, time: Float[Tensor, "*rounds 1 1"]) -> Float[Tensor, "*rounds agent 2"]:
        """Where the targets are when sample number `time` is measured.

        They drift by the same distance in every round. They jump after 100 samples and back after 200, and so on.
        """
        return self.target + self.drift * time + self.jump * (time.div(JUMPS_EVERY, rounding_mode="floor") % 2)

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        noise = draws.normal_rounds("measurement", start, rounds, 3, dtype).mT
        target, direction, direction_noise, distance_noise, moves = _by_coordinate(self, dtype)
        if moves:
            time = start + torch.arange(rounds, dtype=self.target.dtype, device=self.target.device)
            there = self.target_at(time[:, None, None])
            direction = torch.nn.functional.normalize(there - self.position, dim=-1).mT.to(dtype)
            target = there.permute(2, 0, 1).to(dtype)
        u = torch.addcmul(direction, noise[:, :2], direction_noise)
        y = torch.addcmul(u[:, 0] * target[0], u[:, 1], target[1])
        return u.mT, y.addcmul_(noise[:, 2], distance_noise)

    def risk(self, round: int = 0) -> Quadratic:
        """r_k(θ) − r_k* = (θ − θ*)ᵀ (u₀u₀ᵀ + σ_u² I) (θ − θ*), for the sample after so many rounds."""
        target = self.target_at(self.target.new_full((1, 1), round))
        direction = torch.nn.functional.normalize(target - self.position)
        seen = direction[:, :, None] * direction[:, None, :]
        noise = self.direction_noise[:, None, None] * torch.eye(2, dtype=seen.dtype, device=seen.device)
        return Quadratic(target, seen + noise)

    def part(self, agents: slice | Int[Tensor, " some"]) -> Bearings:
        """The stream of some agents."""
        return Bearings(*(getattr(self, name)[agents] for name in self.__dataclass_fields__))

    def to(self, device: torch.device) -> Bearings:
        return Bearings(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class MovingRisk:
    """The risk of agents whose targets move."""

    stream: Bearings

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        """The regret before the first round."""
        return self.at(0)(models)

    def at(self, round: int) -> Quadratic:
        """The risk after so many rounds."""
        return self.stream.risk(round)

    def part(self, agents: slice | Int[Tensor, " some"]) -> MovingRisk:
        """The same risk for some of the agents."""
        return MovingRisk(self.stream.part(agents))

    def to(self, device: torch.device) -> MovingRisk:
        return MovingRisk(self.stream.to(device))


@lru_cache(maxsize=2048)
def _by_coordinate(stream: Bearings, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
    """First target and direction as (coordinate, agent), the two standard deviations, and whether targets move.

    One contiguous row per coordinate: operations then run along agents, not along two numbers at a time.
    """
    target, direction = (points.to(dtype).T.contiguous() for points in (stream.target, stream.direction))
    direction_noise, distance_noise = (v.sqrt().to(dtype) for v in (stream.direction_noise, stream.distance_noise))
    return target, direction, direction_noise, distance_noise, bool(stream.drift.any() or stream.jump.any())


def _between(bounds: tuple[float, float], lot: Float[Tensor, " agent"]) -> Float[Tensor, " agent"]:
    low, high = bounds
    return low + (high - low) * lot
