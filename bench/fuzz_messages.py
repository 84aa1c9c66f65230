"""Coverage-guided fuzzing of everything that reads a neighbour's bytes: envelope, header, numbers, mailbox.

    pip install atheris
    python -m bench.fuzz_messages tests/agent/corpus -runs=1000000

Arguments are libFuzzer's; new inputs that reach new code are added to the first folder. Any exception but `Rejected`,
an accepted message that is not what it claims to be, or more memory than the limit ends the run with a report. Memory
is measured for one input in sixteen, because measuring takes longer than checking.
"""

from __future__ import annotations

import logging
import struct
import sys
import tempfile
import tracemalloc
from pathlib import Path
from zlib import crc32

import atheris

with atheris.instrument_imports(include=["varangian.agent"]):
    from varangian.agent import keys
    from varangian.agent.envelope import OVERHEAD, Verifier, seal
    from varangian.agent.identity import Identity
    from varangian.agent.mailbox import Mailbox
    from varangian.agent.message import Header, Message, Rejected, Schema, decode, encode

import torch

SCHEMA = Schema(("weight", "bias"), ((2, 3), (2,)))
LIMIT = 200_000 + 4 * (SCHEMA.longest + OVERHEAD)
"""Bytes that checking one input may take, at most."""


class Target:
    """An agent with one neighbour, and everything that it does with that neighbour's bytes."""

    def __init__(self, folder: Path) -> None:
        keys.create_authority(folder / "keys")
        self.me, self.a = (Identity.load(keys.issue(folder / "keys", name)) for name in ("me", "a"))
        self.verify = Verifier(self.me, "fuzz")
        body = encode(Message(Header("a", 1, 1, 0.0, SCHEMA.fingerprint), torch.ones(SCHEMA.numbers)), SCHEMA)
        self.envelope = seal(body, self.a, "fuzz")[: -len(body)]

    def check(self, data: bytes) -> None:
        """Every way in."""
        self.decode(data)
        self.open(data)
        self.open(self.envelope[:8] + data)
        if len(data) % 16 == 0:  # seldom, because checking a signature takes longer than everything else
            self.open(self.envelope + data)
        # A mailbox whose envelopes are open: the worst that the owner of a key could send.
        box = Mailbox(["a"], SCHEMA, lambda sender, payload: payload)
        box.offer("a", data, 0.0)
        for received in box.collect(0.0).values():
            assert received.message.vector.isfinite().all()

    def open(self, payload: bytes) -> None:
        try:
            self.verify("a", payload)
        except Rejected:
            return
        raise AssertionError("an envelope opened that its owner did not seal")

    def decode(self, body: bytes) -> None:
        try:
            found = decode(body, SCHEMA, "a")
        except Rejected:
            return
        assert found.header.sender == "a" and found.header.schema == SCHEMA.fingerprint
        assert found.vector.shape == (SCHEMA.numbers,) and found.vector.isfinite().all()
        again = decode(encode(found, SCHEMA), SCHEMA, "a")
        assert again.header == found.header and torch.equal(again.vector, found.vector)


def mutated(data: bytes, longest: int, seed: int) -> bytes:
    """Half of the time, change only the header and keep the lengths right: otherwise little gets past them."""
    if seed % 2 and len(data) > 8:
        (length,) = struct.unpack_from("<Q", data)
        if 0 < length <= len(data) - 8:
            header, numbers = data[8 : 8 + length], data[8 + length :]
            changed = atheris.Mutate(header, min(longest, SCHEMA.longest_header))
            return (struct.pack("<Q", len(changed)) + changed + numbers)[:longest]
    return bytes(atheris.Mutate(data, longest))


def main() -> None:
    torch.set_num_threads(1)
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder))

        def one(data: bytes) -> None:
            if crc32(data) % 16:
                target.check(data)
                return
            tracemalloc.start()
            target.check(data)
            taken = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert taken < LIMIT, f"{taken} bytes"

        arguments = [*sys.argv, "-max_len=2048", "-timeout=20", "-rss_limit_mb=1024"]
        atheris.Setup(arguments, one, custom_mutator=mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
