"""A stopwatch: inner phases are taken out of outer ones."""

from __future__ import annotations

import pytest

from varangian.core.stopwatch import Stopwatch


def test_an_inner_phase_does_not_count_for_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 4.0, 9.0])  # rounds begin, compile begins, compile ends, rounds end
    monkeypatch.setattr(Stopwatch, "clock", staticmethod(lambda: next(now)))
    watch = Stopwatch()
    with watch.phase("rounds"), watch.phase("compile"):
        pass
    assert watch.seconds == {"compile": 3.0, "rounds": 6.0}
    assert watch.total == 9.0


def test_phases_add_up_also_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 2.0, 10.0, 11.0])
    monkeypatch.setattr(Stopwatch, "clock", staticmethod(lambda: next(now)))
    watch = Stopwatch()
    with pytest.raises(ValueError, match="broken"), watch.phase("rounds"):
        raise ValueError("broken")
    with watch.phase("rounds"):
        pass
    assert watch.seconds == {"rounds": 3.0}


def test_work_side_by_side_elsewhere_never_makes_a_phase_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0])
    monkeypatch.setattr(Stopwatch, "clock", staticmethod(lambda: next(now)))
    watch = Stopwatch()
    with watch.phase("writing"):
        watch.add({"rounds": 20.0})
    assert watch.seconds == {"rounds": 20.0, "writing": 0.0}
