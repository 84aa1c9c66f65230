"""The mailbox: bounded, fair to slow neighbours, and deaf for a while to those that send nonsense."""

from __future__ import annotations

import logging
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_fleets import SCHEMA, message

from varangian.agent.mailbox import Limits, Mailbox
from varangian.agent.message import Reason, Schema, encode

LIMITS = Limits()


def body(sender: str, round: int, session: int = 1, **changes: Any) -> bytes:
    return encode(message(sender, round, session, **changes), changes.get("schema", SCHEMA))


def mailbox(limits: Limits = LIMITS, schema: Schema = SCHEMA) -> Mailbox:
    """A mailbox for plain bodies. Envelopes have tests of their own."""
    return Mailbox(["a", "b"], schema, lambda sender, payload: payload, limits)


def rounds(box: Mailbox, now: float, round: int | None = None) -> dict[str, int]:
    return {sender: found.message.header.round for sender, found in box.collect(now, round).items()}


def test_the_newest_message_of_each_neighbour() -> None:
    box = mailbox()
    for round in range(5):
        box.offer("a", body("a", round), now=round)
    box.offer("b", body("b", 100), now=4.5)
    found = box.collect(now=6.0)
    assert {sender: (x.message.header.round, x.age, x.new) for sender, x in found.items()} == {
        "a": (4, 2.0, True),
        "b": (100, 1.5, True),
    }
    again = box.collect(now=7.0)
    assert {sender: (x.age, x.new) for sender, x in again.items()} == {"a": (3.0, False), "b": (2.5, False)}
    assert box.accepted == {"a": 1, "b": 1}, "only what counts is checked"
    assert not box.rejected


def test_the_message_before_counts_if_the_newest_is_malformed() -> None:
    box = mailbox()
    box.offer("a", body("a", 1), 0.0)
    box.offer("a", b"nonsense", 0.1)
    assert rounds(box, 1.0) == {"a": 1}
    assert box.rejected == {("a", Reason.HEADER): 1}


def test_a_silent_neighbour_is_absent_until_it_speaks_again() -> None:
    box = mailbox(Limits(silence=10))
    box.offer("a", body("a", 1), 0.0)
    assert rounds(box, 10.0) == {"a": 1}
    assert rounds(box, 10.1) == {}
    box.offer("a", body("a", 2), 20.0)
    assert rounds(box, 20.0) == {"a": 2}


def test_a_repeat_shows_life_but_is_not_newer() -> None:
    box = mailbox(Limits(silence=10))
    sent = body("a", 1)
    for now in range(0, 100, 8):
        box.offer("a", sent, now)
        found = box.collect(now)["a"]
        assert (found.age, found.new) == (now, now == 0)
    assert not box.rejected
    assert box.muted_until("a") == 0


def test_sessions_and_rounds_only_grow() -> None:
    box = mailbox()
    for session, round, expected in (
        (5, 10, 10),
        (5, 9, 10),  # an old round of this session: a replay
        (5, 11, 11),
        (4, 99, 11),  # a message of an earlier session: a replay
        (6, 3, 3),  # the sender has started again, from the round that it saved
        (5, 12, 3),
        (6, 4, 4),
    ):
        box.offer("a", body("a", round, session), 0.0)
        assert rounds(box, 0.0) == {"a": expected}
    assert box.rejected == {("a", Reason.REPLAYED): 3}
    assert box.muted_until("a") == 0, "a replay mutes nobody: an honest message may come twice"


def test_a_round_that_cannot_be_reached_is_from_the_future() -> None:
    box = mailbox(Limits(pace=10, ahead=100))
    box.offer("a", body("a", 10**9), 0.0)
    assert rounds(box, 0.0) == {"a": 10**9}, "at first contact any round is possible"
    box.offer("a", body("a", 10**9 + 111), 1.0)
    assert rounds(box, 1.0) == {"a": 10**9}
    assert box.rejected == {("a", Reason.FUTURE): 1}
    box.offer("a", body("a", 10**9 + 110), 1.0)
    assert rounds(box, 1.0) == {"a": 10**9 + 110}
    box.offer("a", body("a", 10**9 + 10**6, session=2), 2.0)
    assert rounds(box, 2.0) == {"a": 10**9 + 110}, "a new session does not help"


