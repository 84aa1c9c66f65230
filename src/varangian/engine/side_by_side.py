"""Several cases in one run: networks that differ in who is Byzantine and in the attack, side by side.

Rounds of small networks cost mostly calls. Cases with the same rule, data and graph share these calls, and the samples.
Networks know nothing of each other, and draws have addresses. So every number is the one that the case has alone, up to
rounding: torch adds the last rows of a table in another order than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from varangian.attacks.base import Attack, Insight, Poisons, Triggers, View, knowledge_of
from varangian.core.draws import Draws
from varangian.core.graph import Graph
from varangian.core.layout import joined
from varangian.core.messages import ToAll, ToEach
from varangian.core.scene import Byzantine, PerNetwork, Scene
from varangian.core.stopwatch import Stopwatch
from varangian.core.wiring import Wiring
from varangian.engine import checkpoint as checkpoints
from varangian.engine import results, trained
from varangian.engine.about import about
from varangian.engine.callbacks import Callback
from varangian.engine.check import check_run, check_schedule
from varangian.engine.compute.memory import check_memory
from varangian.engine.device import execution_for, seeds_at_once, torch_dtype
from varangian.engine.fingerprint import fingerprint
from varangian.engine.options import RunOptions, RunSettings
from varangian.engine.part_file import ENDING
from varangian.engine.recorder import Recorder, recording_plan
from varangian.engine.run import play_rounds, suited
from varangian.engine.simulated import Result
from varangian.engine.state import State
from varangian.engine.world import World, prepare
from varangian.rules.base import Rule
from varangian.studies.own_task import scene_of
from varangian.studies.study import Study

_NETWORKS = 64
"""The most networks in one run. More would gain nothing, and an interrupt would stop more at a time."""

_ROUNDS = 100
"""The fewest rounds for which cases share a run. In a shorter one there is nothing to gain."""


class Case(NamedTuple):
    """What differs between the networks of one run."""

    attack: Attack[Any]
    byzantine: Byzantine


class OfCase(NamedTuple):
    """A callback that watches one case."""

    case: int
    callback: Callback


def can_share(attack: Attack[Any]) -> bool:
    """Whether an attack may run beside others: it only sends, and knows no more than messages.

    >>> from varangian import attacks
    >>> can_share(attacks.uniform()), can_share(attacks.best_response())
    (True, False)
    """
    return not isinstance(attack, Poisons | Triggers) and {*knowledge_of(attack)} <= {"messages"}


def cases_at_once(study: Study, seeds: int, scene: Scene | None = None) -> int:
    """How many cases of a study to run side by side, each with so many seeds. Large networks and short runs are alone.

    >>> from varangian import studies
    >>> cases_at_once(studies.target_localization(), seeds=5), cases_at_once(studies.target_localization(rounds=9), 5)
    (12, 1)
    """
    if study.rounds < _ROUNDS:
        return 1
    return max(1, min(_NETWORKS, seeds_at_once(study.scene(0) if scene is None else scene)) // seeds)


def simulate_cases(
    study: Study,
    rule: Rule[Any],
    cases: Sequence[Case],
    *,
    rounds: int | None = None,
    seeds: int = 1,
    scenes: Sequence[Scene] = (),
    callbacks: Sequence[Callback] = (),
    of_cases: Sequence[OfCase] = (),
    checkpoint: Path | None = None,
    resume: bool = False,
    **options: Unpack[RunSettings],
) -> list[Result]:
    """As `simulate` for each case, in one run. The results are the same up to rounding; each has its share of the time.

    Args:
        study: What the agents learn.
        rule: How agents combine what they hear.
        cases: Attacks and Byzantine agents; no more than `cases_at_once`, and only attacks that `can_share`.
        rounds: How many rounds to run. By default the study's own number.
        seeds: The seeds 0 … S−1 of every case.
        scenes: The networks of the first seeds, if they are made already.
        callbacks: Objects with three hooks that watch the run of all cases.
        of_cases: Those that watch one case each.
        checkpoint: A folder. An interrupted run saves its state there.
        resume: Continue from the state in `checkpoint`.
        **options: The fields of `RunOptions`.
    """
    how = RunOptions.of(options)
    given = [check_run(study, None, rule, *case, rounds, seeds, callbacks, checkpoint, resume) for case in cases]
    numbers, rounds, folder = given[0].seeds, given[0].rounds, given[0].folder
    watch = Stopwatch()
    with watch.phase("set-up"):
        one_case = [*scenes[:seeds], *(scene_of(study, None, seed) for seed in numbers[len(scenes) :])]
        rule = suited(given[0].rule, one_case[0].task, rounds)
        check_schedule(one_case[0].task.schedule, rounds)
        execution, dtype = execution_for(how, one_case), torch_dtype(how.dtype)
        recorder = Recorder(*recording_plan(one_case, rounds, how.record_every))
        networks, everyone = one_case * len(cases), [*numbers] * len(cases)
        for case in given:
            attacking = case.attack if case.byzantine else None
            check_memory(networks, rule, attacking, rounds // recorder.every, dtype, execution)
        byzantine = PerNetwork(tuple(case.byzantine for case in given for _ in numbers))
        world = prepare(networks, everyone, byzantine, execution, dtype, how.judge_dtype, how.byzantine_listen, watch)
        parts = _parts(world, len(cases))
        attack = OwnAttacks(tuple(case.attack for case in given), tuple(parts))
        with world.execution.applied():
            mark = fingerprint(world, rule, attack, rounds, how)
    saver = checkpoints.Saver.beside(folder and folder / f"cases{ENDING}", mark)
    worlds = [_alone(world, part, numbers) for part in parts]
    watching = [*callbacks, *(CaseCallback(one.callback, worlds[one.case], parts[one.case].agents) for one in of_cases)]
    with watch.phase("rounds"):
        state, seconds = play_rounds(world, rule, attack, rounds, recorder, watching, saver, watch, resume)
    keep = trained.kept(world.start.numel() // len(cases), how.save_models)
    done: list[Result] = []
    with watch.phase("recording"):
        for case, part, record in zip(given, parts, recorder.split(len(cases)), strict=True):
            measured = _labelled(one_case, numbers, part, record, seconds / len(cases)).assign_attrs(fingerprint=mark)
            models = [scene.task.model for scene in one_case]
            own = trained.of_seeds(state.used[part.agents], models, numbers) if keep else {}
            said = about(study, rule, case.attack, case.byzantine, rounds, how)
            done.append(Result.of(measured, own).saying(said))
    with watch.phase("writing"):
        saver.discard()
    share = {phase: spent / len(cases) for phase, spent in watch.seconds.items()}
    return [result.timed(share) for result in done]


@dataclass(frozen=True, eq=False)
class _Part:
    """The networks of one case, as they would be alone."""

    agents: slice
    """Its agents among all agents."""
    rows: slice
    """Its Byzantine agents among all Byzantine agents."""
    byzantine: Int[Tensor, " byzantine"]
    draws: Draws
    wiring: Wiring
    network: Int[Tensor, " agent"]
    edges: Int[Tensor, " edge"]
    """The places of the edges on which its Byzantine agents send, among all such edges."""
    row_of_edge: Int[Tensor, " edge"]
    """For each of these edges, the place of its sender among `byzantine`."""

    def view(self, whole: View) -> View:
        """What its Byzantine agents see."""
        return View(
            round=whole.round,
            adapted=whole.adapted[self.agents],
            previous=whole.previous[self.agents],
            byzantine=self.byzantine,
            draws=self.draws,
            wiring=self.wiring,
            network=self.network,
            insight=Insight.hidden(),
            sizes=whole.sizes,
        )


def _parts(world: World, cases: int) -> list[_Part]:
    size, seeds = world.agents // cases, len(world.seeds) // cases
    wiring, device = world.wiring(0), world.start.device
    code, order = (wiring.receiver * world.agents + wiring.sender).sort()
    graphs = [scene.graph for scene in world.scenes[:seeds] if isinstance(scene.graph, Graph)]
    graph = graphs[0] if seeds == 1 else Graph.disjoint_union(graphs)
    parts, begun = list[_Part](), 0
    for first in range(0, world.agents, size):
        agents = slice(first, first + size)
        own = Wiring.of(graph, world.is_byzantine[agents].cpu(), device)
        byzantine = torch.nonzero(world.is_byzantine[agents])[:, 0]
        rows = slice(begun, begun + len(byzantine))
        edges = order[torch.searchsorted(code, (own.receiver + first) * world.agents + own.sender + first)]
        row_of_edge = torch.searchsorted(byzantine, own.sender)
        draws = world.byzantine_draws.take(rows)
        parts.append(_Part(agents, rows, byzantine, draws, own, world.network[:size], edges, row_of_edge))
        begun = rows.stop
    return parts


@dataclass(frozen=True)
class OwnAttacks:
    """Every case has its own attack, which sees only its own networks."""

    attacks: tuple[Attack[Any], ...]
    parts: tuple[_Part, ...] = field(repr=False)

    def init(self, own: Tensor) -> tuple[Any, ...]:
        return tuple(a.init(own[part.rows]) for a, part in zip(self.attacks, self.parts, strict=True))

    def send(self, view: View, state: tuple[Any, ...]) -> tuple[ToAll | ToEach, tuple[Any, ...]]:
        sent, after = list[ToAll | ToEach](), list(state)
        lying = [case for case, part in enumerate(self.parts) if len(part.byzantine)]
        for case in lying:
            message, after[case] = self.attacks[case].send(self.parts[case].view(view), state[case])
            sent.append(message)
        if any(isinstance(message, ToEach) for message in sent):
            sent = [_to_each(message, self.parts[case]) for message, case in zip(sent, lying, strict=True)]
            rows, silent = torch.cat([message.rows for message in sent])[self._order], _silent(sent)
            return ToEach(rows, None if silent is None else silent[self._order]), tuple(after)
        return ToAll(joined([message.rows for message in sent]), _silent(sent)), tuple(after)

    @cached_property
    def _order(self) -> Int[Tensor, " edge"]:
        """For each edge of the whole, its place among the edges of the cases, case after case."""
        return torch.cat([part.edges for part in self.parts]).argsort()


def _to_each(message: ToAll | ToEach, part: _Part) -> ToEach:
    """The message on every edge. Only what a Byzantine agent hears from itself differs, and it does not listen."""
    if isinstance(message, ToEach):
        return message
    silent = None if message.silent is None else message.silent[part.row_of_edge]
    return ToEach(message.rows[part.row_of_edge], silent)


def _silent(messages: Sequence[ToAll | ToEach]) -> Tensor | None:
    """Who or what is silent, message after message; None if nobody says so."""
    if all(message.silent is None for message in messages):
        return None
    speaking = [message.rows.new_zeros(len(message.rows), dtype=torch.bool) for message in messages]
    return torch.cat([s if m.silent is None else m.silent for m, s in zip(messages, speaking, strict=True)])


def _alone(world: World, part: _Part, seeds: Sequence[int]) -> World:
    """The world of one case, as far as callbacks look at it."""
    return replace(
        world,
        seeds=tuple(seeds),
        scenes=world.scenes[: len(seeds)],
        wiring=lambda round: part.wiring,
        byzantine=part.byzantine,
        is_byzantine=world.is_byzantine[part.agents],
        is_normal=world.is_normal[part.agents],
        start=world.start[part.agents],
        network=part.network,
        group=world.group[part.agents],
    )


@dataclass(frozen=True, eq=False)
class CaseCallback:
    """Shows one case to a callback, as if it ran alone. Of the state, the callback may use the round only."""

    callback: Callback
    world: World
    agents: slice

    def start(self, world: World, state: State, rounds: int) -> None:
        self.callback.start(self.world, state, rounds)

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        self.callback.round(self.world, state, recorder.part(self.agents))

    def end(self, world: World, state: State) -> None:
        self.callback.end(self.world, state)


def _labelled(scenes: Sequence[Scene], seeds: Sequence[int], part: _Part, record: Recorder, seconds: float) -> Any:
    senders = None
    if record.weights:
        senders = part.wiring.join_tables([table.senders for table in part.wiring.tables]).cpu()
    is_byzantine = ~part.wiring.normal.cpu()
    return results.dataset(scenes, seeds, is_byzantine, record, senders, seconds)
