"""One Ray cluster for all tests of a process: to start one takes longer than most of what is tested on it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from ray_clusters import add_machine


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two machines of one core each and no GPU. This process is connected to them."""
    ray = pytest.importorskip("ray", reason="needs Ray")
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    two = Cluster()
    for _ in range(2):
        add_machine(two)
    ray.init(two.address, namespace="varangian", log_to_driver=False, logging_level=logging.ERROR)
    yield two
    ray.shutdown()
    two.shutdown()
