"""Runs every rule against every attack, and no cooperation as the reference.

A tournament measures only the end of each run. Cells that are in its log are not run again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from varangian.core.errors import BadInput
from varangian.core.memory import keep_freed
from varangian.engine import results
from varangian.engine.callbacks import Callback
from varangian.engine.cluster import Engine, RayCluster, chosen
from varangian.engine.cluster.progress import Writer, progress_board
from varangian.engine.cluster.task_pool import in_tasks
from varangian.engine.device import chosen_device, seeds_at_once
from varangian.engine.process_pool import Lost, check_jobs, cores, in_processes
from varangian.engine.recorder import Recorder
from varangian.engine.run import simulate
from varangian.engine.side_by_side import Case, simulate_cases
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.experiments.cells import Cell, SeedsProgress
from varangian.experiments.groups import Counted, Group, attack_of, groups_of
from varangian.experiments.summary import headline
from varangian.experiments.tournament.entries import Contest
from varangian.experiments.tournament.log import Key, Ledger, Played
from varangian.experiments.tournament.standings import REFERENCE, Outcome, Standings


@dataclass(frozen=True)
class OnlyTheEnd:
    """Makes a recorder of the last round record everything that `results.final` needs, and no weights."""

    rounds: int
    cases: int = 1
    """How many cells share the run."""

    def start(self, world: World, state: State, rounds: int) -> None: ...

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        recorder.snapshots = 0
        if state.round >= self.rounds - max(1, self.rounds // 5):
            recorder.every = max(1, world.agents // self.cases * self.rounds // 10**7)

    def end(self, world: World, state: State) -> None: ...


def play(contest: Contest, cell: Cell, callbacks: Sequence[Callback] = (), cluster: RayCluster | None = None) -> Played:
    """Run one cell. With a cluster, its network is spread over the shards.

    An error becomes the result of this cell, and does not stop the others.
    """
    plan = contest.plan
    watching, every = [OnlyTheEnd(contest.rounds), *callbacks], contest.rounds
    if cluster is not None:  # callbacks are not called on a cluster, so all rounds are recorded
        watching, every = [*callbacks], max(1, contest.agents * contest.rounds // 10**7)
    try:
        result = simulate(
            plan.study,
            rule=contest.rule(cell.rule),
            attack=contest.attack(cell.attack) if cell.attack else None,
            byzantine=cell.byzantine,
            rounds=contest.rounds,
            seeds=plan.seeds,
            callbacks=watching,
            engine=cluster,
            **{**asdict(plan.options), "record_every": every, "save_models": False},
        )
        return Played(tuple(results.summary(result)))
    except BadInput as error:
        return Played(problem=f"not applicable: {_one_line(error)}")
    except Exception as error:
        where = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Played(problem=f"failed: {type(error).__name__}: {_one_line(error)} ({place})")


def play_group(contest: Contest, group: Group, advance: Callable[[int], object] = lambda rounds: None) -> list[Played]:
    """Run the cells of a group side by side. If they fail together, each runs alone."""

    def alone(cell: Cell) -> Played:
        return play(contest, cell, [SeedsProgress(advance)])

    if len(group.cells) == 1:
        return list(map(alone, group.cells))
    plan, counted = contest.plan, Counted(advance)
    attacks = [attack_of(contest.attack, cell) for cell in group.cells]
    try:
        found = simulate_cases(
            plan.study,
            contest.rule(group.cells[0].rule),
            [Case(a, cell.byzantine) for a, cell in zip(attacks, group.cells, strict=True) if a is not None],
            rounds=contest.rounds,
            seeds=plan.seeds,
            callbacks=[OnlyTheEnd(contest.rounds, len(group.cells)), SeedsProgress(counted)],
            **{**asdict(plan.options), "record_every": contest.rounds, "save_models": False},
        )
        return [Played(tuple(results.summary(result))) for result in found]
    except Exception:
        counted.undo()
        return list(map(alone, group.cells))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def usual_jobs(contest: Contest) -> int:
    """The default number of jobs: one on a GPU, which runs one cell at a time; otherwise one per core."""
    scene = contest.plan.study.scene(0)
    together = min(contest.plan.seeds, seeds_at_once(scene))
    if chosen_device(contest.plan.options.device, [scene] * together).type == "cuda":
        return 1
    return cores()


def compete(
    contest: Contest,
    ledger: Ledger | None = None,
    *,
    jobs: int = 1,
    begin: Callable[[Cell], object] = lambda cell: None,
    advance: Callable[[int], object] = lambda rounds: None,
    engine: Engine | None = None,
) -> Standings:
    """Run all cells that are not in the log.

    Args:
        contest: The rules and attacks.
        ledger: The log, to which each finished cell is added.
        jobs: How many processes run cells at the same time.
        begin: Called with each cell that begins.
        advance: Called with the number of rounds computed since the last call, summed over seeds.
        engine: A Ray cluster to run on, instead of processes on this machine.
    """
    check_jobs(jobs)
    keys = {cell: key_of(contest, cell) for cell in contest.cells}
    done = {cell: ledger.played[key] for cell, key in keys.items() if ledger and key in ledger.played}
    advance(contest.rounds * contest.plan.seeds * len(done))
    known = groups_of(contest.plan, contest.cells, contest.attack)
    left = [Group(tuple(cell for cell in group.cells if cell not in done)) for group in known]
    left = [group for group in left if group.cells]
    cluster = chosen(engine)
    if cluster is not None and cluster.shards == 1:
        cluster.check_device(contest.plan.options.device)
        playing = _played_elsewhere(contest, left, cluster, begin, advance)
    else:
        playing = _played(contest, left, 1 if cluster else min(jobs, len(left)), begin, advance, cluster)
    with closing(playing) as finishing:
        for cell, played in finishing:
            done[cell] = played
            if ledger and not played.failed:
                ledger.add(keys[cell], cell, played)
    return tally(contest, done)


def key_of(contest: Contest, cell: Cell) -> Key:
    """Everything that determines the numbers of a cell, except what is the same for all cells of the folder."""

    def written(name: str, value: Callable[[str], Any]) -> str:
        try:
            made = repr(value(name)) if name else ""
        except BadInput:
            return name
        return f"{made} {contest.plan.sources_of(name)}".rstrip()

    rule, attack = written(cell.rule, contest.rule), written(cell.attack, contest.attack)
    return cell.rule, rule, cell.attack, attack, repr(cell.byzantine)


def _played(
    contest: Contest,
    groups: Sequence[Group],
    jobs: int,
    begin: Callable[[Cell], object],
    advance: Callable[[int], object],
    cluster: RayCluster | None,
) -> Generator[tuple[Cell, Played]]:
    if cluster is not None:
        with cluster.connected():
            for cell in (cell for group in groups for cell in group.cells):
                begin(cell)
                yield cell, play(contest, cell, [SeedsProgress(advance)], cluster)
    elif jobs <= 1:
        for group in groups:
            _begun(begin, group)
            yield from zip(group.cells, play_group(contest, group, advance), strict=True)
    else:
        work = partial(_play_on_one_thread, contest)
        with closing(in_processes(work, groups, jobs, partial(_begun, begin))) as finishing:
            for group, played in finishing:
                advance(contest.rounds * contest.plan.seeds * len(group.cells))
                yield from _each(group, played)


def _begun(begin: Callable[[Cell], object], group: Group) -> None:
    for cell in group.cells:
        begin(cell)


def _each(group: Group, played: list[Played] | Lost) -> list[tuple[Cell, Played]]:
    """The cells of a group with their results."""
    if isinstance(played, Lost):
        return [(cell, Played(problem=f"failed: {played}")) for cell in group.cells]
    return list(zip(group.cells, played, strict=True))


def _played_elsewhere(
    contest: Contest,
    groups: Sequence[Group],
    cluster: RayCluster,
    begin: Callable[[Cell], object],
    advance: Callable[[int], object],
) -> Generator[tuple[Cell, Played]]:
    """Run the cells on a Ray cluster, one task per group."""
    with cluster.connected(), progress_board(contest.rounds * contest.plan.seeds, advance) as reader:
        work = partial(_play_and_tell, contest, reader.board)
        with closing(in_tasks(work, groups, cluster, partial(_begun, begin), reader.look)) as finishing:
            for group, played in finishing:
                reader.finish(group.key, len(group.cells))
                yield from _each(group, played)


def _play_on_one_thread(contest: Contest, group: Group) -> list[Played]:
    """Run a group with one thread, because there is one process per core."""
    torch.set_num_threads(1)
    keep_freed()
    return play_group(contest, group)


def _play_and_tell(contest: Contest, board: Any, group: Group) -> list[Played]:
    torch.set_num_threads(1)
    return play_group(contest, group, Writer(board, group.key))


def tally(contest: Contest, done: Mapping[Cell, Played]) -> Standings:
    """The outcomes of all cells, each compared with no cooperation at the same number of Byzantine agents."""
    plan, counts = contest.plan, contest.counts
    alone = {counts[cell.byzantine]: played.rows for cell, played in done.items() if cell.rule == REFERENCE}
    measured = next((rows for rows in alone.values() if rows), None)
    if measured is None:
        raise BadInput(f"no cooperation gives no result: {next(iter(done.values())).problem}")
    metric = headline(measured, plan.study.metric)
    outcomes: list[Outcome] = []
    for cell in contest.cells:
        played, count = done[cell], counts[cell.byzantine]
        outcomes.append(
            Outcome(
                rule=cell.rule,
                attack=cell.attack,
                byzantine=count,
                values=tuple(float(row[f"{metric}_mean"]) for row in played.rows),
                alone=tuple(float(row[f"{metric}_mean"]) for row in alone[count]),
                worst=_mean([float(row[f"{metric}_worst"]) for row in played.rows]),
                seconds=sum(float(row["seconds"]) for row in played.rows),
                problem=played.problem,
            )
        )
    about = (plan.study.name, metric, contest.agents, contest.rounds, plan.seeds)
    return Standings(*about, tuple(outcomes), contest.knowledge)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
