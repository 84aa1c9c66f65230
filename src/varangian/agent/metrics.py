"""An agent's metrics for Prometheus, its health, and its status as JSON, over HTTP on this machine.

`/metrics` is for Prometheus, `/healthz` answers 200 while rounds are finished and 503 otherwise, `/status` is the whole
status after the last round.
"""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from varangian.agent.config import host_and_port
from varangian.agent.status import Status
from varangian.core.errors import BadInput
from varangian.report.local_server import NOTHING, Answer, LocalServer

TEXT = "text/plain; version=0.0.4"
UNUSED = "none"


class Metrics(Collector):
    """Serves the last status. It is a watcher: call it with every new one."""

    def __init__(self, address: str, patience: float) -> None:
        """A server at `host:port`; port 0 takes a free one.

        Args:
            address: Where to serve.
            patience: Seconds without a round after which the agent is not healthy.
        """
        self.patience = patience
        self.status: Status | None = None
        self.at = time.monotonic()
        """When the last round was finished, or this object was made."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        host, port = host_and_port(address, "metrics")
        try:
            self.server = LocalServer(self.answer, port, host)
        except OSError as error:
            raise BadInput(f"metrics cannot be served at {address}: {error.strerror}; choose another port") from error

    def __call__(self, status: Status) -> None:
        self.status, self.at = status, time.monotonic()

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.__exit__()

    @property
    def address(self) -> str:
        return f"{self.server.host}:{self.server.port}"

    def answer(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        """The three pages."""
        if path == "/metrics":
            return Answer(200, TEXT, generate_latest(self.registry).decode())
        if path == "/healthz":
            ago = time.monotonic() - self.at
            well = self.status is not None and ago <= self.patience
            said = "no round yet" if self.status is None else f"round {self.status.round}, {ago:.1f} s ago"
            return Answer(200 if well else 503, "text/plain", f"{'ok' if well else 'not well'}: {said}\n")
        if path == "/status":
            known = {} if self.status is None else asdict(self.status)
            return Answer(200, "application/json", json.dumps(finite(known)))
        return NOTHING

    def collect(self) -> Iterator[Metric]:
        """The last status, as Prometheus has it."""
        status = self.status
        if status is None:
            return
        yield _counter("rounds", "Finished rounds.", [((), status.round)])
        yield _gauge("round_seconds", "How long the last round took.", [((), status.seconds)])
        yield _gauge("memory_bytes", "The most memory that the process has used.", [((), status.memory)])
        yield _counter("unsaved", "How many times the state could not be saved.", [((), status.unsaved)])
        measured = {**status.evaluated, **status.measured}
        yield _gauge("measured", "What was measured, such as the loss.", _by(measured), ("metric",))
        weights = {name: of for name, of in (status.weights or {}).items() if name != status.agent}
        yield _gauge("neighbour_weight", "The weight of a neighbour's model.", _by(weights), ("neighbour",))
        kept = {name: float(of > 0) for name, of in weights.items()}
        yield _gauge("neighbour_kept", "Whether a neighbour's model has any weight.", _by(kept), ("neighbour",))
        yield _gauge("neighbour_age_seconds", "The age of its last message.", _by(status.ages), ("neighbour",))
        yield _gauge("neighbour_muted_seconds", "How long it stays muted.", _by(status.muted), ("neighbour",))
        yield _counter("neighbour_accepted", "Accepted messages.", _by(status.accepted), ("neighbour",))
        yield _counter("neighbour_bytes", "Bytes that arrived.", _by(status.bytes), ("neighbour",))
        yield _counter("refused", "Refused connections and messages.", _by(status.refused), ("reason",))
        rejected = [((name, why), n) for name, reasons in status.rejected.items() for why, n in reasons.items()]
        yield _counter("neighbour_rejected", "Rejected messages.", rejected, ("neighbour", "reason"))


def read_status(address: str, timeout: float = 5.0) -> dict[str, Any] | None:
    """The status that an agent serves at `host:port`. None if nobody answers, or there was no round yet."""
    try:
        with urllib.request.urlopen(f"http://{address}/status", timeout=timeout) as answer:
            found = json.loads(answer.read(2**24))
    except (urllib.error.URLError, TimeoutError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "round" in found else None


def finite(value: Any) -> Any:
    """The value for JSON, which knows neither nan nor infinity: they become null.

    >>> finite({"loss": [1.0, math.inf]})
    {'loss': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {name: finite(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [finite(of) for of in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Labelled = Iterable[tuple[tuple[str, ...], float]]


def _by(values: Mapping[str, float]) -> Labelled:
    return [((name,), value) for name, value in values.items()]


def _gauge(name: str, about: str, values: Labelled, labels: tuple[str, ...] = ()) -> Metric:
    family = GaugeMetricFamily(f"varangian_{name}", about, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def _counter(name: str, about: str, values: Labelled, labels: tuple[str, ...] = ()) -> Metric:
    family = CounterMetricFamily(f"varangian_{name}", about, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family
