"""A Ray cluster: where it is, how much of it a run uses, and how to connect to it."""

from __future__ import annotations

import logging
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from varangian.core.errors import BadInput, unknown

NAMESPACE = "varangian"
PATIENCE = 5.0
"""Seconds to wait for an answer from a machine. Ray itself would try for more than a minute and print warnings."""


@dataclass(frozen=True)
class RayCluster:
    """Run on a Ray cluster.

    With one shard, every cell of a sweep is a separate task. With several shards, cells run one after another, and
    the network of each is spread over all shards.

    >>> RayCluster(address="10.0.0.1:6379", shards=4)
    RayCluster(address='10.0.0.1:6379', shards=4, gpus_per_shard=0.0, retries=3, keep_every=None)
    """

    address: str = "local"
    """`local` starts a cluster on this machine, `auto` finds the one started by `ray start`, `HOST:PORT` names one."""
    shards: int = 1
    """The number of processes over which one network is spread."""
    gpus_per_shard: float = 0.0
    """The GPUs of one shard, or of one cell of a sweep; it may be a fraction. By default it has none."""
    retries: int = 3
    """How many times a run continues from its last snapshot after a shard has died."""
    keep_every: int | None = None
    """Rounds between two snapshots; by default there is one about every minute."""

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to the cluster. If the program is connected to one already, that one is used and left connected."""
        self._check()
        try:
            with _quiet():
                import ray as library
        except ImportError as error:
            raise BadInput("the engine ray needs the package ray; install it: pip install varangian[ray]") from error
        if library.is_initialized():
            self._check_room()
            yield
            return
        address = _answering(self.address)
        with _quiet(), _unheard() as said:
            try:
                library.init(
                    address=address,
                    namespace=NAMESPACE,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except (OSError, RuntimeError, ValueError, library.exceptions.RayError) as error:
                raise BadInput(f"Ray cannot be used at address {self.address}: {_reason(error, said())}") from error
        try:
            self._check_room()
            yield
        finally:
            library.shutdown()

    def check_device(self, name: str) -> None:
        """Reject device `cuda` where shards have no GPU."""
        if name.startswith("cuda") and not self.gpus_per_shard:
            raise BadInput(f"device {name} takes GPUs of the cluster; add --gpus-per-shard 1, or a part of one")

    def tasks_at_once(self) -> int:
        """How many cells the cluster can run at once: each takes one core, and its GPUs."""
        import ray as library

        there = library.cluster_resources()
        cores = there.get("CPU", 0.0)
        most = min(cores, there.get("GPU", 0.0) / self.gpus_per_shard) if self.gpus_per_shard else cores
        return max(1, int(most))

    def _check(self) -> None:
        if self.shards < 1:
            raise BadInput(f"a network is spread over at least one shard, but shards is {self.shards}")
        if not 0 <= self.gpus_per_shard < float("inf"):
            raise BadInput(f"gpus_per_shard must be finite and 0 or more, but is {self.gpus_per_shard}")
        if self.gpus_per_shard > 1 and self.gpus_per_shard != int(self.gpus_per_shard):
            raise BadInput(f"above 1, gpus_per_shard must be a whole number, but is {self.gpus_per_shard}")
        if self.retries < 0:
            raise BadInput(f"retries must be 0 or more, but is {self.retries}")
        if self.keep_every is not None and self.keep_every < 1:
            raise BadInput(f"keep_every must be at least one round, but is {self.keep_every}")

    def _check_room(self) -> None:
        import ray as library

        needed, there = self.shards * self.gpus_per_shard, library.cluster_resources().get("GPU", 0.0)
        if needed > there:
            each = f"{self.gpus_per_shard:g} per shard" if self.shards > 1 else f"{self.gpus_per_shard:g} per cell"
            raise BadInput(f"{needed:g} GPUs are needed ({each}), but the cluster at {self.address} has {there:g}")


Engine = Literal["local"] | RayCluster
"""Where a run is computed: in this process (`local`), or on a Ray cluster."""


def chosen(engine: Engine | str | None) -> RayCluster | None:
    """The cluster to run on; None means this process.

    >>> chosen("local"), chosen("ray")
    (None, RayCluster(address='local', shards=1, gpus_per_shard=0.0, retries=3, keep_every=None))
    """
    if isinstance(engine, RayCluster):
        return engine
    if engine not in (None, "local", "ray"):
        raise unknown("engine", str(engine), ("local", "ray"))
    return RayCluster() if engine == "ray" else None


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks and terminal colours."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:300]


def _answering(address: str) -> str:
    """The address in the form that Ray wants. Raises `BadInput` unless the machine there answers."""
    if address == "local":
        return address
    if address == "auto" and not os.environ.get("RAY_ADDRESS"):
        return address
    named = os.environ["RAY_ADDRESS"] if address == "auto" else address
    found = re.fullmatch(r"\[?([^\s/\]]+?)\]?:(\d{1,5})", named)
    if not found:
        raise BadInput(f"a cluster's address is local, auto, or HOST:PORT such as 10.0.0.1:6379; not {named!r}")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        hint = "start one there with: ray start --head"
        raise BadInput(f"no Ray cluster answers at {named} ({one_line(error)}); {hint}") from error
    return named


def _reason(error: BaseException, said: str) -> str:
    if "InvalidAuthToken" in said:
        return "it asks for a token; set RAY_AUTH_MODE=token, and have the same token on both machines"
    return one_line(error)


@contextmanager
def _unheard() -> Iterator[Callable[[], str]]:
    """Hide what Ray's C++ threads write to standard error; yields a function that returns it."""
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def said() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield said
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off Ray's messages about dead processes and its usage reports, unless the environment asks for them."""
    wanted = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}
    added = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
