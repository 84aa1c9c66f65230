"""`compare`: several rules, attacks, numbers of Byzantine agents and seeds on a task of one's own, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import xarray as xr

from varangian.core.errors import BadInput
from varangian.core.graph import Graph, TimeVarying
from varangian.core.scene import Byzantine
from varangian.core.task import Task
from varangian.engine import results
from varangian.engine.callbacks import Callback
from varangian.engine.cluster import Engine
from varangian.engine.options import RunOptions, RunSettings, takes_run_options
from varangian.engine.simulated import Result
from varangian.engine.trained import AgentModels, kept
from varangian.experiments.cells import Cell, Watcher, cells, load_models
from varangian.experiments.config import Plan, check, with_rounds
from varangian.experiments.run_folder import opened
from varangian.experiments.summary import PREFERRED
from varangian.experiments.sweep import sweep
from varangian.experiments.tournament.entries import looked_up, names_of
from varangian.report.comparison import Comparison
from varangian.report.folder import finish
from varangian.report.terminal import Terminal
from varangian.studies.own_task import OwnTask, SceneOfSeed
from varangian.studies.study import Study


@takes_run_options
def compare(
    task: Task | Study | SceneOfSeed,
    graph: Graph | TimeVarying | None = None,
    *,
    rules: Sequence[Any],
    attacks: Sequence[Any] = (),
    byzantine: Sequence[Byzantine] | int | float = (),
    rounds: int | None = None,
    seeds: int = 1,
    name: str | None = None,
    metric: str | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    watchers: Sequence[Watcher] = (),
    jobs: int = 1,
    engine: Engine | None = None,
    **options: Unpack[RunSettings],
) -> Comparison:
    """Run every combination of rules, attacks, numbers of Byzantine agents and seeds.

    Args:
        task: A task, a function from the seed to a task (or to a `Scene`), or a study. With one task, seeds change only
            who is Byzantine, the attack and the order of data; the result says so.
        graph: Who hears whom, for a task of your own. By default everyone hears everyone.
        rules: Rules as values or names. With `alone` among them, tables show the gain over no cooperation.
        attacks: Attacks as values or names. By default that of the study, or silence.
        byzantine: How many agents are Byzantine: one or several numbers, shares or lists of agents. By default that of
            the study, or 0.
        rounds: How many rounds to run. By default the study's own number, or 100.
        seeds: `seeds=5` means seeds 0 … 4.
        name: What tables and reports call a task of your own.
        metric: The metric that tables and figures show first. By default regret, or your own first metric.
        folder: A run folder, as with `varangian run --out`. Finished cells and checkpoints are kept there meanwhile.
        resume: Continue the same comparison in the folder.
        overwrite: Replace the contents of the folder, once the new results are complete.
        progress: Whether to show a progress bar. By default on terminals and in notebooks.
        watchers: Objects that follow the comparison, such as `report.tensorboard.TensorBoard`.
        jobs: How many processes run cells at the same time, to the same bits. They start only if the comparison takes
            long. They must be able to import your task: define its functions in a module, and let a script begin with
            `if __name__ == "__main__":`.
        engine: `varangian.RayCluster(...)` runs on a Ray cluster.
        **options: The fields of `RunOptions`. Small models are kept by default, and all with `save_models=True`.

    Returns:
        A comparison: `.summary()`, `.table("latex")`, `.plot()`, `.report("report.html")`, `.save(folder)`,
        `.models(rule)[agent]`, `.curves()`, `.agents()`, `.trust()`; `comparison["loss"]` is a labelled array.

    >>> from varangian import rules, studies
    >>> study = studies.target_localization(agents=10)
    >>> found = compare(study, rules=["alone", rules.loss_based()], byzantine=[0, 3], rounds=50, seeds=2)
    >>> found["regret"].dims
    ('rule', 'attack', 'byzantine', 'seed', 'round', 'agent')
    >>> found.summary()[["rule", "attack", "byzantine"]].values.tolist()
    [['alone', 'none', 0], ['loss-based', 'none', 0], ['alone', 'uniform', 3], ['loss-based', 'uniform', 3]]
    """
    plan = planned(task, graph, rules, attacks, byzantine, rounds, seeds, name, RunOptions.of(options))
    wanted = _wanted_models(plan)
    with ExitStack() as stack:
        place = None
        if folder is not None:
            place = stack.enter_context(opened(Path(folder), plan, resume=resume, overwrite=overwrite))
        elif resume or overwrite:
            raise BadInput("resume and overwrite are about a run folder; add folder")
        if place is not None and place.finished:
            before = {cell.key: load_models(place.folder, cell) for cell in cells(plan)}
            return Comparison(plan, _headed(results.load(place.folder / "metrics.nc"), metric), before)
        models = KeptModels()
        following: list[Watcher] = [models, *watchers]
        display = Terminal(plan)
        if progress or (progress is None and display.is_live):
            following.append(stack.enter_context(display))
        running = replace(plan, options=replace(plan.options, save_models=wanted))
        kept_in, resumed = (None, False) if place is None else (place.cells, place.resumed)
        swept = sweep(running, kept_in, resume=resumed, watchers=following, engine=engine, jobs=jobs)
        metrics = _headed(swept, metric)
        if place is not None:
            finish(place, metrics)
        return Comparison(plan, metrics, models.kept)


def planned(
    task: Task | Study | SceneOfSeed,
    graph: Graph | TimeVarying | None,
    rules: Sequence[Any],
    attacks: Sequence[Any],
    byzantine: Sequence[Byzantine] | int | float,
    rounds: int | None,
    seeds: int,
    name: str | None,
    options: RunOptions,
) -> Plan:
    """The plan of a comparison, checked before anything is run.

    Args:
        task: What the agents learn.
        graph: Who hears whom.
        rules: Rules as values or names.
        attacks: Attacks as values or names.
        byzantine: How many agents are Byzantine.
        rounds: The number of rounds.
        seeds: The number of seeds.
        name: What a task is called.
        options: How to compute.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise BadInput(f"seeds is the number of seeds, at least 1, but is {seeds!r}")
    if rounds is not None and (not isinstance(rounds, int) or rounds < 1):
        raise BadInput(f"a run needs a whole number of rounds, at least one, but rounds is {rounds!r}")
    study: Study
    if isinstance(task, Study) and not isinstance(task, type):
        if graph is not None:
            raise BadInput("a study has its own graph; leave out graph, or pass a task")
        study = task if rounds is None else with_rounds(task, rounds)
    else:
        usual = "own-task" if isinstance(task, Task) else str(getattr(task, "__name__", "own-task")).replace("_", "-")
        study = OwnTask.of(task, graph, 100 if rounds is None else rounds, name or usual)
    counts = (byzantine,) if isinstance(byzantine, int | float) else tuple(byzantine)
    plan = Plan(
        study,
        byzantine=tuple(b if isinstance(b, int | float) else tuple(b) for b in counts) or study.byzantine,
        seeds=seeds,
        options=options,
    )
    own: dict[str, Any] = {}
    rule_names = names_of(_listed(rules), "rule", plan.rule, own)
    attack_names = names_of(_listed(attacks) or study.attacks[:1], "attack", plan.attack, own)
    plan = looked_up(plan, rule_names, attack_names, own)
    if attacks and not any(plan.byzantine):
        raise BadInput("there are attacks but no Byzantine agents; add byzantine, such as byzantine=[0, 3]")
    plan = replace(plan, rules=rule_names, attacks=attack_names, own=own)
    check(plan)
    return plan


