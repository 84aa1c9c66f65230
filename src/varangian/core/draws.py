"""Random numbers with addresses.

A draw depends on (seed, purpose, round, agent, column) and on nothing else. It does not depend on earlier draws, on the
device, on how many seeds share a run, or on how many parts the network is split into. Runs can therefore be repeated,
resumed and split, and give the same bits.

Every (seed, purpose, agent) has a SplitMix64 stream (Steele, Lea and Flood, 2014). It is read at position
`round * width + column`. Integer arithmetic on tensors wraps modulo 2**64, as the generator requires.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.layout import FEW
from varangian.core.memory import check_fits

Drawn = TypeVar("Drawn")


ON_GPU = 2**24
"""How many numbers to draw at once on a GPU. There, drawing few takes as long as drawing many."""


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own shift is arithmetic."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place."""
    z.bitwise_xor_(_shifted(z, 30)).mul_(_MIX[0])
    z.bitwise_xor_(_shifted(z, 27)).mul_(_MIX[1])
    return z.bitwise_xor_(_shifted(z, 31))


def _fractions(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1) from random bits."""
    # Keep as many bits as the mantissa holds: with more, the result could round up to 1.
    keep = 24 if dtype == torch.float32 else 53
    return _shifted(bits, 64 - keep).to(dtype).mul_(2.0**-keep)


@dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers of some agents. An agent is identified by its seed and its number in that seed's network.

    >>> a = Draws.of(seed=0, agents=3)
    >>> bool((a.uniform("noise", round=7, width=2) == a.uniform("noise", round=7, width=2)).all())
    True
    """

    seed: Int[Tensor, " agent"]
    agent: Int[Tensor, " agent"]
    _streams: dict[str, Tensor] = field(default_factory=dict[str, Tensor], repr=False)
    _prefetched: dict[Any, Callable[[int], Tensor]] = field(
        default_factory=dict[Any, Callable[[int], Tensor]], repr=False
    )

    @staticmethod
    def of(seed: int, agents: int, device: torch.device | str = "cpu") -> Draws:
        """The draws of all agents of one network."""
        check_fits(16 * agents, f"a network of {agents} agents", device)
        number = torch.arange(agents, device=device)
        return Draws(torch.full_like(number, seed), number)

    @staticmethod
    def join(parts: Sequence[Draws]) -> Draws:
        """The draws of several networks, one after another."""
        return Draws(torch.cat([p.seed for p in parts]), torch.cat([p.agent for p in parts]))

    def take(self, agents: Int[Tensor, " some"] | slice) -> Draws:
        """The draws of some of these agents."""
        return Draws(self.seed[agents], self.agent[agents])

    def to(self, device: torch.device) -> Draws:
        return Draws(self.seed.to(device), self.agent.to(device))

    def bits(self, purpose: str, rounds: Int[Tensor, " round"], width: int) -> Int[Tensor, "round agent width"]:
        """64 random bits for every round, agent and column."""
        stream = self._streams.get(purpose)
        if stream is None:
            of_seed = _mixed(self.seed * _GOLDEN + zlib.crc32(purpose.encode()))
            stream = self._streams[purpose] = _mixed(of_seed + (self.agent + 1) * _GOLDEN)
        column = torch.arange(1, width + 1, device=stream.device)
        position = (rounds[:, None] * width + column).mul_(_GOLDEN)
        if width <= FEW:  # stored column by column, see `layout`
            return _mixed(stream + position[:, :, None]).mT
        return _mixed(stream[None, :, None] + position[:, None, :])

    def uniform(
        self, purpose: str, round: int, width: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "agent width"]:
        """Uniform on [0, 1), one row per agent. The result is cached: do not write into it."""
        return self._served(self.uniform_rounds, purpose, round, width, dtype)

    def normal(
        self, purpose: str, round: int, width: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "agent width"]:
        """Standard normal, one row per agent. The result is cached: do not write into it."""
        return self._served(self.normal_rounds, purpose, round, width, dtype)

    def uniform_rounds(
        self, purpose: str, start: int, rounds: int, width: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "round agent width"]:
        """`uniform` for several rounds: the same numbers with fewer operations.

        Args:
            purpose: A name. Draws with different names are independent.
            start: The first round.
            rounds: How many rounds.
            width: How many numbers per agent.
            dtype: The number type.

        Returns:
            A tensor of shape (round, agent, width).
        """
        return _fractions(self.bits(purpose, self._span(start, rounds), width), dtype)

    def normal_rounds(
        self, purpose: str, start: int, rounds: int, width: int, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "round agent width"]:
        """`normal` for several rounds, by the Box–Muller method: two numbers from one 64-bit word.

        Args:
            purpose: A name. Draws with different names are independent.
            start: The first round.
            rounds: How many rounds.
            width: How many numbers per agent.
            dtype: The number type.

        Returns:
            A tensor of shape (round, agent, width).
        """
        bits = self.bits(purpose, self._span(start, rounds), (width + 1) // 2)
        bits = bits.mT if width <= FEW else bits  # in memory order
        high = _shifted(bits, 32).to(torch.float64).add_(0.5).mul_(2.0**-32).to(dtype)
        low = bits.bitwise_and_(0xFFFFFFFF).to(dtype)
        radius = high.log_().mul_(-2).sqrt_()
        angle = low.mul_(2 * math.pi * 2.0**-32)
        pairs = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=2 if width <= FEW else 3)
        if width <= FEW:
            return pairs.flatten(1, 2)[:, :width].mT
        return pairs.flatten(2)[..., :width]

    def _served(
        self, draw: Callable[..., Tensor], purpose: str, round: int, width: int, dtype: torch.dtype
    ) -> Float[Tensor, "agent width"]:
        """The draw of one round. Small draws are made for many rounds at a time."""
        key = (draw.__name__, purpose, width, dtype)
        serve = self._prefetched.get(key)
        if serve is None:
            at_once = 2**15 if self.seed.device.type == "cpu" else ON_GPU
            rounds = max(1, min(128, at_once // max(1, len(self.seed) * width)))
            serve = prefetched(lambda start, rounds: draw(purpose, start, rounds, width, dtype).unbind(), rounds)
            self._prefetched[key] = serve
        return serve(round)

    def _span(self, start: int, rounds: int) -> Int[Tensor, " round"]:
        return torch.arange(rounds, device=self.seed.device) + start


@dataclass(frozen=True, eq=False)
class PairDraws:
    """The random numbers of pairs of agents, one of which hears the other, as tables of (agent, slot).

    A number depends on (seed, purpose, round, receiver, sender) and on nothing else.

    >>> pairs = PairDraws(Draws.of(seed=0, agents=3), torch.tensor([1]), torch.tensor([[1, 0, 2]]))
    >>> turned = PairDraws(Draws.of(seed=0, agents=3), torch.tensor([1]), torch.tensor([[1, 2, 0]]))
    >>> bool((pairs.uniform("order", round=7)[0, 1] == turned.uniform("order", round=7)[0, 2]).item())
    True
    """

    draws: Draws
    receivers: Int[Tensor, " agent"]
    """The rows of the receivers in `draws`."""
    senders: Int[Tensor, "agent slot"]
    """The rows of the senders."""

    def uniform(self, purpose: str, round: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "agent slot"]:
        """Uniform on [0, 1)."""
        of_receiver = self.draws.take(self.receivers).bits(purpose, self.draws._span(round, 1), 1)[0]
        # Every receiver has a stream of its own in every round, read at the number of the sender.
        bits = _mixed(of_receiver + (self.draws.agent[self.senders] + 1) * _GOLDEN)
        return _fractions(bits, dtype)


def prefetched(draw: Callable[[int, int], Sequence[Drawn]], rounds: int) -> Callable[[int], Drawn]:
    """A function that returns the draw of one round, and calls `draw` for up to `rounds` rounds at a time.

    At first for 16, and later for as many as there were before: a short run does not draw what it never uses. This is
    only a cache: rounds may be requested in any order, and the results are the same.

    >>> one = prefetched(lambda start, rounds: list(range(start, start + rounds)), rounds=10)
    >>> [one(3), one(25), one(24)]
    [3, 25, 24]
    """
    first, block = -1, list[Drawn]()

    def of_round(round: int) -> Drawn:
        nonlocal first, block
        if not 0 <= round - first < len(block):
            size = min(rounds, 1 << max(4, round.bit_length() - 1))
            first = round - round % size
            block = list(draw(first, size))
        return block[round - first]

    return of_round
