"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from varangian.engine.cluster import RayCluster, chosen
from varangian.errors import BadInput

What = Annotated[
    str,
    typer.Argument(
        metavar="STUDY|FILE.toml",
        help="A study (see `varangian studies`), or a configuration file such as a run folder's config.toml.",
    ),
]
Byzantine = Annotated[
    list[str] | None,
    typer.Option(help="How many agents are Byzantine: a number, a share (0.2) or which (3,5,8). Repeat to compare."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the study, such as `agents=1000`. Repeat."),
]
Data = Annotated[Path | None, typer.Option(help="Where to look for data before the cache; the same as VARANGIAN_DATA.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

Engine = Annotated[
    str,
    typer.Option(
        metavar="local|ray",
        help="Where to run: in this process, or on a Ray cluster, a cell (rule, attack, number of Byzantine agents) a "
        "task. Results are the same, and what one began the other can go on with.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|HOST:PORT",
        help="With `--engine ray`: `local` starts a cluster on this machine for the time being (unless given), `auto` "
        "finds the one that `ray start` began, `HOST:PORT` is where one is.",
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With `--engine ray`: spread each network over so many processes, for networks too large for one machine; "
        "cells then run one after another. 1 unless given.",
    ),
]
GpusPerShard = Annotated[
    float | None,
    typer.Option(
        metavar="G",
        help="With `--engine ray`: how many GPUs each cell, or each shard of one, has to itself, such as `1`, or "
        "`0.25` for four on one GPU. Unless given none, and cells run on cores.",
    ),
]


def engine_of(engine: str, address: str | None, shards: int | None, gpus_per_shard: float | None) -> RayCluster | None:
    """The cluster that the options name; None is this process."""
    given = {"--address": address, "--shards": shards, "--gpus-per-shard": gpus_per_shard}
    cluster = chosen(engine)
    if cluster is None:
        for option, value in given.items():
            if value is not None:
                raise BadInput(f"{option} is for a cluster; add --engine ray, or leave it out")
        return None
    return RayCluster(address or "local", 1 if shards is None else shards, gpus_per_shard or 0.0)


def as_options(cluster: RayCluster | None) -> list[str]:
    """What to type for the same engine."""
    if cluster is None:
        return []
    options = ["--engine", "ray", "--address", cluster.address]
    options += ["--shards", str(cluster.shards)] if cluster.shards > 1 else []
    return options + (["--gpus-per-shard", f"{cluster.gpus_per_shard:g}"] if cluster.gpus_per_shard else [])


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--set takes key=value, but got {text!r}")
    return key.strip(), value.strip()
