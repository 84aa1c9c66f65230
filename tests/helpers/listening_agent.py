"""A process with a real transport and a mailbox, which says what it has heard whenever it is asked.

    python listening_agent.py FOLDER PORT '{"neighbour": "host:port"}'

For every line of its input it writes one line of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from small_fleets import FLEET, SCHEMA, sealed

from varangian.agent import zenoh_log
from varangian.agent.envelope import OVERHEAD, Verifier
from varangian.agent.identity import Identity
from varangian.agent.mailbox import Mailbox
from varangian.agent.transport import Addresses, ZenohTransport


def main() -> None:
    folder, port, neighbours = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    refused = zenoh_log.watch()
    identity = Identity.load(folder)
    mailbox = Mailbox(neighbours, SCHEMA, Verifier(identity, FLEET))
    transport = ZenohTransport(
        identity,
        FLEET,
        Addresses(f"127.0.0.1:{port}", neighbours),
        lambda sender, payload: mailbox.offer(sender, payload, time.monotonic()),
        SCHEMA.longest + OVERHEAD,
    )
    for round, _ in enumerate(sys.stdin):
        transport.publish(sealed(identity, identity.name, round))
        found = mailbox.collect(time.monotonic())
        told = {
            "heard": {sender: received.message.header.round for sender, received in found.items()},
            "accepted": mailbox.accepted,
            "rejected": {f"{sender} {reason.value}": count for (sender, reason), count in mailbox.rejected.items()},
            "refused": {**refused.counts, **transport.refused.counts},
            "connected": sorted(transport.connected()),
        }
        print(json.dumps(told), flush=True)
    transport.close()


if __name__ == "__main__":
    main()
