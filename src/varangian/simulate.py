"""The round: start reading here.

Every agent adapts its model on its own data (eq. 2), sends it, hears its neighbours' (some of them lies), judges what
it hears on its next sample, and combines what is worth it (eq. 3). Everybody does so at once: models are one matrix.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from varangian.attacks.base import Attack, Hidden, Insight, View
from varangian.attacks.simple import silent
from varangian.core.blocks import FEW, by_blocks, each
from varangian.core.graph import Graph, Neighbourhoods, TimeVarying
from varangian.core.ground_truth import Truth
from varangian.core.inbox import Inbox, Table
from varangian.core.memory import budget, check, of_run
from varangian.core.messages import ToAll, ToEach, Told, Wiring, deliver, finite_rows
from varangian.core.models.base import Models, Sample, own_loss
from varangian.core.task import Task
from varangian.engine import checkpoint as checkpoints
from varangian.engine import results
from varangian.engine.callbacks import Callback
from varangian.engine.cluster import Engine, chosen
from varangian.engine.compute.compile import compiling, fused
from varangian.engine.device import addressed, chosen_device, chosen_dtype, seeds_at_once, threads_for, with_threads
from varangian.engine.kernels.loss_based import loop_for
from varangian.engine.recorder import Recorder, thinned
from varangian.engine.rule_memory import carried
from varangian.engine.state import Heard, Seen, State
from varangian.engine.world import Byzantine, Scene, World, poisoned, prepare
from varangian.errors import BadInput
from varangian.rules.base import Rule
from varangian.rules.paper import loss_based
from varangian.studies.study import Study


def begin(world: World, rule: Rule[Any], attack: Attack[Any], round: int = 0) -> State:
    """The state before the first round; at a later one, a state of the right shape to be filled."""
    wiring = world.wiring(max(0, round - 1))
    return State(
        round=round,
        models=world.start,
        sample=world.sample(0),
        fresh=torch.ones_like(world.step_size, dtype=torch.bool),
        optimiser=world.task.optimiser.init(world.start),
        rule=[rule.init(table.blank(world.start.dtype)) for table in wiring.tables],
        attack=attack.init(world.first_of_byzantine[:, : world.model.shared]),
    )


def play_round(world: World, rule: Rule[Any], attack: Attack[Any], state: State) -> tuple[State, Seen]:
    """One round, in the paper's order."""
    adapted, optimiser = adapt(world, state)
    return listen(world, rule, attack, state, adapted, optimiser, Told.by(world.model, adapted, state.models))


def listen(
    world: World,
    rule: Rule[Any],
    attack: Attack[Any],
    state: State,
    adapted: Models,
    optimiser: tuple[Tensor, ...],
    told: Told,
) -> tuple[State, Seen]:
    """The second half of a round: what agents make of what they and their neighbours have adapted."""
    wiring = world.wiring(state.round)
    memory = carried(rule, state.rule, world.wiring(max(0, state.round - 1)), wiring, world.start.dtype)
    sent, attack_state = lie(world, rule, memory, attack, state, adapted, told, wiring)
    delivered = deliver(told.adapted, sent, world.byzantine)
    sample, fresh = next_sample(world, state)
    models, weights, memory = combine(world, rule, memory, wiring, state, Heard(delivered, adapted, sample))
    after = State(state.round + 1, models, sample, fresh, optimiser, memory, attack_state)
    return after, Seen(state.models, wiring, weights)


