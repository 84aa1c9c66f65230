"""Options that several commands share, and the options of a run: one for each field of `RunOptions`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from varangian import experiments
from varangian.core.errors import BadInput
from varangian.engine.cluster import RayCluster, chosen
from varangian.engine.options import COMPILE, RunSettings, option_fields, option_types

Command = TypeVar("Command", bound=Callable[..., Any])

What = Annotated[
    str,
    typer.Argument(
        metavar="STUDY|FILE.toml",
        help="A study (see `varangian studies`), your own in a file (`mystudy.py:landmines`), or a configuration file "
        "such as a run folder's config.toml.",
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        "--rules",
        help="A rule, such as `loss-based`, `loss-based:keep=all` or your own, `mine.py:exponential`. Repeat, or "
        "separate by commas, to compare rules.",
    ),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        "--attacks",
        help="An attack, such as `pulling`, `uniform:low=15,high=16` or your own, `mine.py:nudge`. By default its "
        "parameters are those of the study. Repeat, or separate by commas, to compare attacks.",
    ),
]
Byzantine = Annotated[
    list[str] | None,
    typer.Option(
        help="The Byzantine agents: their number (20), their share (0.2) or a list (3,5,8). Repeat to compare."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the study, such as `agents=1000`. Repeat."),
]
Seeds = Annotated[int | None, typer.Option(help="Run seeds 0 … S−1.", metavar="S")]
Rounds = Annotated[int | None, typer.Option(help="The number of rounds.", metavar="T")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the same plan in --out, for example after Ctrl-C or SIGTERM.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the results in --out, once the new ones are complete.")
]
Data = Annotated[Path | None, typer.Option(help="Folder to search for data before the cache, like VARANGIAN_DATA.")]
MILLIONS = 3 * 10**6
"""From so many agents on, large memory pages pay."""

Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How many processes run cells at the same time. By default one per core if a cell uses one core, and else "
        "one. The results are the same.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

Engine = Annotated[
    str,
    typer.Option(
        metavar="local|ray",
        help="Where to run: in this process, or on a Ray cluster, with one task per cell (rule, attack, number of "
        "Byzantine agents). Both give the same results, and each can resume a run of the other.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|HOST:PORT",
        help="With `--engine ray`: `local` (the default) starts a cluster on this machine for this run, `auto` finds "
        "the cluster started by `ray start`, `HOST:PORT` connects to a cluster there.",
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With `--engine ray`: spread each network over this many processes, for networks too large for one "
        "machine; cells then run one after another. By default 1.",
    ),
]
GpusPerShard = Annotated[
    float | None,
    typer.Option(
        metavar="G",
        help="With `--engine ray`: the GPUs of each cell, or of each shard of a cell. `0.25` puts four on one GPU. By "
        "default there are none, and cells run on CPU cores.",
    ),
]


def engine_of(engine: str, address: str | None, shards: int | None, gpus_per_shard: float | None) -> RayCluster | None:
    """The cluster that the options describe; None means this process."""
    given = {"--address": address, "--shards": shards, "--gpus-per-shard": gpus_per_shard}
    cluster = chosen(engine)
    if cluster is None:
        for option, value in given.items():
            if value is not None:
                raise BadInput(f"{option} is for a cluster; add --engine ray, or leave it out")
        return None
    return RayCluster(address or "local", 1 if shards is None else shards, gpus_per_shard or 0.0)


def check_jobs(jobs: int | None, cluster: RayCluster | None) -> None:
    """Refuse `--jobs` where it has no meaning."""
    if cluster is not None and jobs is not None:
        raise BadInput("--jobs counts processes on this machine; leave it out with --engine ray")
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs must be at least 1, but is {jobs}")


def as_options(cluster: RayCluster | None) -> list[str]:
    """The command-line options that choose the same engine."""
    if cluster is None:
        return []
    options = ["--engine", "ray", "--address", cluster.address]
    options += ["--shards", str(cluster.shards)] if cluster.shards > 1 else []
    return options + (["--gpus-per-shard", f"{cluster.gpus_per_shard:g}"] if cluster.gpus_per_shard else [])


def with_run_options(*, without: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Expand the parameter `options: RunSettings` of a command into one option for each field of `RunOptions`.

    The command gets only the options that were typed. All others come from the configuration file or the defaults.
    """

    def expanded(command: Command) -> Command:
        fields = [one for one in option_fields() if one.name not in without]

        @wraps(command)
        def wrapped(**given: Any) -> Any:
            typed = {one.name: given.pop(one.name) for one in fields}
            return command(**given, options={name: value for name, value in typed.items() if value is not None})

        signature = inspect.signature(command, eval_str=True)
        added: list[inspect.Parameter] = []
        for one in fields:
            kind: Any = option_types()[one.name][0]
            about = typer.Option(help=one.metadata["help"], metavar=one.metadata["metavar"], show_default=False)
            note = Annotated[kind | None, about]
            added.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=note))
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            kept = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += added if parameter.name == "options" else [kept]
        wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
        return cast(Command, wrapped)

    return expanded


