"""Performance targets of the engine. Most are ratios of two measurements in the same run."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from bench.timing import Row, best, best_each, best_of_many, copying
from bench.workloads import Workload, convolutional, localization, softmax
from varangian.core.models.stacked import Stacked
from varangian.studies.digits import cnn

WAYS = ("", ", compiled")
"""Rounds without and with `compile`."""


def on_cpu(quick: bool) -> Iterator[Row]:
    """The targets for a CPU with two cores."""
    yield from large(10**5 if quick else 10**6, [10**4, 10**5] if quick else [10**4, 10**5, 10**6])
    yield _target("softmax judging, of the rate of matrix products", softmax_judging(), 0.5, at_least=True)
    yield _target("CNN judging, times as fast as model by model, agent by agent", cnn_judging(), 2.0, at_least=True)
    yield from small()
    yield _target("`varangian --help`, seconds", start_up(), 0.5)


def on_gpu(quick: bool) -> Iterator[Row]:
    """The targets for one GPU, in milliseconds per round."""
    for agents, most in ((10, 5.0),) if quick else ((10, 5.0), (100, 100.0)):
        for judge_dtype in (None, "bfloat16"):
            load = convolutional(agents, "cuda", judge_dtype)
            yield _target(f"{load.name}, ms a round", _milliseconds(load), most)
    for agents, compiled_most in ((100, 0.15), (10**5 if quick else 10**6, 1.0)):
        load = localization(agents, "cuda")
        yield _target(f"{load.name}, ms a round", _milliseconds(load), 5.0)
        yield _target(f"{load.name}, compiled, ms a round", _milliseconds(load, compile=True), compiled_most)


def _milliseconds(load: Workload, compile: bool = False) -> float:
    with load.rounds(compile=compile) as play:
        return 1e3 * best_of_many(play, 5, 3.0, "cuda")


def _target(what: str, value: float, aim: float, at_least: bool = False) -> Row:
    reached = value >= aim if at_least else value <= aim
    sign = "≥" if at_least else "≤"
    return {"what": what, "measured": value, "aim": f"{sign} {aim:g}", "reached": "yes" if reached else "no"}


def large(agents: int, sizes: list[int]) -> Iterator[Row]:
    """Large networks, each in a separate process, so that its memory can be measured."""
    found = [json.loads(_alone(f"from bench.targets import alone; alone({size})")) for size in sizes]
    name, span = f"localization, {agents:,} agents", f"{sizes[0]:,} to {sizes[-1]:,}"
    yield _target(f"{name}: GiB of memory in all", found[-1]["gib"], 4.0)
    for way in WAYS:
        per_edge = [one[way]["per_edge"] for one in found]
        yield _target(f"{name}{way}: times its least traffic at copy bandwidth", found[-1][way]["times"], 6.0)
        unevenness = max(per_edge) / min(per_edge)
        yield _target(f"localization, {span} agents{way}: dearest edge over cheapest, one thread", unevenness, 1.15)


def _alone(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def alone(agents: int) -> None:
    """Measure localization with `agents` agents, and print the results as JSON."""
    load = localization(agents)
    copy, moved = copying("cpu")
    threads = torch.get_num_threads()

    def copy_with_all() -> None:
        torch.set_num_threads(threads)
        copy()
        torch.set_num_threads(1)

    # Measure one variant after the other: in turn, each would have to redraw its samples. Compare with the best copy.
    found: dict[str, Any] = {}
    copies = []
    for way in WAYS:
        seconds = {}
        # The cost per edge is measured with one thread: the engine uses no more for small networks.
        for asked in (None, 1):
            with load.rounds(compile=bool(way), threads=asked) as play:
                play()  # the first round compiles
                # Several rounds in a row, as in a real run: the copy in between empties the cache.
                row = max(1, 500_000 // agents)
                taken, copied = best_each([partial(_in_a_row, play, row), copy_with_all], 8.0)
            seconds[asked] = taken / row
            copies.append(copied)
            found.setdefault("gib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        found[way] = {"seconds": seconds[None], "per_edge": seconds[1] / load.edges}
    for way in WAYS:
        found[way]["times"] = found[way]["seconds"] / (load.bytes / (moved / min(copies)))
    print(json.dumps(found))


def _in_a_row(play: Callable[[], object], times: int) -> None:
    for _ in range(times):
        play()


def softmax_judging() -> float:
    """The rate of judging 30 models on 30 batches of 10, relative to that of a large matrix product."""
    world = softmax(30).world
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    with torch.no_grad(), world.execution.applied():
        sample = world.sample(0)
        # Several in a row, as in a real run: a product in between would remove the models from the cache.
        judge = partial(world.judging.judge_all, world.start, sample)
        judging, product = best_each([partial(_in_a_row, judge, 20), lambda: a @ b], 3.0)
    return (20 * 2 * 30 * 30 * 10 * 561 * 6 / judging) / (2 * 1024**3 / product)


def cnn_judging(agents: int = 10, batch: int = 64) -> float:
    """Judging every model on every agent's batch, against a plain network called for each pair."""
    module = cnn().eval()
    stacked = Stacked.of(module, nn.functional.cross_entropy)
    models = stacked.start(agents, torch.float32, torch.device("cpu"))
    x, y = torch.rand(agents, batch, 1, 28, 28), torch.randint(0, 10, (agents, batch))
    named = dict(module.named_parameters())

    def one_by_one() -> None:
        for _ in range(agents):
            for k in range(agents):
                nn.functional.cross_entropy(functional_call(module, named, (x[k],)), y[k])

    with torch.no_grad():
        plain, ours = best_each([one_by_one, lambda: stacked.judge_all(models, (x, y))], 10.0, warm=False)
    return plain / ours


def small() -> Iterator[Row]:
    """The network of the paper: how large is the overhead, and do seeds that run together share it?"""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    one, many = localization(100), localization(100, seeds=32)
    table = one.world.wiring(0).tables[0].blank(torch.float32) + 1

    def sixty() -> None:
        for _ in range(60):
            torch.mul(table, table)

    for way in WAYS:
        with one.rounds(compile=bool(way)) as single, many.rounds(compile=bool(way)) as several:
            single()  # the first round compiles
            several()
            # Several rounds in a row, as in a real run.
            plays = [partial(_in_a_row, play, 20) for play in (sixty, single, several)]
            floor, of_one, of_many = best_each(plays, 4.0)
        yield _target(f"localization, 100 agents{way}: times 60 elementwise operations", of_one / floor, 1.0)
        yield _target(f"localization, 32 seeds at once{way}: times one seed", of_many / of_one, 4.0)
    torch.set_num_threads(before)


def start_up() -> float:
    """The time in which the command line starts, in seconds."""

    def call() -> None:
        subprocess.run([sys.executable, "-m", "varangian", "--help"], capture_output=True, check=True)

    return best(call, 3.0)
