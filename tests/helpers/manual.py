"""README, manual and notebooks as tests read and run them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from varangian import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SHORT = {
    "run": ["--rounds", "2", "--seeds", "1", "--quiet"],
    "tournament": [
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--quiet",
        "--jobs",
        "1",
        "--rules",
        "average",
        "--attacks",
        "uniform",
    ],
    "reproduce": ["--help"],
    "agent": ["--help"],
    "fleet": ["--help"],
}
"""How long commands become short ones; some have tests of their own."""


def run_in_order(sources: Iterable[tuple[str, str]]) -> tuple[dict[str, Any], str]:
    """Run pieces of Python one after the other: the names that they define, and what they print."""
    namespace: dict[str, Any] = {}
    said = io.StringIO()
    mpl.use("Agg")
    for where, source in sources:
        with contextlib.redirect_stdout(said):
            exec(compile(source, where, "exec"), namespace)
    return namespace, said.getvalue()


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}(?: title=.*?)?\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def files(page: Path) -> dict[str, str]:
    """The blocks that a reader saves to a file: their title is its name."""
    return dict(re.findall(r'```\w+ title="(.*?)"\n(.*?)```', page.read_text(encoding="utf-8"), re.DOTALL))


def commands(page: Path) -> list[list[str]]:
    lines = [line.partition("#")[0] for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    split = [shlex.split(command) for line in lines for command in line.split(";")]
    return [words[1:] for words in split if words and words[0] == "varangian"]


def run_commands(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's commands in a folder, one after the other, with the files that the page shows."""
    monkeypatch.chdir(folder)
    for name, text in files(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    for words in commands(page):
        said = io.StringIO()
        monkeypatch.setattr(sys, "argv", ["varangian", *words, *SHORT.get(words[0], [])])
        streams = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
        with streams[0], streams[1], pytest.raises(SystemExit) as ended:
            cli.main()
        missing_data = ended.value.code == 2 and "is not on this computer" in said.getvalue()
        assert not ended.value.code or missing_data, f"varangian {shlex.join(words)}: {said.getvalue()}"
