"""What a message costs an agent, for the paper's CNN of 130,890 weights: `python -m bench.agent [--out DIR]`.

The first table is the processor time of every stage, on one core. The second is the time from sending to receiving,
with TLS and without, on this machine. Both kinds of links send in turn, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import zenoh
from torch import nn

from bench.timing import Row, show
from varangian.agent import keys
from varangian.agent.envelope import OVERHEAD, Verifier, seal
from varangian.agent.identity import Identity
from varangian.agent.mailbox import Limits, Mailbox
from varangian.agent.message import Header, Message, Schema, WireDtype, decode, encode
from varangian.agent.transport import Addresses, key, zenoh_settings
from varangian.core.models.stacked import Stacked
from varangian.studies.digits import cnn

FLEET = "bench"
BATCH = 64


def processor_time(play: Callable[[], object], seconds: float = 2.0) -> float:
    """The median processor time of a call, in seconds."""
    found: list[float] = []
    play()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found) < 5:
        start = time.process_time()
        play()
        found.append(time.process_time() - start)
    return statistics.median(found)


def stages(me: Identity, a: Identity, wire: WireDtype) -> list[Row]:
    """The processor time of every stage of one message."""
    model = Stacked.of(cnn(), nn.functional.cross_entropy)
    schema = Schema.of(model, wire)
    message = Message(Header("a", 1, 1, 0.0, schema.fingerprint), model.start(1, torch.float32, torch.device("cpu"))[0])
    body = encode(message, schema)
    payload = seal(body, a, FLEET)
    verify = Verifier(me, FLEET)
    box = Mailbox(["a"], schema, verify, Limits(rate=1e9, burst=1e9))
    sample = torch.rand(1, BATCH, 1, 28, 28), torch.randint(10, (1, BATCH))
    heard = decode(body, schema, "a").vector[None, None]
    times = {
        "encode": processor_time(lambda: encode(message, schema)),
        "sign": processor_time(lambda: seal(body, a, FLEET)),
        "receive": processor_time(lambda: box.offer("a", bytearray(payload), 0.0)),
        "check the signature": processor_time(lambda: verify("a", payload)),
        "check header and numbers": processor_time(lambda: decode(body, schema, "a")),
        f"judge on {BATCH} images": processor_time(lambda: model.judge(heard, sample)),
    }
    checking = sum(list(times.values())[2:5])
    both = checking + list(times.values())[5]
    return [
        *({"wire": wire, "stage": stage, "ms": 1e3 * taken} for stage, taken in times.items()),
        {"wire": wire, "stage": "receive and check: messages/s", "ms": 1e3 * checking, "per second": 1 / checking},
        {"wire": wire, "stage": "receive and check: MB/s", "per second": len(payload) / checking / 1e6},
        {"wire": wire, "stage": "receive, check and judge: messages/s", "ms": 1e3 * both, "per second": 1 / both},
        {"wire": wire, "stage": "receive, check and judge: MB/s", "per second": len(payload) / both / 1e6},
    ]


@contextmanager
def link(me: Identity, a: Identity, port: int, tls: bool, longest: int) -> Iterator[Callable[[bytes], float]]:
    """A function that sends a payload from a to me and returns how long it took, in seconds."""
    arrived = threading.Event()

    def opened(identity: Identity, addresses: Addresses) -> zenoh.Session:
        settings = zenoh_settings(identity.now, identity.name, FLEET, addresses, longest)
        if not tls:
            settings["transport"]["link"] |= {"protocols": ["tcp"], "tls": {}}
            settings["access_control"] = {"enabled": False, "default_permission": "allow"}
            for side in ("listen", "connect"):
                settings[side]["endpoints"] = [at.replace("tls/", "tcp/") for at in settings[side]["endpoints"]]
        return zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))

    with ExitStack() as stack:
        mine = stack.enter_context(opened(me, Addresses(f"localhost:{port}", {"a": None})))
        mine.declare_subscriber(key(FLEET, "a", "me"), lambda sample: (sample.payload.to_bytes(), arrived.set()))
        theirs = stack.enter_context(opened(a, Addresses(None, {"me": f"localhost:{port}"})))
        block = zenoh.CongestionControl.BLOCK
        publisher = theirs.declare_publisher(key(FLEET, "a", "me"), congestion_control=block, express=True)

        def send(payload: bytes) -> float:
            arrived.clear()
            start = time.perf_counter()
            publisher.put(payload)
            while not arrived.wait(1.0):  # at first, the other end has not subscribed yet
                start = time.perf_counter()
                publisher.put(payload)
            return time.perf_counter() - start

        yield send


def latencies(me: Identity, a: Identity, ports: tuple[int, int], messages: int) -> list[Row]:
    """The time from sending to receiving, with and without TLS, for a small and a large message."""
    found = []
    for label, size in (("64 bytes", 64), ("a model in bfloat16", 262_500), ("a model in float32", 524_300)):
        payload = bytes(size)
        with (
            link(me, a, ports[0], True, size + OVERHEAD) as secure,
            link(me, a, ports[1], False, size + OVERHEAD) as plain,
        ):
            pairs = [(secure(payload), plain(payload)) for _ in range(messages)][messages // 10 :]
        with_tls, without = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        found.append(
            {
                "message": label,
                "TLS, ms": 1e3 * with_tls,
                "plain TCP, ms": 1e3 * without,
                "added, ms": 1e3 * (with_tls - without),
                "ratio": ratio,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.agent", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where to write the tables")
    parser.add_argument("--ports", type=int, nargs=2, default=(17447, 17448), help="two free ports of this machine")
    parser.add_argument("--messages", type=int, default=300, help="how many to send over each link")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        keys.create_authority(Path(folder) / "keys")
        me, a = (Identity.load(keys.issue(Path(folder) / "keys", name)) for name in ("me", "a"))
        rows = [row for wire in ("float32", "bfloat16") for row in stages(me, a, wire)]
        columns = ("wire", "stage", "ms", "per second")
        shown = [{column: row.get(column) for column in columns} for row in rows]
        show(shown, "A message of 130,890 weights on one core", asked.out / "cpu" / "agent.csv")
        times = latencies(me, a, tuple(asked.ports), asked.messages)
        show(times, "From sending to receiving, median", asked.out / "cpu" / "agent-latency.csv")


if __name__ == "__main__":
    main()
