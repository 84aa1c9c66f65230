"""How the time of a round is divided: `python -m bench.where`. Uses one thread, so that times can be added."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from bench.timing import Row, show
from bench.workloads import Workload, convolutional, localization, softmax
from varangian.core.inbox import Inbox
from varangian.engine import round as page

PARTS = {
    "drawing the next sample": (page, "next_sample"),
    "adapting": (page, "adapt"),
    "lying": (page, "byzantine_messages"),
    "delivering": (page, "deliver"),
    "judging": (Inbox, "loss"),
    "mixing": (Inbox, "mix"),
    "combining": (page, "combine"),
}


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Measures the seconds spent in each part of a round."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **settings)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    patches = [mock.patch.object(home, name, timed(part, getattr(home, name))) for part, (home, name) in PARTS.items()]
    for patch in patches:
        patch.start()
    yield spent
    for patch in patches:
        patch.stop()


def row(load: Workload, rounds: int) -> Row:
    """The share of each part in the time of a round, from the shortest time of each part."""
    best: dict[str, float] = defaultdict(lambda: float("inf"))
    with watched() as spent, load.rounds() as play:
        play()
        for _ in range(rounds):
            spent.clear()
            start = time.perf_counter()
            play()
            for part, seconds in {**spent, "all": time.perf_counter() - start}.items():
                best[part] = min(best[part], seconds)
    # The rest of combining is smoothing, filtering and weighing.
    best["weighing"] = best["combining"] - best["judging"] - best["mixing"]
    parts = ("drawing the next sample", "adapting", "lying", "delivering", "judging", "weighing", "mixing")
    whole = sum(best[part] for part in parts)
    return {"workload": load.name, "round ms": 1e3 * best["all"], **{part: best[part] / whole for part in parts}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.where", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    loads = ((localization(100), 2000), (localization(100_000), 40), (softmax(30), 300), (softmax(1000, 20), 15))
    rows = [row(load, rounds) for load, rounds in (*loads, (convolutional(10), 4))]
    show(rows, "How the time of a round is divided, one thread", out / "cpu" / "where.csv")


if __name__ == "__main__":
    main()
