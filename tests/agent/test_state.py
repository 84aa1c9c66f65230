"""A state on disk survives what disks and kills do to files, and nothing is lost without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_tasks import softmax

from varangian import BadInput, rules
from varangian.agent.peer_round import Peer, Share
from varangian.agent.state import GENERATIONS, Saver, fingerprint, last_round, load, next_session
from varangian.core.optimisers import adam, sgd
from varangian.engine.state import State


def peer_of(rule: Any = None, number: int = 1, optimiser: Any = None) -> Peer:
    task = softmax(3, optimiser=optimiser or adam()).part(torch.tensor([number]))
    others = tuple(other for other in range(3) if other != number)
    return Peer(Share(task, number, others), rule or rules.anchored())


def states_of(peer: Peer, rounds: int) -> list[State]:
    state, found = peer.first(), []
    for _ in range(rounds):
        adapted, optimiser = peer.adapt(state)
        state = peer.listen(state, adapted, optimiser, {0: peer.message(adapted) + 0.1}).state
        found.append(state)
    return found


@pytest.fixture(scope="module")
def peer() -> Peer:
    return peer_of()


@pytest.fixture(scope="module")
def states(peer: Peer) -> list[State]:
    return states_of(peer, 3)


@pytest.fixture(scope="module")
def small() -> tuple[Peer, list[State]]:
    """An agent with a short file."""
    peer = peer_of(rules.average(), optimiser=sgd())
    return peer, states_of(peer, 3)


def same(one: State, other: State) -> bool:
    leaves = [torch.utils._pytree.tree_flatten(state)[0] for state in (one, other)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*leaves, strict=True))


def test_the_newest_state_is_found_again_and_goes_on_with_the_same_bits(
    peer: Peer, states: list[State], tmp_path: Path
) -> None:
    mark = fingerprint(peer, "a")
    saver = Saver(tmp_path, mark)
    for state in states[:2]:
        saver.save(state)
    again = peer_of()
    found = load(tmp_path, again, fingerprint(again, "a"))
    assert found is not None and not found.damaged
    assert same(found.state, states[1])
    adapted, optimiser = again.adapt(found.state)
    after = again.listen(found.state, adapted, optimiser, {0: again.message(adapted) + 0.1}).state
    assert same(after, states[2])
    assert last_round(tmp_path) == 2


def test_a_file_cut_at_any_byte_costs_only_its_own_round(small: tuple[Peer, list[State]], tmp_path: Path) -> None:
    peer, states = small
    mark = fingerprint(peer, "a")
    saver = Saver(tmp_path, mark)
    for state in states[:2]:
        saver.save(state)
    newest = tmp_path / GENERATIONS[1]
    whole = newest.read_bytes()
    for length in range(len(whole)):
        newest.write_bytes(whole[:length])
        found = load(tmp_path, peer, mark)
        assert found is not None and found.state.round == 1, length
        assert [one.path for one in found.damaged] == [newest]
    assert same(found.state, states[0])
    Saver(tmp_path, mark).save(states[2])  # the damaged file is replaced, not the whole one
    assert {last_round(tmp_path), _round(tmp_path / GENERATIONS[0])} == {3, 1}


def _round(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[64:72], "big")


def test_any_changed_byte_is_noticed(small: tuple[Peer, list[State]], tmp_path: Path) -> None:
    peer, states = small
    mark = fingerprint(peer, "a")
    saver = Saver(tmp_path, mark)
    for state in states[:2]:
        saver.save(state)
    newest = tmp_path / GENERATIONS[1]
    whole = bytearray(newest.read_bytes())
    for place in range(0, len(whole), 7):
        whole[place] ^= 1
        newest.write_bytes(whole)
        whole[place] ^= 1
        found = load(tmp_path, peer, mark)
        assert found is not None and found.state.round == 1 and len(found.damaged) == 1


def test_without_a_whole_state_the_agent_stops_and_does_not_start_from_nothing(
    peer: Peer, states: list[State], tmp_path: Path
) -> None:
    mark = fingerprint(peer, "a")
    assert load(tmp_path, peer, mark) is None
    Saver(tmp_path, mark).save(states[0])
    path = tmp_path / GENERATIONS[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"holds no whole state .*checksum.*restore a copy, or empty the folder"):
        load(tmp_path, peer, mark)


def test_the_state_of_another_agent_is_refused(peer: Peer, states: list[State], tmp_path: Path) -> None:
    Saver(tmp_path, fingerprint(peer, "a")).save(states[0])
    for mark in (fingerprint(peer, "b"), fingerprint(peer_of(rules.loss_based()), "a")):
        with pytest.raises(BadInput, match="state of another agent"):
            load(tmp_path, peer, mark)


def test_with_other_neighbours_or_data_the_model_stays_and_evidence_starts_anew(
    peer: Peer, states: list[State], tmp_path: Path
) -> None:
    Saver(tmp_path, fingerprint(peer, "a")).save(states[2])
    for share in (
        Share(peer.share.task, 1, (0, 2, 5)),  # one more neighbour
        Share(peer.share.task, 0, (1,)),  # one fewer, and so another place among all names
        Share(softmax(4, optimiser=adam()).part(torch.tensor([3])), 1, (0, 2)),  # other data
    ):
        other = Peer(share, rules.anchored())
        found = load(tmp_path, other, fingerprint(other, "a"))
        assert found is not None and found.changed and found.state.round == 3
        assert torch.equal(found.state.models, states[2].models)
        assert found.state.second is not None and states[2].second is not None
        assert torch.equal(found.state.second.models, states[2].second.models)
        assert all(torch.equal(*pair) for pair in zip(found.state.optimiser, states[2].optimiser, strict=True))
        blank = other.first(3)
        assert same(
            found.state._replace(models=blank.models, optimiser=(), second=None),
            blank._replace(optimiser=(), second=None),
        )
        adapted, optimiser = other.adapt(found.state)
        assert other.listen(found.state, adapted, optimiser, {}).state.round == 4
        again = tmp_path / "again"
        again.mkdir(exist_ok=True)
        Saver(again, fingerprint(other, "a")).save(found.state)
        once_more = load(again, other, fingerprint(other, "a"))
        assert once_more is not None and not once_more.changed


def test_sessions_grow_also_when_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([2000, 1000, 3000])
    monkeypatch.setattr("varangian.agent.message.time.time_ns", lambda: next(clock))
    assert [next_session(tmp_path) for _ in range(3)] == [2000, 2001, 3000]
