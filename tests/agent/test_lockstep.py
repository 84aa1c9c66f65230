"""Whom an agent waits for in lockstep, and for how long: on a clock that only waiting moves."""

from __future__ import annotations

import time
from threading import Event

import pytest
from loopback import Hub
from small_fleets import SCHEMA, message

from varangian.agent.lockstep import Lockstep
from varangian.agent.mailbox import Mailbox
from varangian.agent.message import encode

DEADLINE = 10.0


class Post(Mailbox):
    """A mailbox to which messages come at set times."""

    def __init__(self) -> None:
        super().__init__(["a", "b"], SCHEMA, lambda sender, payload: payload)
        self.now = 0.0
        self.coming: list[tuple[float, str, bytes]] = []

    def send(self, at: float, sender: str, round: int, session: int = 1) -> None:
        self.coming.append((at, sender, encode(message(sender, round, session), SCHEMA)))

    def wait(self, timeout: float) -> bool:
        self.now += timeout
        self.deliver()
        return True

    def deliver(self) -> None:
        for one in [one for one in self.coming if one[0] <= self.now]:
            self.coming.remove(one)
            self.offer(one[1], one[2], self.now)


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Post:
    post = Post()
    monkeypatch.setattr(time, "monotonic", lambda: post.now)
    return post


def lockstep(post: Post) -> Lockstep:
    return Lockstep(post, Hub().join("me", lambda *_: None), DEADLINE, DEADLINE)


def waited(step: Lockstep, post: Post, round: int) -> tuple[set[str], float]:
    """Who is heard in a round, and how long that takes."""
    began = post.now
    post.deliver()
    heard = set(step.wait(round, ["a", "b"], Event()))
    return heard, pytest.approx(post.now - began, abs=0.11)


def test_a_neighbour_is_waited_for_until_the_deadline(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    step = lockstep(post)
    post.send(0.0, "a", 0)
    post.send(9.0, "b", 0)
    assert waited(step, post, 0) == ({"a", "b"}, 9.0)
    assert not caplog.records
    post.send(9.0, "a", 1)
    post.send(19.5, "b", 1)
    assert waited(step, post, 1) == ({"a"}, DEADLINE)
    assert "goes on without b in round 1: not heard for 10 s" in caplog.text


def test_a_neighbour_that_has_left_delays_the_others_once_and_is_waited_for_when_it_is_back(post: Post) -> None:
    step = lockstep(post)
    for round, delay in ((0, DEADLINE), (1, 0.0), (2, 0.0)):
        post.send(post.now, "a", round)
        assert waited(step, post, round) == ({"a"}, delay)
    post.send(post.now, "b", 2)  # it is behind, but it has been heard
    post.send(post.now + 3.0, "b", 3)
    post.send(post.now, "a", 3)
    assert waited(step, post, 3) == ({"a", "b"}, 3.0)


def test_old_messages_do_not_make_an_agent_wait_again(post: Post) -> None:
    step = lockstep(post)
    post.send(0.0, "b", 0)
    post.send(0.0, "a", 0)
    assert waited(step, post, 0) == ({"a", "b"}, 0.0)
    for round, delay in ((1, DEADLINE), (2, 0.0), (3, 0.0)):
        post.send(post.now, "a", round)
        for again in range(20):
            post.send(post.now + again, "b", 0)
        assert waited(step, post, round) == ({"a"}, delay)
        post.coming.clear()


def test_a_neighbour_that_is_one_round_ahead_is_waited_for_and_one_that_is_further_ahead_is_not(post: Post) -> None:
    step = lockstep(post)
    for sender in "ab":
        post.send(0.0, sender, 0)
    post.send(0.0, "b", 2)
    assert waited(step, post, 0) == ({"a", "b"}, 0.0)
    post.send(0.0, "a", 1)
    post.send(4.0, "b", 1)  # it was lost, and comes again
    assert waited(step, post, 1) == ({"a", "b"}, 4.0)
    post.send(post.now, "a", 2)
    assert waited(step, post, 2) == ({"a", "b"}, 0.0)
    post.send(post.now, "a", 3)
    post.send(post.now, "b", 5)
    assert waited(step, post, 3) == ({"a"}, 0.0)


def test_the_round_of_most_needs_half_of_all_neighbours(post: Post) -> None:
    step = lockstep(post)
    assert step.round_of_most(["a", "b"]) == -1
    post.send(0.0, "a", 7)
    waited(step, post, 7)
    assert step.round_of_most(["a", "b"]) == 7
    assert step.round_of_most(["a", "b", "c"]) == -1