def adapt(world: World, state: State, agents: slice = slice(None)) -> tuple[Models, tuple[Tensor, ...]]:
    """θ̂_k = θ_k − μ_k ∇ℓ(θ_k; ξ_k) (eq. 2), or what the optimiser makes of it; for some agents, or for all.

    A step that does not lead to finite numbers is not taken: one overflow must not end an agent.
    """

    def step(
        models: Models, sample: Sample, step_size: Tensor, fresh: Tensor, optimiser: tuple[Tensor, ...]
    ) -> tuple[Models, tuple[Tensor, ...]]:
        gradient = world.model.gradient(models, sample)
        stepped, after = world.task.optimiser.update(models, gradient, step_size, optimiser)
        stepped = world.model.settle(stepped, models, sample)
        take = finite_rows(stepped)
        for part in after:
            take = take & finite_rows(part)
        if world.skip is not None:
            take = take & fresh
        kept = [torch.where(take, new, old) for new, old in zip(after, optimiser, strict=True)]
        return torch.where(take, stepped, models), tuple(kept)

    everyones = (state.models, state.sample, world.step_size_at(state.round), state.fresh, state.optimiser)
    parts = tree_map(lambda part: part[agents], everyones) if agents != slice(None) else everyones
    # Few numbers are compiled as one loop over all agents; many are worked on block by block.
    few = world.start.shape[1] <= FEW
    in_blocks = partial(by_blocks, step if few else fused(step, world), whole=world.model.random)
    stepped = fused(step, world, plain=cast(Any, in_blocks)) if few else in_blocks
    with addressed(world, state.round) if world.model.random else nullcontext():
        adapted: tuple[Models, tuple[Tensor, ...]] = stepped(*parts)
    return adapted


def lie(
    world: World,
    rule: Rule[Any],
    memory: Sequence[Any],
    attack: Attack[Any],
    state: State,
    adapted: Models,
    told: Told,
    wiring: Wiring,
) -> tuple[ToAll | ToEach | None, Any]:
    """What Byzantine agents send in place of their adapted models."""
    if not len(world.byzantine):
        return None, state.attack

    def foresee(sent: ToAll | ToEach, other: Rule[Any] | None = None) -> Models:
        heard = Heard(deliver(told.adapted, sent, world.byzantine), adapted, state.sample)
        if other is None or other == rule:
            return combine(world, rule, memory, wiring, state, heard)[0]
        blank = [other.init(table.blank(adapted.dtype)) for table in wiring.tables]
        return combine(world, other, blank, wiring, state, heard)[0]

    def last_loss(models: Models) -> Float[Tensor, " agent"]:
        return own_loss(world.model, models, state.sample)

    view = View(
        round=state.round,
        adapted=told.adapted,
        previous=told.previous,
        byzantine=world.byzantine,
        draws=world.byzantine_draws,
        wiring=wiring.known or wiring,
        network=world.network,
        insight=Insight(world.model, adapted, state.sample, world.risk or last_loss, foresee)
        if world.whole
        else cast(Insight, Hidden()),
    )
    return attack.send(view, state.attack)


