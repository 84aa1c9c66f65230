"""``varangian data list|get|check``: list the datasets, download one, check the files on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from varangian.core.errors import BadInput
from varangian.studies import data as datasets
from varangian.studies.data.arrays import digest
from varangian.studies.data.catalogue import DATASETS, Dataset, how_to_get
from varangian.studies.data.fetch import get
from varangian.studies.data.locate import find, search_folders

app = typer.Typer(help="Datasets: list, download and check them.", no_args_is_help=True)

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder to look in before VARANGIAN_DATA."),
]


@app.command("list")
def list_datasets(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List every dataset: its description, source, licence, split and citation."""
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in DATASETS], indent=2))
        return
    for entry in DATASETS:
        typer.echo(f"{entry.name}: {entry.title}")
        for label, text in (
            ("page", entry.page),
            ("licence", entry.licence),
            ("split", entry.split),
            ("cite", entry.citation),
        ):
            typer.echo(f"  {label:<8}{text}")
        for original in entry.originals:
            typer.echo(f"  {'file':<8}{original.name} ({original.checksum or 'no published checksum'})")


@app.command("get")
def get_dataset(
    name: Annotated[str, typer.Argument(help="A name from `list`.")],
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Folder to put it in.")] = None,
) -> None:
    """Download a dataset into DIR, or into the cache."""
    try:
        typer.echo(f"{name} is in {get(name, data)}")
    except BadInput as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


@app.command("check")
def check_datasets(data: DataFolder = None) -> None:
    """Read every dataset on this machine and print its contents. For missing datasets, print how to get them."""
    try:
        first = search_folders(data)[0]
    except BadInput as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    refused = False
    for entry in DATASETS:
        try:
            typer.echo(f"{entry.name}: {_describe(entry, data, first)}")
        except BadInput as error:
            refused = True
            typer.echo(f"{entry.name}: {error}", err=True)
    if refused:
        raise typer.Exit(2)


def _describe(entry: Dataset, data: Path | None, first: Path) -> str:
    found = find(entry, data)
    if found is None:
        return f"missing; {how_to_get(entry, str(first))}"
    value = _reader(entry)(data)
    arrays = [(field.name, getattr(value, field.name)) for field in fields(value)]
    shapes = ", ".join(f"{name} {'x'.join(map(str, a.shape))}" for name, a in arrays if hasattr(a, "shape"))
    return f"{found.form} in {found.path}: {shapes}{_published(entry, found.path)}"


def _reader(entry: Dataset) -> Callable[[Path | None], Any]:
    readers: dict[str, Callable[[Path | None], Any]] = {
        "human-activity": datasets.human_activity,
        "mnist": datasets.mnist,
        "mnist-m": datasets.mnist_m,
        "synthetic-digits-kaggle": datasets.kaggle_digits,
        "usps": datasets.usps,
        "school": datasets.school,
    }
    return readers[entry.name]


def _published(entry: Dataset, path: Path) -> str:
    """Whether the original files match the published checksums. Empty for other forms of the data."""
    home = path if path.is_dir() else path.parent
    verdicts: list[bool] = []
    for original in entry.originals:
        if original.checksum is None or path.suffix == ".npz":
            continue
        algorithm, expected = original.checksum.split(":")
        with suppress(FileNotFoundError):
            verdicts.append(digest(home / original.name, algorithm) == expected)
    if not verdicts:
        return ""
    return "; published checksum matches" if all(verdicts) else "; NOT the published checksum"
