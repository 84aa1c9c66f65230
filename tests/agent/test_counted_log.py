"""Events that strangers can cause: all are counted, few are written."""

from __future__ import annotations

import logging

import pytest

from varangian.agent.counted_log import CountedLog


def test_the_first_of_a_kind_is_written_then_one_line_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = CountedLog(logging.getLogger("test"), every=10.0, clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        log.add("one", "something happened")
        log.add("one", "something happened")
    log.add("two", "something else")
    assert log.counts == {"one": 50, "two": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "something happened",
        "something happened (20 times since the last such line, 21 in all)",
        "something happened (20 times since the last such line, 41 in all)",
        "something else",
    ]