@dataclass(frozen=True)
class KeptModels:
    """Follows a sweep and keeps the final models of its cells."""

    kept: dict[str, Mapping[int, AgentModels]] = field(default_factory=dict[str, Mapping[int, AgentModels]])

    def begin(self, cell: Cell) -> Sequence[Callback]:
        return []

    def follow(self, running: Mapping[Cell, int]) -> None: ...

    def finish(self, cell: Cell, result: Result) -> None:
        self.kept[cell.key] = result.kept_models


def _listed(given: Any) -> Sequence[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _wanted_models(plan: Plan) -> bool:
    """Whether to keep final models: as asked, or by default if those of all cells and seeds are small."""
    task = plan.study.scene(0).task
    return kept(task.agents * task.model.parameters * plan.seeds * len(cells(plan)), plan.options.save_models)


def _headed(metrics: xr.Dataset, metric: str | None) -> xr.Dataset:
    """The metrics with the name of the one to show first."""
    measured = results.metrics_of(metrics)
    ours = (*PREFERRED, "backdoor_success")
    held_out = [name for name in measured if "epoch" in metrics[name].dims and name not in ours]
    own = [name for name in held_out if not name.startswith(("alone_", "train_"))]
    usual = ["regret", *own, *PREFERRED]
    first = metric or next(name for name in usual if name in measured)
    if first not in measured:
        raise BadInput(f"there is no metric {first!r}; there are {', '.join(measured)}")
    return metrics.assign_attrs(headline=first, metric=first)
