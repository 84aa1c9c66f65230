"""Snapshots of a network in parts: the last complete one, by as many parts as there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from varangian.core.errors import BadInput
from varangian.engine.cluster.snapshots import Snapshots


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_the_last_one_is_kept(on_disk: bool, tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "parts" if on_disk else None)
    assert snapshots.last(2) is None
    for round in (9, 10):
        snapshots.save(round, [f"{part} after {round}".encode() for part in range(2)])
    assert snapshots.last(2) == (10, [b"0 after 10", b"1 after 10"])
    snapshots.discard()
    assert snapshots.last(2) is None
    assert not list(tmp_path.iterdir())


def test_one_that_was_cut_short_is_not_taken(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.save(5, [b"a", b"b"])
    cut_short = tmp_path / "round-7.incomplete"
    cut_short.mkdir()
    (cut_short / "part-0").write_bytes(b"c")
    assert snapshots.last(2) == (5, [b"a", b"b"])
    snapshots.save(7, [b"c", b"d"])
    assert [path.name for path in tmp_path.iterdir()] == ["round-7"]


@pytest.mark.parametrize("parts", [1, 3])
def test_one_of_another_number_of_shards_is_refused(parts: int, tmp_path: Path) -> None:
    Snapshots(tmp_path).save(5, [b"a", b"b"])
    with pytest.raises(BadInput, match="left by 2 shards; go on with as many"):
        Snapshots(tmp_path).last(parts)


def test_when_one_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [round for round in range(1, 10) if Snapshots(None, every=4).due(round)] == [4, 8]
    now = 100.0
    monkeypatch.setattr("varangian.engine.cluster.snapshots.time.monotonic", lambda: now)
    snapshots = Snapshots(None, _last=now)
    now += 59
    assert not snapshots.due(1)
    now += 1
    assert snapshots.due(1)
    snapshots.save(1, [b"a"])
    assert not snapshots.due(2)
