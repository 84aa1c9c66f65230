"""What an agent serves about itself: for Prometheus, for whoever restarts it, and for people."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from varangian import BadInput
from varangian.agent.metrics import Metrics, read_status
from varangian.agent.status import Status

STATUS = Status(
    agent="a",
    round=7,
    time=1.0,
    seconds=0.25,
    measured={"loss": 0.5, "kept": 1.0},
    evaluated={"accuracy": 0.75},
    evaluated_at=5,
    weights={"a": 0.6, "b": 0.4, "c": 0.0},
    ages={"b": 0.125},
    accepted={"b": 6},
    bytes={"b": 600, "c": 10},
    rejected={"c": {"size": 3, "replayed": 1}, "": {"sender": 2}},
    muted={"c": 9.5},
    refused={"tls": 4},
    unsaved=0,
    memory=1024,
    cpu=2.0,
)


def get(metrics: Metrics, path: str, host: str | None = None) -> tuple[int, str]:
    asked = urllib.request.Request(f"http://{metrics.address}{path}", headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_prometheus_reads_everything_a_status_says() -> None:
    with Metrics("127.0.0.1:0", patience=60.0) as metrics:
        metrics(STATUS)
        status, text = get(metrics, "/metrics")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert status == 200
    assert found["varangian_rounds_total",] == 7
    assert found["varangian_measured", "loss"] == 0.5 and found["varangian_measured", "accuracy"] == 0.75
    assert found["varangian_neighbour_weight", "b"] == 0.4 and ("varangian_neighbour_weight", "a") not in found
    assert [found["varangian_neighbour_kept", name] for name in "bc"] == [1, 0]
    assert found["varangian_neighbour_age_seconds", "b"] == 0.125
    assert found["varangian_neighbour_bytes_total", "c"] == 10
    assert found["varangian_neighbour_rejected_total", "c", "size"] == 3
    assert found["varangian_neighbour_rejected_total", "", "sender"] == 2
    assert found["varangian_refused_total", "tls"] == 4


def test_an_agent_is_healthy_while_it_finishes_rounds() -> None:
    with Metrics("127.0.0.1:0", patience=3600.0) as metrics:
        assert get(metrics, "/healthz") == (503, "not well: no round yet\n")
        assert get(metrics, "/metrics")[0] == 200
        assert read_status(metrics.address) is None
        metrics(STATUS)
        code, text = get(metrics, "/healthz")
        assert code == 200 and text.startswith("ok: round 7, ")
        metrics.at -= 4000
        assert get(metrics, "/healthz")[0] == 503
        assert get(metrics, "/other")[0] == 404


def test_the_status_is_json_also_where_numbers_are_not() -> None:
    with Metrics("127.0.0.1:0", patience=60.0) as metrics:
        metrics(replace(STATUS, measured={"loss": float("nan")}, weights=None))
        found = read_status(metrics.address)
        assert found is not None and found["measured"] == {"loss": None} and found["agent"] == "a"
        assert json.loads(get(metrics, "/status")[1]) == found
        assert get(metrics, "/metrics")[0] == 200
    assert read_status(metrics.address, timeout=1) is None


def test_another_name_for_this_machine_reads_nothing() -> None:
    with Metrics("127.0.0.1:0", patience=60.0) as metrics:
        metrics(STATUS)
        assert get(metrics, "/status", host="evil.example")[0] == 403
        with pytest.raises(BadInput, match=r"metrics cannot be served at .*choose another port"):
            Metrics(metrics.address, patience=60.0)
