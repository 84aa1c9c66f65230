"""The processes that compute one network on a Ray cluster: one actor for each part of the network.

Models that go from one part to another pass through Ray's object store, once for each pair of parts, and are read
there without a copy. Several rounds are requested ahead, so that some parts adapt while the models of others travel.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from varangian.core.errors import BadInput
from varangian.core.user_code import carried
from varangian.engine.cluster.ray_cluster import RayCluster
from varangian.engine.cluster.shard import Array, Shard, ShardOptions, StageTimes
from varangian.engine.cluster.snapshots import Snapshots
from varangian.engine.cluster.subnetwork import Part

AHEAD = 4
"""How many rounds are requested before the first of them is finished."""
ROOM_SECONDS = 60.0
"""How long to wait until the cluster has free cores and GPUs for all shards."""
START_SECONDS = 600.0
"""How long to wait for the processes of the shards once they have their cores and GPUs."""
WARN_SECONDS = 60.0
"""After how long a warning says that the processes are slow to start."""
LOOK_SECONDS = 1.0
"""Seconds of a single wait. Between two waits we can react to an interrupt, or to a cluster that became smaller."""


class LostShard(Exception):
    """A process or a machine died, and the part of the network on it is lost."""


class ShardActor:
    """A shard in a separate process; its methods return values that Ray can send."""

    def ready(self) -> None:
        """Returns once the process runs. Arrays from the object store are read-only; the warning is not needed."""
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def start(self, part: Part, shard_options: ShardOptions) -> None:
        self.shard = Shard(part, shard_options)

    def tell(self) -> Any:
        messages = self.shard.tell()
        return messages[0] if len(messages) == 1 else tuple(messages)

    def adapt_others(self) -> None:
        self.shard.adapt_others()

    def hear(self, *messages: Array) -> int:
        return self.shard.hear(messages)

    def kept(self) -> tuple[int, bytes]:
        return self.shard.state.round, self.shard.kept()

    def restore(self, kept: bytes) -> int:
        return self.shard.restore(kept)

    def recorded(self) -> tuple[dict[str, Array], StageTimes]:
        return self.shard.recorded(), self.shard.spent


@dataclass(frozen=True, eq=False)
class ActorGroup:
    """The actors that compute one network together, one for each part."""

    parts: Sequence[Part]
    actors: Sequence[Any]

    def play(self, snapshots: Snapshots, last: int, done: Callable[[int], object]) -> None:
        """Compute the rounds from the last snapshot up to `last`; `done` is called with the number of finished rounds.

        After an interrupt, rounds that were already requested are finished first, so all parts save the same round.
        """
        kept = snapshots.last(len(self.parts))
        round = 0 if kept is None else kept[0]
        if kept is not None:
            try:
                _got([actor.restore.remote(part) for actor, part in zip(self.actors, kept[1], strict=True)])
            except BadInput as error:
                raise BadInput(f"{snapshots.folder} cannot be resumed; remove it, or leave out --resume") from error
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
                if snapshots.due(round) and round < last:
                    wait(until=0)
                    self._save(snapshots)
            wait(until=0)
        except KeyboardInterrupt:
            wait(until=0)
            self._save(snapshots)
            raise

    def _save(self, snapshots: Snapshots) -> None:
        rounds, parts = zip(*_got([actor.kept.remote() for actor in self.actors]), strict=True)
        if len(set(rounds)) == 1:  # rounds differ if an interrupt came while a round was being requested
            snapshots.save(rounds[0], parts)

    def _ask(self) -> list[Any]:
        sent = [self._messages_of(part, actor) for part, actor in zip(self.parts, self.actors, strict=True)]
        for actor in self.actors:
            actor.adapt_others.remote()
        return [
            actor.hear.remote(*(of_part[number] for of_part in sent if number in of_part))
            for number, actor in enumerate(self.actors)
        ]

    def _messages_of(self, part: Part, actor: Any) -> dict[int, Any]:
        """The messages of one part, as references, by the number of the part that receives them."""
        receivers = [number for number, rows in enumerate(part.to) if len(rows)]
        refs = actor.tell.options(num_returns=len(receivers)).remote()
        return dict(zip(receivers, [refs] if len(receivers) == 1 else refs or [], strict=True))

    def recorded(self) -> list[tuple[dict[str, Array], StageTimes]]:
        return _got([actor.recorded.remote() for actor in self.actors])


@contextmanager
def started_actors(
    cluster: RayCluster, parts: Sequence[Part], given: Sequence[Any], shard_options: ShardOptions
) -> Iterator[ActorGroup]:
    """Start one actor for each part, and end them all on the way out.

    Cores and GPUs are reserved for all parts at once, before any process starts. So two runs with half of their shards
    each never wait for each other. It also separates a full cluster from one whose processes are slow to start.

    Args:
        cluster: how many GPUs a shard has.
        parts: the parts of the network.
        given: references to the same parts in the cluster's object store.
        shard_options: what all shards have in common.
    """
    import ray as library
    from ray.util.placement_group import remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    shard_options = replace(shard_options, threads=max(1, int(_total("CPU") / len(parts))))
    machines = [node["Resources"] for node in library.nodes() if node["Alive"]]
    need = {"CPU": core_share(machines, len(parts), cluster.gpus_per_shard)}
    if cluster.gpus_per_shard:
        need["GPU"] = cluster.gpus_per_shard
    reserved = library.util.placement_group([need] * len(parts), strategy="SPREAD")
    actors: list[Any] = []
    try:
        _wait_for_room(reserved, need, len(parts))
        for number in range(len(parts)):
            shard: Any = library.remote(ShardActor).options(
                num_cpus=need["CPU"],
                num_gpus=cluster.gpus_per_shard,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(reserved, placement_group_bundle_index=number),
            )
            actors.append(shard.remote())
        _wait_for_processes(actors)
        _got([actor.start.remote(part, carried(shard_options)) for actor, part in zip(actors, given, strict=True)])
        yield ActorGroup(parts, actors)
    finally:
        for actor in actors:
            library.kill(actor)
        remove_placement_group(reserved)


def core_share(machines: Sequence[Mapping[str, float]], shards: int, gpus: float = 0.0) -> float:
    """The share of a core that each shard takes: a whole core, or the largest share with which all shards fit.

    Shards may share a core, because they wait for each other in turn. But all of a shard's share must be on one
    machine.

    >>> core_share([{"CPU": 4.0}, {"CPU": 2.0}], shards=6), core_share([{"CPU": 1.0}, {"CPU": 1.0}], shards=3)
    (1.0, 0.5)
    >>> core_share([{"CPU": 64.0}, {"CPU": 2.0, "GPU": 4.0}], shards=4, gpus=1)
    0.5
    """

    def held(share: float) -> int:
        """How many shards the machines can hold. Shares are rounded down, so their sum never exceeds one core."""
        by_gpus = [int(machine.get("GPU", 0.0) / gpus + 1e-9) if gpus else shards for machine in machines]
        by_cores = [int(machine.get("CPU", 0.0) / share + 1e-9) for machine in machines]
        return sum(map(min, by_cores, by_gpus))

    of_machines = {machine.get("CPU", 0.0) / number for machine in machines for number in range(1, shards + 1)}
    shares = sorted({1.0, *(int(1000 * share) / 1000 for share in of_machines if 0.001 <= share < 1)}, reverse=True)
    return next((share for share in shares if held(share) >= shards), shares[-1])


def _wait_for_room(reserved: Any, need: Mapping[str, float], shards: int) -> None:
    """Wait until the cluster has reserved the cores and GPUs of all shards. No process starts earlier."""
    import ray as library

    cores, began = _total("CPU"), time.monotonic()
    while not reserved.wait(LOOK_SECONDS):
        left, late = _total("CPU"), time.monotonic() - began >= ROOM_SECONDS
        if left < cores and (late or left < shards * need["CPU"]):
            raise LostShard("the cluster has become smaller")
        if late:
            free = library.available_resources()
            each = " and ".join(f"{amount:g} {name}s" for name, amount in need.items())
            there = " and ".join(f"{free.get(name, 0.0):g} of its {_total(name):g} {name}s" for name in need)
            raise BadInput(
                f"the cluster has had no room for {shards} shards for {ROOM_SECONDS:.0f} seconds: "
                f"each needs {each}, and {there} are free"
            )


def _wait_for_processes(actors: Sequence[Any]) -> None:
    """Wait until every actor answers. Processes may start slowly on a busy machine."""
    from ray.exceptions import GetTimeoutError

    answers = [actor.ready.remote() for actor in actors]
    cores, began, warned = _total("CPU"), time.monotonic(), False
    while True:
        try:
            _got(answers, timeout=LOOK_SECONDS)
            return
        except GetTimeoutError as error:
            waited = time.monotonic() - began
            if _total("CPU") < cores:
                raise LostShard("the cluster has become smaller") from error
            if waited >= START_SECONDS:
                raise BadInput(
                    f"the cluster has room for {len(actors)} shards, but their processes have not started within "
                    f"{START_SECONDS:.0f} seconds; is a machine overloaded?"
                ) from error
            if waited >= WARN_SECONDS and not warned:
                warned = True
                warnings.warn(
                    f"{len(actors)} shards have their cores, but their processes are slow to start; "
                    f"waiting for up to {START_SECONDS:.0f} seconds",
                    stacklevel=2,
                )


def _total(resource: str) -> float:
    """How much of a resource (`CPU`, `GPU`) all machines of the cluster have together."""
    import ray as library

    return float(library.cluster_resources().get(resource, 0.0))


def _got(refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """The answers of actors. An error in an actor is raised unchanged; the death of an actor raises `LostShard`."""
    import ray as library
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    try:
        return library.get(list(refs), timeout=timeout)
    except GetTimeoutError:
        raise
    except RayTaskError as error:
        if isinstance(error.cause, RayError):  # the sender died before its message arrived
            raise LostShard(str(error.cause)) from error
        raise error.cause from error
    except RayError as error:
        raise LostShard(str(error)) from error
