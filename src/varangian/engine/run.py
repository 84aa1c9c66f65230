"""Run all rounds of a network, for one or several seeds, and return what was measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from varangian.attacks.base import Attack
from varangian.attacks.simple import silent
from varangian.core.checks import shown
from varangian.core.errors import BadInput
from varangian.core.folds import few_and_repeated
from varangian.core.graph import AnyGraph, Graph, TimeVarying
from varangian.core.memory import give_back
from varangian.core.scene import Byzantine, Scene
from varangian.core.stopwatch import Stopwatch
from varangian.core.task import Task
from varangian.engine import checkpoint as checkpoints
from varangian.engine import results, trained
from varangian.engine.about import about
from varangian.engine.callbacks import Callback
from varangian.engine.check import check_run, check_schedule
from varangian.engine.cluster import Engine, chosen
from varangian.engine.cluster.run import Job, on_cluster
from varangian.engine.compute.agent_order import LARGE
from varangian.engine.compute.choice import with_compiling
from varangian.engine.compute.memory import check_memory
from varangian.engine.device import execution_for, seeds_at_once, torch_dtype
from varangian.engine.failures import explained
from varangian.engine.fingerprint import fingerprint
from varangian.engine.first_round import play_first_round
from varangian.engine.options import RunOptions, RunSettings, option_fields, takes_run_options
from varangian.engine.part_file import ENDING
from varangian.engine.recorder import Recorder, recording_plan
from varangian.engine.round import play_round
from varangian.engine.simulated import Result, finished, joined, save_finished
from varangian.engine.state import State, begin
from varangian.engine.trained import AgentModels, Start
from varangian.engine.world import World, attacked, prepare
from varangian.rules.anchored import anchored
from varangian.rules.base import Adaptable, Rule
from varangian.studies.own_task import SceneOfSeed, scene_of
from varangian.studies.study import Study


@takes_run_options
def simulate(
    task: Task | Study | SceneOfSeed,
    graph: AnyGraph | TimeVarying | None = None,
    *,
    rule: Rule[Any] | None = None,
    attack: Attack[Any] | None = None,
    byzantine: Byzantine = 0,
    rounds: int | None = None,
    seeds: int | Sequence[int] = 1,
    start: Start | None = None,
    scene: Scene | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Path | str | None = None,
    resume: bool = False,
    engine: Engine | str | None = None,
    **options: Unpack[RunSettings],
) -> Result:
    """Run a network of agents and return what was measured: seed × round × agent.

    Several seeds of a small problem share one run.

    Args:
        task: A study, which has its own graph and number of rounds; a task of your own; or a function from the seed to
            a task (or to a `Scene`, with a graph). With such a function every seed has its own data and starting
            model. With one task, seeds change only who is Byzantine, the attack, and the order of data.
        graph: Who hears whom, for a task of your own: a `Graph`, a networkx graph, or a function of the round. By
            default everyone hears everyone.
        rule: How agents combine what they hear. By default `anchored`, which needs no settings.
        attack: What Byzantine agents send. By default nothing.
        byzantine: The number of Byzantine agents (drawn by seed), or their share, or a list of them.
        rounds: How many rounds to run. By default the study's own number, or 100.
        seeds: `seeds=5` means seeds 0 … 4; a sequence names them.
        start: Models to start from: a state dict for all agents, one for each agent, the `models` of another result, or
            a file that `--save-models` wrote. By default the model of the task.
        scene: The network of the first seed, if it is made already. By default the task makes it.
        callbacks: Objects with three hooks (start, round, end) that watch the run.
        checkpoint: A folder. An interrupted run saves its state there.
        resume: Continue from the state in `checkpoint`. The results are the same, bit for bit.
        engine: `varangian.RayCluster(shards=4)` spreads the network over a Ray cluster; the results are the same.
        **options: The fields of `RunOptions`.

    Returns:
        An xarray dataset with dimensions seed, round and agent (and epoch, snapshot and slot), and the final models:
        `result.models[agent]` is a state dict, `result.module(agent)` a module. `result.curves()`, `result.agents()`
        and `result.trust()` are pandas tables. `result.attrs` says what was run, and `result.timings` how many seconds
        each phase took.

    >>> from varangian import rules, studies
    >>> result = simulate(studies.target_localization(agents=20), rule=rules.loss_based(), rounds=50, byzantine=5)
    >>> result["regret"].dims
    ('seed', 'round', 'agent')
    >>> result.attrs["rule"], len(result.models)
    ('loss-based', 20)
    """
    how = RunOptions.of(options)
    rule = anchored() if rule is None else rule
    attack = silent() if attack is None else attack
    checked = check_run(task, graph, rule, attack, byzantine, rounds, seeds, callbacks, checkpoint, resume)
    task, graph, rule, attack, byzantine, rounds, numbers, folder = checked
    said = about(task, rule, attack, byzantine, rounds, how)
    given = None if start is None else trained.read_start(start)
    if not isinstance(scene, Scene | None):
        raise BadInput(f"scene must be a Scene, such as study.scene(0), but is {shown(scene)}")
    cluster = chosen(engine)
    watch = Stopwatch()
    with watch.phase("set-up"):
        first = _scene(task, graph, numbers[0], given, scene)
    rule = suited(rule, first.task, rounds)
    if cluster is not None:
        for name in ("memory", *(one.name for one in option_fields() if one.metadata["local"])):
            if name in how.changed:
                raise BadInput(f"{name} applies only to runs in this process; leave out {name} or engine")
        jobs = (
            Job(first if number == 0 else _scene(task, graph, seed, given), seed, byzantine, rule, attack, rounds)
            for number, seed in enumerate(numbers)
        )
        return on_cluster(cluster, jobs, how, callbacks, folder, resume, watch).timed(watch.seconds).saying(said)
    parts: list[Result] = []
    together = seeds_at_once(first) if len(numbers) > 1 else 1
    for begun in range(0, len(numbers), together):
        some = numbers[begun : begun + together]
        file = folder and folder / f"seeds-{some[0]}-{some[-1]}{ENDING}"
        with watch.phase("set-up"):
            scenes = [first if seed == numbers[0] else _scene(task, graph, seed, given) for seed in some]
            check_schedule(scenes[0].task.schedule, rounds)
            execution, dtype = execution_for(how, scenes), torch_dtype(how.dtype)
            execution = with_compiling(execution, how.compile, scenes[0].task, len(scenes), rule, rounds)
            recorder = Recorder(*recording_plan(scenes, rounds, how.record_every))
            attacking = attack if byzantine else None
            check_memory(scenes, rule, attacking, rounds // recorder.every, dtype, execution)
            world = prepare(scenes, some, byzantine, execution, dtype, how.judge_dtype, how.byzantine_listen, watch)
            with world.execution.applied():
                mark = fingerprint(world, rule, attack, rounds, how)
            if world.agents >= LARGE:
                give_back()
        keep = trained.kept(world.start.numel() * len(numbers), how.save_models)
        if resume and file and (found := finished(file, mark, some if keep else ())) is not None:
            parts.append(found)
            continue
        saver = checkpoints.Saver.beside(file, mark)
        with watch.phase("rounds"):
            state, seconds = play_rounds(world, rule, attack, rounds, recorder, callbacks, saver, watch, resume)
        with watch.phase("recording"):
            large = world.agents >= LARGE
            if large:
                give_back()
            measured = results.labelled(world, recorder, seconds, empty=large)
            models = final_models(world, state) if keep else None
        result = Result.of(measured.assign_attrs(fingerprint=mark), models)
        with watch.phase("writing"):
            saver.discard()
        if file and together < len(numbers):
            with watch.phase("writing"):
                save_finished(result, file)
        parts.append(result)
    return joined(parts).timed(watch.seconds).saying(said)


def play_rounds(
    world: World,
    rule: Rule[Any],
    attack: Attack[Any],
    rounds: int,
    recorder: Recorder,
    callbacks: Sequence[Callback],
    saver: checkpoints.Saver,
    watch: Stopwatch,
    resume: bool,
) -> tuple[State, float]:
    """Play all rounds of a world; returns the last state, and how many seconds it took.

    Args:
        world: The network.
        rule: How agents combine what they hear.
        attack: What Byzantine agents send.
        rounds: How many rounds to run.
        recorder: Keeps what is measured.
        callbacks: Watch the run.
        saver: Writes checkpoints, and one more when the run is interrupted.
        watch: Measures the phases inside the rounds.
        resume: Whether to continue from the checkpoint, if there is one.
    """
    world = attacked(world, attack)
    with torch.no_grad(), world.execution.applied():
        loaded = saver.load(lambda round: begin(world, rule, attack, round), recorder) if resume else None
        state = begin(world, rule, attack) if loaded is None else loaded
        began = time.perf_counter()
        for callback in callbacks:
            callback.start(world, state, rounds)
        try:
            while state.round < rounds:
                after, seen = (play_round if state.round else play_first_round)(world, rule, attack, state)
                with watch.phase("recording"):
                    recorder.record(world, after, seen, rounds)
                state = after
                for callback in callbacks:
                    callback.round(world, state, recorder)
                saver.offer(state, recorder)
        except KeyboardInterrupt:
            saver.keep(state, recorder)
            raise
        except Exception as error:
            kept = saver.rescue(state, recorder)
            failed = explained(error, rule, attack, state.round + 1, kept)
            if failed is None:
                raise
            raise failed from error
        finally:
            for callback in callbacks:
                callback.end(world, state)
        return state, time.perf_counter() - began


def suited(rule: Rule[Any], task: Task, rounds: int) -> Rule[Any]:
    """The rule that this one is for the data of the task: `anchored` is another one for few items."""
    if isinstance(rule, Adaptable) and few_and_repeated(task.stream, rounds, task.skip):
        return rule.on_few_items()
    return rule


def final_models(world: World, state: State) -> dict[int, AgentModels]:
    """The models that agents end with, by seed and in the order of agents' numbers."""
    models = state.used if world.agent_order is None else state.used[world.agent_order.place]
    return trained.of_seeds(models, [scene.task.model for scene in world.scenes], world.seeds)


def _scene(
    task: Task | Study | SceneOfSeed,
    graph: Graph | TimeVarying | None,
    seed: int,
    start: Any = None,
    made: Scene | None = None,
) -> Scene:
    """The network of a seed, if it is not made yet, with the models that it starts from if some were given."""
    scene = scene_of(task, graph, seed) if made is None else made
    if start is None:
        return scene
    return replace(scene, start=trained.rows_to_start(scene.task.model, scene.task.agents, start))