def test_neighbours_at_very_different_paces_are_all_heard() -> None:
    box = mailbox()
    for now in range(1000):
        box.offer("a", body("a", now * 1000), now)  # a thousand rounds a second
        if now % 50 == 0:
            box.offer("b", body("b", now // 50), now)  # one round in fifty seconds
        assert rounds(box, now) == {"a": now * 1000, "b": now // 50}
    assert not box.rejected


def test_no_clock_but_the_receivers_counts() -> None:
    box = mailbox()
    for round, sent_at in enumerate((0.0, 1e12, -3600.0, 3600.0)):
        sent = message("a", round)
        box.offer("a", encode(replace(sent, header=replace(sent.header, sent_at=sent_at)), SCHEMA), float(round))
        found = box.collect(round + 0.5)["a"]
        assert (found.message.header.round, found.age) == (round, 0.5)


def test_lockstep_waits_for_the_round_and_keeps_the_next() -> None:
    box = mailbox()
    box.offer("a", body("a", 7), 0.0)
    box.offer("a", body("a", 8), 0.1)  # one round ahead, because it has heard everyone
    assert rounds(box, 0.2, round=7) == {"a": 7}
    assert rounds(box, 0.2, round=7) == {"a": 7}, "asking again changes nothing"
    box.offer("b", body("b", 7), 0.3)
    assert rounds(box, 0.4, round=7) == {"a": 7, "b": 7}
    assert rounds(box, 0.4, round=8) == {"a": 8}
    box.offer("b", body("b", 7), 0.5)
    box.offer("b", body("b", 8), 0.6)
    assert rounds(box, 0.7, round=8) == {"a": 8, "b": 8}
    assert not box.rejected


def test_in_lockstep_a_message_that_was_lost_is_accepted_when_it_comes_again() -> None:
    box = mailbox()
    box.offer("a", body("a", 6), 0.0)
    assert rounds(box, 0.0, round=6) == {"a": 6}
    box.offer("a", body("a", 8), 0.1)  # round 7 got lost
    assert rounds(box, 0.1, round=7) == {}
    box.offer("a", body("a", 6), 0.2)
    assert rounds(box, 0.2, round=7) == {}
    box.offer("a", body("a", 7, value=1.0), 0.3)
    assert rounds(box, 0.3, round=7) == {"a": 7}
    box.offer("a", body("a", 7, value=2.0), 0.4)
    assert box.collect(0.4, round=7)["a"].message.vector[0] == 1.0, "the first counts"
    assert rounds(box, 100.0, round=7) == {"a": 7}, "in lockstep no message of the round is too old"
    assert rounds(box, 100.0, round=8) == {"a": 8}
    assert box.newest() == {"a": 8}
    assert rounds(box, 100.0, round=9) == {}
    assert box.rejected == {("a", Reason.REPLAYED): 1}, "of two messages of a round, one is accepted"


def test_in_lockstep_a_flood_of_later_rounds_does_not_push_out_the_message_of_this_round() -> None:
    box = mailbox()
    for round in range(7, 30):
        box.offer("a", body("a", round), round / 10)
        assert rounds(box, round / 10, round=7) == {"a": 7}
    assert box.accepted == {"a": 1}, "one message a round is read"
    box.offer("a", body("a", 8), 3.0)
    assert rounds(box, 3.0, round=8) == {"a": 8}


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=30), st.integers(0, 3))
def test_in_lockstep_whatever_is_lost_comes_again(lost: list[tuple[bool, bool, bool]], pauses: int) -> None:
    """A sender in round t or t + 1 sends its last two messages; some get lost. What arrives is enough, and in order."""
    box, round = mailbox(), 0
    for first, second, ahead in [*lost, (False, False, False), (False, False, True)]:
        sent = round + ahead
        if not first and sent:
            box.offer("a", body("a", sent - 1), 0.0)
        if not second:
            box.offer("a", body("a", sent), 0.0)
        for _ in range(pauses):
            box.collect(0.0, round)
        arrived = not second if not ahead else not first
        found = rounds(box, 0.0, round)
        assert not arrived or found == {"a": round}
        round += bool(found)
    assert not box.rejected


def test_an_agent_that_falls_behind_in_lockstep_mutes_nobody() -> None:
    box = mailbox()
    for round in range(50, 70):
        box.offer("a", body("a", round), float(round))
        assert rounds(box, float(round), round=3) == {}
    assert not box.rejected
    assert rounds(box, 70.0, round=69) == {"a": 69}


def test_strangers_are_counted_under_no_name() -> None:
    box = mailbox()
    for number in range(1000):
        box.offer(f"stranger-{number}", body("a", 1), 0.0)
    assert box.rejected == {("", Reason.SENDER): 1000}
    assert box.collect(0.0) == {}


FAULTS = [b"", b"nonsense", bytes(10**6), body("a", 1)[:-1], body("b", 1)]
FAULTS += [body("a", 1, value=float("nan")), body("a", 1, schema=Schema(("w",), ((8,),)))]


@pytest.mark.parametrize("fault", FAULTS, ids=range(len(FAULTS)))
def test_a_neighbour_that_keeps_sending_faults_is_muted_for_longer_and_longer_but_never_for_ever(fault: bytes) -> None:
    box = mailbox(Limits(patience=3, mute=1.0, longest_mute=8.0, rate=1e9, burst=1e9))
    now, pauses = 0.0, []
    while len(pauses) < 6:
        box.offer("a", fault + bytes([len(pauses)]) * (len(fault) > 10**5), now)
        assert box.collect(now) == {}
        if box.muted_until("a") > now:
            pauses.append(box.muted_until("a") - now)
            box.offer("a", body("a", 1), now + 0.5 * pauses[-1])
            assert box.collect(now + 0.5 * pauses[-1]) == {}, "nothing is heard during a pause"
            now += pauses[-1]
        now += 0.01
    assert pauses == pytest.approx([1, 2, 4, 8, 8, 8])
    assert box.rejected["a", Reason.MUTED] == 6
    box.offer("a", body("a", 2), now)
    assert rounds(box, now) == {"a": 2}, "after the pause it is heard again"


def test_others_are_heard_while_one_is_muted() -> None:
    box = mailbox(Limits(patience=1))
    box.offer("a", b"nonsense", 0.0)
    box.offer("b", body("b", 1), 0.0)
    assert rounds(box, 0.0) == {"b": 1}
    assert box.muted_until("a") == 1.0
    assert box.muted_until("b") == 0.0


def test_good_messages_make_up_for_faults() -> None:
    box = mailbox(Limits(patience=3))
    for round in range(50):
        box.offer("a", body("a", round) if round % 2 else b"nonsense", float(round))
        box.collect(float(round))
    assert box.muted_until("a") == 0


def test_a_flood_is_limited_to_its_rate() -> None:
    box = mailbox(Limits(rate=100, burst=50))
    for k in range(10_000):
        box.offer("a", body("a", k), k / 10_000)
    assert box.rejected["a", Reason.RATE] == 10_000 - 50 - 99
    assert box.muted_until("a") == 0
    assert box.received_bytes["a"] == sum(len(body("a", k)) for k in range(10_000))
    assert len(box.collect(1.0)) == 1


def test_memory_is_bounded_by_two_payloads_and_two_models() -> None:
    schema = Schema(("w",), ((20_000,),))
    payloads = [body("a", k, schema=schema) for k in range(200)]
    box = mailbox(schema=schema)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for k, payload in enumerate(payloads):
            box.offer("a", bytearray(payload), float(k))  # a new copy, as a transport makes
            if k % 3 == 0:
                box.collect(float(k))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held - before < 4.2 * schema.longest
    assert peak - before < 6.5 * schema.longest


def test_rejections_are_logged_rarely(caplog: pytest.LogCaptureFixture) -> None:
    box = mailbox(Limits(patience=10**9))
    with caplog.at_level(logging.WARNING):
        for k in range(500):
            box.offer("a", b"nonsense %d" % k, float(k))
            box.collect(float(k))
    assert len(caplog.records) == 1
    assert "message of a rejected: header" in caplog.text
    assert box.rejected == {("a", Reason.HEADER): 500}


def test_waiting_ends_when_something_arrives() -> None:
    box = mailbox()
    assert not box.wait(0.0)
    later = threading.Timer(0.05, lambda: box.offer("a", body("a", 1), 0.0))
    later.start()
    assert box.wait(60.0)
    assert box.wait(0.0), "until it is collected"
    box.collect(0.0)
    assert not box.wait(0.0)
    later.join()


def test_offers_from_many_threads_lose_no_count() -> None:
    box = mailbox(Limits(rate=1e9, burst=1e9))
    stop = threading.Event()

    def offering(sender: str) -> None:
        for k in range(300):
            box.offer(sender, body(sender, k), 0.0)

    def collecting() -> None:
        while not stop.is_set():
            box.collect(0.0)

    threads = [threading.Thread(target=offering, args=(sender,)) for sender in "ab"]
    reader = threading.Thread(target=collecting)
    for thread in (*threads, reader):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert rounds(box, 0.0) == {"a": 299, "b": 299}
    assert box.received_bytes == {s: sum(len(body(s, k)) for k in range(300)) for s in "ab"}
    assert not box.rejected


steps = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(1, 3),
        st.integers(0, 30),
        st.floats(0, 5),
        st.booleans(),
    ),
    max_size=40,
)


@given(steps)
def test_accepted_messages_are_always_in_order(offers: list[tuple[str, int, int, float, bool]]) -> None:
    box, now = mailbox(), 0.0
    last: dict[str, tuple[int, int]] = {}
    for sender, session, round, passed, looks in offers:
        now += passed
        box.offer(sender, body(sender, round, session), now)
        if looks:
            for who, found in box.collect(now).items():
                at = found.message.header.session, found.message.header.round
                assert at > last.get(who, (0, -1)) if found.new else at == last[who]
                assert found.age >= 0
                last[who] = at