def spelled_out(words: Sequence[str]) -> list[str]:
    """The words of a command, with the value of `--compile` where it was left out.

    A word that is nearly a value is one, so that a typo is reported as such, and not as an unexpected word.

    >>> spelled_out(["run", "--compile", "school"]), spelled_out(["--compile", "off"]), spelled_out(["--no-compile"])
    (['run', '--compile=on', 'school'], ['--compile', 'off'], ['--compile=off'])
    >>> spelled_out(["--compile", "onn"])
    ['--compile', 'onn']
    """
    usual = {"--compile": "--compile=on", "--no-compile": "--compile=off"}
    return [
        word if word == "--compile" and get_close_matches(following, COMPILE, cutoff=0.75) else usual.get(word, word)
        for word, following in zip_longest(words, words[1:], fillvalue="")
    ]


def check_local(options: RunSettings, cluster: RayCluster | None) -> None:
    """Reject options that a cluster does not support."""
    for one in option_fields():
        if cluster is not None and one.metadata["local"] and options.get(one.name) not in (None, one.default):
            option = f"--{one.name.replace('_', '-')}"
            raise BadInput(f"{option} works only in this process, not with --engine ray; leave one of them out")


def check_folder(out: Path | None, resume: bool, overwrite: bool) -> None:
    for option, given in (("--resume", resume), ("--overwrite", overwrite)):
        if given and out is None:
            raise BadInput(f"{option} needs a run folder; add --out")


def ask_for_large_pages(settings: Sequence[str] | None) -> None:
    """Let torch ask for large memory pages, if a network of millions of agents is typed. Call this before torch starts.

    The arrays of such a network are requested anew in every round. To get them in small pages takes much of the time.
    Smaller networks keep their memory, and large pages would cost them a little.

    >>> ask_for_large_pages(["agents=many", "rounds=3"])
    """
    typed = dict(one.split("=", 1) for one in settings or () if "=" in one)
    if typed.get("agents", "").isdecimal() and int(typed["agents"]) >= MILLIONS:
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def look_for_data_in(data: Path | None) -> None:
    if data is not None:
        os.environ["VARANGIAN_DATA"] = str(data)


def asked_for(
    what: str,
    rules: Sequence[str] | None,
    attacks: Sequence[str] | None,
    byzantine: Sequence[str] | None,
    seeds: int | None,
    rounds: int | None,
    settings: Sequence[str] | None,
    options: Mapping[str, Any],
    cluster: RayCluster | None,
) -> dict[str, Any]:
    """The arguments of `plan_for`: from the configuration file, if there is one, overridden by the typed options.

    Args:
        what: A study or a configuration file.
        rules: Names of rules; each text may hold several, separated by commas.
        attacks: Names of attacks, in the same form.
        byzantine: The Byzantine agents, as text.
        seeds: The number of seeds.
        rounds: The number of rounds.
        settings: Settings of the study, as `key=value`.
        options: The typed options of a run.
        cluster: The cluster to run on.
    """
    check_local(cast(RunSettings, options), cluster)
    stored: dict[str, Any] = experiments.config.from_toml(Path(what)) if what.endswith(".toml") else {"study": what}
    for one in option_fields():
        if cluster is not None and one.metadata["local"] and not one.metadata["changes_results"]:
            stored.pop(one.name, None)  # the file may come from a run without a cluster
    given: dict[str, Any] = {
        "rules": experiments.spec.parted(rules or ()),
        "attacks": experiments.spec.parted(attacks or ()),
        "byzantine": [experiments.config.read_byzantine(value) for value in byzantine or ()],
        "seeds": seeds,
        "rounds": rounds,
        **options,
    }
    for name in ("rules", "attacks"):  # paths in a file refer to its folder, and typed ones to the current folder
        if given[name]:
            stored.get("within", {}).pop(name, None)
    stored |= {name: value for name, value in given.items() if value not in (None, [])}
    stored["settings"] = {**stored.get("settings", {}), **dict(map(pair, settings or ()))}
    check_local(cast(RunSettings, stored), cluster)
    return stored


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--set takes key=value, but got {text!r}")
    return key.strip(), value.strip()
