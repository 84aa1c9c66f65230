"""Runs a tournament and writes its results: `tournament.csv`, `tournament.md`, `tournament.png`."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from varangian.core.files import whole
from varangian.core.scene import Byzantine
from varangian.engine.cluster import Engine
from varangian.engine.options import RunSettings, takes_run_options
from varangian.engine.process_pool import check_jobs
from varangian.experiments.cells import Cell
from varangian.experiments.folder_state import fingerprint
from varangian.experiments.run_folder import RunFolder, opened
from varangian.experiments.tournament.entries import ALL, Contest, enter
from varangian.experiments.tournament.log import FILE, Ledger
from varangian.experiments.tournament.run import compete
from varangian.experiments.tournament.standings import Standings
from varangian.report.folder import earlier_files
from varangian.report.heatmap import draw_heatmap
from varangian.report.standings import csv_rows, markdown
from varangian.studies.study import Study


@takes_run_options
def tournament(
    study: str | Study,
    *,
    rules: Sequence[Any] = (ALL,),
    attacks: Sequence[Any] = (ALL,),
    byzantine: Sequence[Byzantine] = (),
    seeds: int = 5,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
    engine: Engine | None = None,
    **options: Unpack[RunSettings],
) -> Standings:
    """Run every rule against every attack, and compare each with no cooperation.

    Args:
        study: The name of a study, or a study.
        rules: Names or values, also of your own classes. By default all rules.
        attacks: Names or values, also of your own classes. By default all attacks.
        byzantine: How many agents are Byzantine, each as a number, a share or a list of agents.
        seeds: `seeds=5` means seeds 0 … 4.
        rounds: The number of rounds. By default that of the study.
        settings: Settings of a study that is given by its name.
        folder: The folder for finished cells, and for `tournament.csv`, `.md` and `.png`.
        resume: Continue the tournament in the folder, also with more rules and attacks. Finished cells are kept.
        overwrite: Replace the contents of the folder, once the tournament is complete.
        jobs: How many processes run cells. They must be able to import your own classes.
        engine: `varangian.RayCluster(...)` runs cells on a Ray cluster. Its machines must be able to import your own
            classes.
        **options: The fields of `RunOptions`.

    >>> from varangian import rules
    >>> some = {"attacks": ["sign-flip", "silent"], "byzantine": [3], "seeds": 2, "settings": {"agents": 10}}
    >>> standings = tournament("target-localization", rules=["average", rules.loss_based()], rounds=50, **some)
    >>> standings.worst("average", 3).attack
    'sign-flip'
    """
    about: dict[str, Any] = {"seeds": seeds, "rounds": rounds, "settings": settings, **options}
    contest = enter(study, rules=rules, attacks=attacks, byzantine=byzantine, **about)
    where = None if folder is None else Path(folder)
    return compete_into(contest, where, resume=resume, overwrite=overwrite, jobs=jobs, engine=engine)


def compete_into(
    contest: Contest,
    folder: Path | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    jobs: int = 1,
    begin: Callable[[Cell], object] = lambda cell: None,
    advance: Callable[[int], object] = lambda rounds: None,
    engine: Engine | None = None,
) -> Standings:
    """Run a tournament and write it to a folder. Without a folder, nothing is written.

    Args:
        contest: The rules and attacks.
        folder: The folder for finished cells and results.
        resume: Continue the tournament in the folder.
        overwrite: Replace the contents of the folder, once the tournament is complete.
        jobs: How many processes run cells.
        begin: Called with each cell that begins.
        advance: Called with the number of rounds computed since the last call, summed over seeds.
        engine: A Ray cluster to run on.
    """
    check_jobs(jobs)  # check this before anything is written
    how: dict[str, Any] = {"jobs": jobs, "begin": begin, "advance": advance, "engine": engine}
    if folder is None:
        return compete(contest, **how)
    with opened(folder, contest.plan, kind="tournament", resume=resume, overwrite=overwrite) as place:
        earlier = folder / FILE if place.resumed and (folder / FILE).exists() else None
        ledger = Ledger.open(place.result / FILE, earlier)
        standings = compete(contest, ledger, **how)
        if earlier and _is_there(place, ledger):
            place.discard()
        else:
            place.commit([ledger.file, *write_standings(standings, place.result)], earlier_files(folder))
    return standings


def _is_there(place: RunFolder, ledger: Ledger) -> bool:
    """Whether the folder already holds this tournament, so that no cells are missing."""
    folder, names = place.folder, ("tournament.csv", "tournament.md", "tournament.png")
    same = (folder / FILE).read_bytes() == ledger.file.read_bytes() and all((folder / name).exists() for name in names)
    return same and fingerprint((folder / "config.toml").read_text(encoding="utf-8")) == fingerprint(place.text)


def write_standings(standings: Standings, folder: Path) -> list[Path]:
    """Write every outcome as a CSV row, a table in Markdown, and the figure; returns the files written."""
    rows = list(csv_rows(standings))
    with whole(folder / "tournament.csv") as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with whole(folder / "tournament.md") as path:
        path.write_text(markdown(standings), encoding="utf-8")
    picture = io.BytesIO()
    draw_heatmap(standings).savefig(picture, format="png", dpi=150)
    with whole(folder / "tournament.png") as path:
        path.write_bytes(picture.getvalue())
    return [folder / f"tournament.{kind}" for kind in ("csv", "md", "png")]
