"""Tests run side by side, with one thread each: more threads would only get into each other's way."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# What is imported stays: while tests are collected, nobody looks for garbage among it. And what was compiled is kept,
# also where the environment says otherwise: for the processes that tests start, and for the next run.
gc.disable()
sys.dont_write_bytecode = False

torch.set_num_threads(1)
# Ray gives its workers a low priority. Beside other tests they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")

# How long an example takes says something about the machine, not about the code. The same examples in every run: what
# passes for one change passes for the next. `--hypothesis-profile=search` draws new ones.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("search"), derandomize=True)
settings.load_profile("steady")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs deaf to interrupts, and so would be the programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """One more process than cores: many tests wait for a cluster, a browser or a fleet. Two more take longer."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Whatever a test, or what it tests, sets, the next one begins with one thread."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than everything else and have tests of their own."""
    monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])


def pytest_collection_finish() -> None:
    """From here on garbage is collected, among what tests make. Nothing compiled is kept of files that tests write."""
    sys.dont_write_bytecode = True
    gc.freeze()
    gc.enable()


ON_RAY = "tests/integration/test_ray_"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest modules first, above all those that wait: at the end, short ones keep all cores busy."""
    items.sort(key=lambda item: (not item.nodeid.startswith(ON_RAY), not item.nodeid.startswith("tests/integration/")))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneCluster(config, log)


class OneCluster(LoadScopeScheduling):
    """A module's tests run in one process, and all tests on Ray in the same one: they share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        return ON_RAY if nodeid.startswith(ON_RAY) else super()._split_scope(nodeid)