def next_sample(world: World, state: State) -> tuple[Sample, Bool[Tensor, "agent 1"]]:
    """The sample to judge on now and to train on next; who goes without keeps the one it has."""
    sample = world.sample(state.round + 1)
    if world.skip is None:
        return sample, state.fresh
    lot = world.draws.uniform("skip", state.round + 1, 1, world.skip.dtype)
    fresh = lot >= world.skip

    def held(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(fresh.view(-1, *[1] * (new.ndim - 1)), new, old)

    return tuple(held(new, old) for new, old in zip(sample, state.sample, strict=True)), fresh


def combine(
    world: World, rule: Rule[Any], memory: Sequence[Any], wiring: Wiring, state: State, heard: Heard
) -> tuple[Models, Sequence[Table | None], Sequence[Any]]:
    """θ_k = Σ_l a_lk θ̂_l (eq. 3), the weights being the rule's; Byzantine agents keep to themselves."""

    def combined(inbox: Inbox, memory: Any, normal: Tensor) -> tuple[Models, Table | None, Any]:
        models, weights, state = rule.combine(inbox, memory)
        return torch.where(finite_rows(models) & normal, models, inbox.own), weights, state

    def of_table(table: Neighbourhoods, source: Tensor, memory: Any) -> tuple[Models, Table | None, Any]:
        inbox = inbox_of(world, wiring, table, source, state, heard)
        return fast(inbox, memory, table.rows_of(world.is_normal))

    loop = loop_for(world, rule)
    if loop is not None:
        return loop(world, wiring, memory, state, heard)
    fast = fused(combined, world, rule)
    models, weights, states = zip(
        *each(of_table, wiring.tables, wiring.sources(heard.delivered), memory, device=world.start.device), strict=True
    )
    return wiring.everyones(models), weights, states


def inbox_of(
    world: World,
    wiring: Wiring,
    table: Neighbourhoods,
    source: Int[Tensor, "agent slot"],
    state: State,
    heard: Heard,
) -> Inbox:
    """What each agent of a table sees."""
    of, delivered = table.rows_of, heard.delivered
    return Inbox(
        model=world.judging,
        rows=delivered.rows,
        source=source,
        heard=delivered.heard(source, table),
        own=of(heard.adapted),
        previous=of(state.models),
        samples={"next": tuple(map(of, heard.sample)), "same": tuple(map(of, state.sample))},
        judged_on=world.task.judge,
        forgetting=of(world.forgetting),
        step_size=of(world.step_size_at(state.round)),
        truth=Truth(table, heard.adapted, world.group, wiring.normal, world.risk),
        dense=table.dense,
        alike=table.complete and not delivered.two_faced,
        private_rows=len(delivered.rows) - world.agents,
        round=state.round,
    )


def simulate(
    task: Task | Study,
    graph: Graph | TimeVarying | None = None,
    *,
    rule: Rule[Any] | None = None,
    attack: Attack[Any] | None = None,
    byzantine: Byzantine = 0,
    rounds: int | None = None,
    seeds: int | Sequence[int] = 1,
    device: str = "auto",
    dtype: str = "float32",
    judge_dtype: str | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Path | str | None = None,
    resume: bool = False,
    record_every: int | None = None,
    memory: str | int | None = None,
    engine: Engine | str | None = None,
    compile: bool = False,
    threads: int | None = None,
) -> xr.Dataset:
    """Run a network of agents and return what was measured: seed × round × agent.

    `task` is a study, which brings its graph and its number of rounds, or a task of your own with a graph (everyone
    hears everyone unless given). `byzantine` is how many agents are Byzantine (drawn by seed), their share, or which;
    they send what `attack` says, or nothing. `seeds=5` means seeds 0 … 4. Seeds of small problems share one run.
    `judge_dtype="bfloat16"` judges neighbours in coarser numbers than those of `dtype`, which GPUs do faster.
    With `checkpoint`, a folder, an interrupted run leaves what it had, and `resume=True` goes on to the same bits.
    `memory="4GiB"` keeps to so much; what cannot fit into it, or into the machine, is refused before it starts.
    `engine=varangian.engine.cluster.ray(shards=4)` spreads the network over a Ray cluster; what comes out is the same.
    `compile=True` compiles a round's functions for a CPU: after some seconds, rounds are faster and differ by rounding.
    `threads=2` uses so many of its cores, also for what is too small to gain by it on a machine that does other things.

    >>> from varangian import rules, studies
    >>> result = simulate(studies.target_localization(agents=20), rule=rules.loss_based(), rounds=50, byzantine=5)
    >>> result["regret"].dims
    ('seed', 'round', 'agent')
    """
    rule, attack = rule or loss_based(), attack or silent()
    rounds = rounds if rounds is not None else task.rounds if isinstance(task, Study) else 100
    if rounds < 1:
        raise BadInput(f"a run needs at least one round, but rounds is {rounds}")
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    if not len(numbers):
        raise BadInput(f"a run needs at least one seed, but seeds is {seeds}")
    folder = None if checkpoint is None else Path(checkpoint)
    cluster = chosen(engine)
    if cluster is not None and compile:
        raise BadInput("a cluster's rounds are not compiled; leave out compile or engine")
    if cluster is not None and memory is not None:
        raise BadInput("memory bounds this process, and shards are others; leave out memory, or take more shards")
    if cluster is not None and threads is not None:
        raise BadInput("threads are this process's, and shards are others; leave out threads or engine")
    if cluster is not None:
        from varangian.engine.cluster.run import Job, on_cluster

        jobs = (Job(_scene(task, graph, seed), seed, byzantine, rule, attack, rounds) for seed in numbers)
        return on_cluster(cluster, jobs, device, dtype, judge_dtype, callbacks, folder, resume, record_every)
    parts: list[xr.Dataset] = []
    with budget(memory), with_threads(threads):
        opening = _scene(task, graph, numbers[0])
        together = seeds_at_once(opening) if len(numbers) > 1 else 1
        for first in range(0, len(numbers), together):
            some = numbers[first : first + together]
            file = folder and folder / f"seeds-{some[0]}-{some[-1]}.nc"
            scenes = [opening if seed == numbers[0] else _scene(task, graph, seed) for seed in some]
            place, number = chosen_device(device, scenes), chosen_dtype(dtype)
            recorder = Recorder(*thinned(scenes, rounds, record_every))
            check(of_run(scenes, rule, rounds // recorder.every, number, bool(byzantine)), "this run", place)
            world = prepare(scenes, some, byzantine, place, number, judge_dtype)
            if resume and file and file.exists():
                parts.append(results.load(file, checkpoints.fingerprint(world, rule, attack, rounds)))
                continue
            result = run(world, rule, attack, rounds, recorder, callbacks, file, resume, compile)
            if file and together < len(numbers):
                results.save(result, file)
            parts.append(result)
    return parts[0] if len(parts) == 1 else results.joined(parts)


def run(
    world: World,
    rule: Rule[Any],
    attack: Attack[Any],
    rounds: int,
    recorder: Recorder,
    callbacks: Sequence[Callback] = (),
    file: Path | None = None,
    resume: bool = False,
    compile: bool = False,
) -> xr.Dataset:
    """Play all rounds of a world, keeping a checkpoint beside `file` when stopped half-way."""
    world = poisoned(world, attack)
    mark = checkpoints.fingerprint(world, rule, attack, rounds)
    saver = checkpoints.Saver(file and file.with_suffix(".checkpoint"), mark)
    with torch.no_grad(), threads_for(world), compiling(compile, world.start.device):
        state = begin(world, rule, attack)
        if resume and saver.path and saver.path.exists():
            state = checkpoints.load(saver.path, lambda round: begin(world, rule, attack, round), recorder, mark)
        began = time.perf_counter()
        for callback in callbacks:
            callback.start(world, state, rounds)
        try:
            while state.round < rounds:
                after, seen = play_round(world, rule, attack, state)
                recorder.record(world, after, seen, rounds)
                state = after
                for callback in callbacks:
                    callback.round(world, state, recorder)
                saver.offer(state, recorder)
        except KeyboardInterrupt:
            saver.keep(state, recorder)
            raise
        finally:
            for callback in callbacks:
                callback.end(world, state)
        result = results.labelled(world, recorder, time.perf_counter() - began).assign_attrs(fingerprint=mark)
    saver.discard()
    return result


def _scene(task: Task | Study, graph: Graph | TimeVarying | None, seed: int) -> Scene:
    if isinstance(task, Study):
        if graph is not None:
            raise BadInput("a study brings its own graph; leave graph out, or pass a task")
        return task.scene(seed)
    return Scene(task, graph if graph is not None else Graph.complete(task.agents))


class _CallableModule(ModuleType):
    """`varangian.simulate` is this module as soon as anybody imports it; calling it means calling the function."""

    def __call__(self, *args: Any, **settings: Any) -> xr.Dataset:
        return simulate(*args, **settings)


sys.modules[__name__].__class__ = _CallableModule
