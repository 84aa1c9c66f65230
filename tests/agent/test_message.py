"""Models on the wire: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_fleets import SCHEMA, message
from torch import nn

from varangian.agent.message import Message, Reason, Rejected, Schema, WireDtype, decode, encode, new_session
from varangian.core.models.base import Formula
from varangian.core.models.stacked import Stacked

CORPUS = Path(__file__).parent / "corpus"
WIRES: list[WireDtype] = ["float32", "bfloat16", "float64"]


def reason_of(body: bytes, schema: Schema = SCHEMA, sender: str = "a") -> Reason | None:
    try:
        decode(body, schema, sender)
    except Rejected as rejected:
        return rejected.reason
    return None


def parts(body: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<Q", body)
    return json.loads(body[8 : 8 + length]), body[8 + length :]


def joined(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
def test_what_goes_in_comes_out(wire: WireDtype, dtype: torch.dtype, data: st.DataObject) -> None:
    schema = replace(SCHEMA, wire=wire, dtype=dtype)
    numbers = st.lists(st.floats(-1e30, 1e30), min_size=8, max_size=8)
    sent = Message(message("a", 3, schema=schema).header, torch.tensor(data.draw(numbers), dtype=dtype))
    found = decode(encode(sent, schema), schema, "a")
    rounded = sent.vector.to(getattr(torch, wire)).to(dtype)
    assert found.header == sent.header
    assert found.vector.dtype == dtype
    torch.testing.assert_close(found.vector, rounded, rtol=0, atol=0)


@pytest.mark.parametrize("wire", WIRES)
def test_a_message_is_a_safetensors_file(wire: WireDtype) -> None:
    schema = replace(SCHEMA, wire=wire)
    sent = Message(message("a", 3, schema=schema).header, torch.arange(8.0))
    body = encode(sent, schema)
    loaded = safetensors.torch.load(body)
    torch.testing.assert_close(loaded["weight"].float(), torch.arange(6.0).view(2, 3))
    torch.testing.assert_close(loaded["bias"].float(), torch.tensor([6.0, 7.0]))
    assert {tensor.dtype for tensor in loaded.values()} == {getattr(torch, wire)}
    assert len(body) <= schema.longest


def test_bfloat16_halves_the_bytes() -> None:
    schemas = [Schema(("w",), ((130_890,),), wire) for wire in WIRES]
    sizes = [len(encode(message("a", 1, schema=schema), schema)) for schema in schemas]
    assert sizes[1] / sizes[0] < 0.501
    assert sizes[0] / sizes[2] < 0.501


def test_the_schema_is_what_a_model_shares() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    whole = Schema.of(Stacked.of(module, nn.functional.mse_loss))
    assert whole.names == ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    trunk = Stacked.of(module, nn.functional.mse_loss, share=["0"])
    assert Schema.of(trunk).names == ("0.weight", "0.bias")
    assert Schema.of(trunk).shapes == ((4, 3), (4,))
    assert Schema.of(trunk).numbers == trunk.shared
    formula = Formula(parameters=5, loss=lambda theta, sample: theta.sum(-1))
    assert Schema.of(formula) == Schema(("parameters",), ((5,),))


def test_every_difference_of_schemas_changes_the_fingerprint() -> None:
    others = [
        replace(SCHEMA, names=("bias", "weight")),
        replace(SCHEMA, names=("weight", "b")),
        replace(SCHEMA, shapes=((3, 2), (2,))),
        replace(SCHEMA, shapes=((6,), (2,))),
        replace(SCHEMA, wire="bfloat16"),
        replace(SCHEMA, wire="float64"),
    ]
    assert len({schema.fingerprint for schema in (SCHEMA, *others)}) == 7
    assert replace(SCHEMA, dtype=torch.float64).fingerprint == SCHEMA.fingerprint
    body = encode(message("a", 1), SCHEMA)
    for other in others:
        assert reason_of(body, other) in (Reason.SCHEMA, Reason.SIZE)


def test_a_vector_of_the_wrong_length_is_not_sent() -> None:
    with pytest.raises(ValueError, match="8 numbers"):
        encode(Message(message("a", 1).header, torch.zeros(7)), SCHEMA)


VALID = encode(message("a", 1), SCHEMA)
HEADER, DATA = parts(VALID)


def changed(path: list[Any], value: object) -> bytes:
    """The valid message with one entry of its header changed; None removes it."""
    header = json.loads(json.dumps(HEADER))
    place = header
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return joined(header, DATA)


META = "__metadata__"
CASES: dict[str, tuple[bytes, Reason]] = {
    "empty": (b"", Reason.SIZE),
    "seven bytes": (VALID[:7], Reason.SIZE),
    "no data": (VALID[: -len(DATA)], Reason.SIZE),
    "one byte missing": (VALID[:-1], Reason.SIZE),
    "one byte more": (VALID + b"\0", Reason.SIZE),
    "oversized": (VALID + bytes(10**6), Reason.SIZE),
    "header longer than the file": (struct.pack("<Q", 1000) + VALID[8:], Reason.SIZE),
    "header of 2^64 - 1 bytes": (struct.pack("<Q", 2**64 - 1) + VALID[8:], Reason.HEADER),
    "empty header": (joined(b"", DATA), Reason.HEADER),
    "no JSON": (joined(b"x" * 20, DATA), Reason.HEADER),
    "not UTF-8": (joined(b'{"\xff": 1}', DATA), Reason.HEADER),
    "a list": (joined([], DATA), Reason.HEADER),
    "a number": (joined(1, DATA), Reason.HEADER),
    "deep lists": (joined(b"[" * 1000, DATA), Reason.HEADER),
    "deep objects": (joined(b'{"a":' * 200, DATA), Reason.HEADER),
    "a huge integer": (joined(b'{"a":' + b"9" * 900 + b"}", DATA), Reason.HEADER),
    "a float": (joined(b'{"a":1e999}', DATA), Reason.HEADER),
    "NaN": (joined(b'{"a":NaN}', DATA), Reason.HEADER),
    "duplicate tensor": (
        joined(json.dumps(HEADER).encode()[:-1] + b',"bias":' + json.dumps(HEADER["bias"]).encode() + b"}", DATA),
        Reason.HEADER,
    ),
    "duplicate metadata": (
        joined(b'{"__metadata__":{},' + json.dumps(HEADER).encode()[1:], DATA),
        Reason.HEADER,
    ),
    "no metadata": (changed([META], None), Reason.HEADER),
    "metadata are a list": (changed([META], []), Reason.HEADER),
    "one field too many": (changed([META, "more"], "x"), Reason.HEADER),
    "one field missing": (changed([META, "round"], None), Reason.HEADER),
    "round is an integer": (changed([META, "round"], 1), Reason.HEADER),
    "round is negative": (changed([META, "round"], "-1"), Reason.HEADER),
    "round is 2^53": (changed([META, "round"], str(2**53)), Reason.HEADER),
    "round has Arabic digits": (changed([META, "round"], "\u0661"), Reason.HEADER),
    "round is empty": (changed([META, "round"], ""), Reason.HEADER),
    "session is 2^63": (changed([META, "session"], str(2**63)), Reason.HEADER),
    "sent at nan": (changed([META, "sent_at"], "nan"), Reason.HEADER),
    "sent at infinity": (changed([META, "sent_at"], "inf"), Reason.HEADER),
    "sent at no number": (changed([META, "sent_at"], "noon"), Reason.HEADER),
    "a long field": (changed([META, "sent_at"], "0" * 500), Reason.HEADER),
    "another format": (changed([META, "format"], "pickle"), Reason.HEADER),
    "another sender": (changed([META, "sender"], "b"), Reason.SENDER),
    "another schema": (changed([META, "schema"], "0" * 64), Reason.SCHEMA),
    "a tensor missing": (changed(["bias"], None), Reason.NAMES),
    "a tensor more": (changed(["more"], HEADER["bias"]), Reason.NAMES),
    "tensors in another order": (joined(dict(reversed(HEADER.items())), DATA), Reason.NAMES),
    "a tensor that is a list": (changed(["bias"], []), Reason.HEADER),
    "a tensor with more entries": (changed(["bias", "more"], 1), Reason.HEADER),
    "another shape": (changed(["weight", "shape"], [3, 2]), Reason.SHAPE),
    "a negative shape": (changed(["weight", "shape"], [-2, -3]), Reason.SHAPE),
    "a huge shape": (changed(["weight", "shape"], [2**40, 2**40]), Reason.SHAPE),
    "another dtype": (changed(["weight", "dtype"], "I32"), Reason.DTYPE),
    "a dtype that is a list": (changed(["weight", "dtype"], ["F32"]), Reason.DTYPE),
    "overlapping tensors": (changed(["bias", "data_offsets"], [16, 24]), Reason.OFFSETS),
    "offsets past the end": (changed(["bias", "data_offsets"], [2**40, 2**41]), Reason.OFFSETS),
    "an offset that is false": (changed(["weight", "data_offsets"], [False, 24]), Reason.HEADER),
}


@pytest.mark.parametrize("case", CASES)
def test_every_fault_has_its_reason(case: str) -> None:
    body, reason = CASES[case]
    assert reason_of(body) == reason


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(8))
def test_no_number_gets_in_that_is_not_finite(wire: WireDtype, bad: float, place: int) -> None:
    schema = replace(SCHEMA, wire=wire)
    sent = message("a", 1, schema=schema)
    sent.vector[place] = bad
    assert reason_of(encode(sent, schema), schema) == Reason.NOT_FINITE


def test_a_number_too_large_for_the_receiver_is_not_finite() -> None:
    wide = replace(SCHEMA, wire="float64", dtype=torch.float64)
    body = encode(message("a", 1, schema=wide, value=1e300), wide)
    assert decode(body, wide, "a").vector[0] == 1e300
    assert reason_of(body, replace(wide, dtype=torch.float32)) == Reason.NOT_FINITE


def test_a_zip_bomb_is_just_wrong_bytes() -> None:
    bomb = zlib.compress(bytes(10**8), 9)
    assert len(bomb) < 10**5
    assert reason_of(bomb) == Reason.SIZE
    assert peak_of(bomb, Schema(("w",), ((25_000,),))) < 10**5


@given(st.binary(max_size=600))
def test_random_bytes_are_rejected(body: bytes) -> None:
    assert reason_of(body) is not None


@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=8),
    st.integers(0, len(VALID)),
    st.integers(0, len(VALID)),
    st.binary(max_size=40),
)
def test_mutations_are_rejected_or_the_same(flips: list[tuple[int, int]], start: int, end: int, insert: bytes) -> None:
    """Flip bytes, cut a piece out, put another in. Whatever is accepted has a correct header and finite numbers."""
    changed = bytearray(VALID)
    for place, value in flips:
        changed[place] = value
    changed[min(start, end) : max(start, end)] = insert
    try:
        found = decode(bytes(changed), SCHEMA, "a")
    except Rejected:
        return
    assert found.header.sender == "a" and found.header.schema == SCHEMA.fingerprint
    assert found.vector.shape == (8,) and found.vector.isfinite().all()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
paths = st.sampled_from(
    [[META], ["weight"], ["bias", "shape"], ["bias", "dtype"], ["weight", "data_offsets"]]
    + [[META, field] for field in HEADER[META]]
    + [["weight", "shape", 0], ["bias", "data_offsets", 1]]
)


@given(paths, json_values)
def test_headers_with_other_values_are_rejected(path: list[Any], value: Any) -> None:
    body = changed(path, value) if value is not None else joined({**HEADER, path[0]: None}, DATA)
    try:
        decode(body, SCHEMA, "a")
    except Rejected:
        return
    expected: Any = HEADER
    for step in path:
        expected = expected[step]
    assert value == expected or path[-1] in ("session", "round", "sent_at")


def peak_of(body: bytes, schema: Schema) -> int:
    """The most memory that checking a message takes, in bytes. torch's tensors of numpy memory are counted too."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        reason_of(body, schema)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_by_the_schema_not_by_the_message() -> None:
    schema = Schema(("w",), ((10_000,),))
    allowed = 2 * schema.longest + 50_000
    valid = encode(message("a", 1, schema=schema), schema)
    bodies = [valid, valid[:-1], bytes(10**7), struct.pack("<Q", 2**40) + bytes(10**6)]
    bodies += [joined(b"[" * schema.longest_header, bytes(schema.data_bytes))]
    bodies += [joined(b'{"a":' + b"9" * (schema.longest_header - 6) + b"}", bytes(schema.data_bytes))]
    many = b"{" + b",".join(b'"%d":[]' % i for i in range(200)) + b"}"
    bodies += [joined(many, bytes(schema.data_bytes))]
    reason_of(valid, schema)
    for body in bodies:
        assert peak_of(body, schema) < allowed
    assert peak_of(valid, schema) > schema.data_bytes, "the measure sees the numbers"


def test_the_corpus_of_the_fuzzer_is_harmless() -> None:
    reasons = {path.name: reason_of(path.read_bytes()) for path in sorted(CORPUS.iterdir())}
    assert len(reasons) > 50
    assert reasons["case-valid"] is None
    assert len(set(reasons.values())) > 8, "it reaches most checks"


def test_a_session_is_larger_than_the_last_one() -> None:
    first = new_session()
    assert new_session(first) > first
    assert new_session(2**62) == 2**62 + 1
