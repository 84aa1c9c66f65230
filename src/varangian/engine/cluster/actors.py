"""The processes that play one network's parts on a Ray cluster, an actor a part.

Models that cross from part to part go through Ray's object store, once for every pair of parts, and are read there
without a copy. Rounds are asked for ahead: while one part's models travel, others adapt.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from varangian.engine.cluster.ray_cluster import RayCluster
from varangian.engine.cluster.shard import Array, Orders, Shard, Spent
from varangian.engine.cluster.snapshots import Keeper
from varangian.engine.cluster.subnetwork import Part
from varangian.errors import BadInput

AHEAD = 4
"""How many rounds are asked for before the first of them is done."""
PATIENCE = 60.0
"""Seconds that the cluster has to find room for every part."""


class LostShard(Exception):
    """A process or a machine has died with a part of the network."""


class Player:
    """What runs in an actor: a shard, and how Ray likes to be answered."""

    def ready(self) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it

    def start(self, part: Part, orders: Orders) -> None:
        self.shard = Shard(part, orders)

    def tell(self) -> Any:
        told = self.shard.tell()
        return told[0] if len(told) == 1 else tuple(told)

    def adapt_others(self) -> None:
        self.shard.adapt_others()

    def hear(self, *messages: Array) -> int:
        return self.shard.hear(messages)

    def kept(self) -> tuple[int, bytes]:
        return self.shard.state.round, self.shard.kept()

    def restore(self, kept: bytes) -> int:
        return self.shard.restore(kept)

    def recorded(self) -> tuple[dict[str, Array], Spent]:
        return self.shard.recorded(), self.shard.spent


@dataclass(frozen=True, eq=False)
class Crew:
    """One actor for each part."""

    parts: Sequence[Part]
    actors: Sequence[Any]

    def play(self, keeper: Keeper, last: int, done: Callable[[int], object]) -> None:
        """Go on from what was kept until `last` rounds have been played; `done` hears of how many have been.

        An interrupt is noted when the rounds asked for are done, so that all parts have played as many.
        """
        kept = keeper.last(len(self.parts))
        round = 0 if kept is None else kept[0]
        if kept is not None:
            try:
                _got([actor.restore.remote(part) for actor, part in zip(self.actors, kept[1], strict=True)])
            except BadInput as error:
                raise BadInput(f"{keeper.folder} cannot be gone on from; remove it, or leave out --resume") from error
        done(round)
        asked: deque[tuple[int, list[Any]]] = deque()

        def wait(until: int) -> None:
            while len(asked) > until:
                _got(asked[0][1])
                done(asked.popleft()[0])

        try:
            while round < last:
                asked.append((round + 1, self._ask()))
                round += 1
                wait(until=AHEAD)
                if keeper.due(round) and round < last:
                    wait(until=0)
                    self._keep(keeper)
            wait(until=0)
        except KeyboardInterrupt:
            wait(until=0)
            self._keep(keeper)
            raise

    def _keep(self, keeper: Keeper) -> None:
        rounds, parts = zip(*_got([actor.kept.remote() for actor in self.actors]), strict=True)
        if len(set(rounds)) == 1:  # else an interrupt came while a round was being asked for
            keeper.keep(rounds[0], parts)

    def _ask(self) -> list[Any]:
        told = [self._told(part, actor) for part, actor in zip(self.parts, self.actors, strict=True)]
        for actor in self.actors:
            actor.adapt_others.remote()
        return [
            actor.hear.remote(*(of_part[number] for of_part in told if number in of_part))
            for number, actor in enumerate(self.actors)
        ]

    def _told(self, part: Part, actor: Any) -> dict[int, Any]:
        """For every part that hears this one, what it will be told."""
        receivers = [number for number, rows in enumerate(part.to) if len(rows)]
        refs = actor.tell.options(num_returns=len(receivers)).remote()
        return dict(zip(receivers, [refs] if len(receivers) == 1 else refs or [], strict=True))

    def recorded(self) -> list[tuple[dict[str, Array], Spent]]:
        return _got([actor.recorded.remote() for actor in self.actors])


@contextmanager
def hired(cluster: RayCluster, parts: Sequence[Part], given: Sequence[Any], orders: Orders) -> Iterator[Crew]:
    """A crew that is dismissed in the end; `given` is where the cluster has the parts."""
    import ray as library
    from ray.exceptions import GetTimeoutError

    # Shards may share a core: they take turns while they wait for each other.
    cores = _cores() / len(parts)
    orders = replace(orders, threads=max(1, int(cores)))
    player: Any = library.remote(Player).options(
        num_cpus=1 if cores >= 1 else int(1000 * cores) / 1000,
        num_gpus=cluster.gpus_per_shard,
        max_restarts=0,
        scheduling_strategy="SPREAD",
    )
    actors = [player.remote() for _ in parts]
    try:
        try:
            _got([actor.ready.remote() for actor in actors], timeout=PATIENCE)
        except GetTimeoutError as error:
            if _cores() / len(parts) < cores:
                raise LostShard("the cluster has become smaller") from error
            need = f"{len(parts)} shards with {cluster.gpus_per_shard:g} GPUs each"
            raise BadInput(f"the cluster has had no room for {need} for {PATIENCE:.0f} seconds") from error
        _got([actor.start.remote(part, orders) for actor, part in zip(actors, given, strict=True)])
        yield Crew(parts, actors)
    finally:
        for actor in actors:
            library.kill(actor)


def _cores() -> float:
    import ray as library

    return float(library.cluster_resources().get("CPU", 1.0))


def _got(refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """What actors answer; an error in one of them as it was, and the end of one as `LostShard`."""
    import ray as library
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    try:
        return library.get(list(refs), timeout=timeout)
    except GetTimeoutError:
        raise
    except RayTaskError as error:
        if isinstance(error.cause, RayError):  # what it was to be told died with whoever was to tell it
            raise LostShard(str(error.cause)) from error
        raise error.cause from error
    except RayError as error:
        raise LostShard(str(error)) from error
