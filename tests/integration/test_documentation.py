"""README, manual and notebooks are run: Python top to bottom, commands in a fresh folder. Links lead somewhere.

Commands are run as they stand, in their order, but for few rounds and one seed. What installs is what `make` does.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
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


def run_in_order(sources: Iterator[tuple[str, str]]) -> None:
    namespace: dict[str, Any] = {}
    mpl.use("Agg")
    for where, source in sources:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, where, "exec"), namespace)


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}(?: title=.*?)?\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def files(page: Path) -> dict[str, str]:
    """The blocks that a reader saves to a file: their title is its name."""
    return dict(re.findall(r'```\w+ title="(.*?)"\n(.*?)```', page.read_text(encoding="utf-8"), re.DOTALL))


@pytest.fixture
def connected(page: Path, request: pytest.FixtureRequest) -> None:
    """What a page does on a local cluster happens on the one that these tests share."""
    if any("ray" in words for words in commands(page)):
        request.getfixturevalue("cluster")


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_in_order((str(page), block) for block in blocks(page, "python"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks_run(notebook: Path) -> None:
    run_in_order((notebook.name, "".join(cell["source"])) for cell in code_cells(notebook))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks_hold_their_outputs(notebook: Path) -> None:
    for cell in code_cells(notebook):
        shows = any(word in "".join(cell["source"]) for word in ("print(", "plt.show("))
        assert bool(cell["outputs"]) == shows, "run: python docs/render_notebooks.py"


def commands(page: Path) -> list[list[str]]:
    lines = [line.partition("#")[0] for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    split = [shlex.split(command) for line in lines for command in line.split(";")]
    return [words[1:] for words in split if words and words[0] == "varangian"]


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for words in commands(page):
        said = io.StringIO()
        monkeypatch.setattr(sys, "argv", ["varangian", *words, *SHORT.get(words[0], [])])
        streams = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
        with streams[0], streams[1], pytest.raises(SystemExit) as ended:
            cli.main()
        missing_data = ended.value.code == 2 and "is not on this computer" in said.getvalue()
        assert not ended.value.code or missing_data, f"varangian {shlex.join(words)}: {said.getvalue()}"


def test_the_site_can_be_built(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the manual's site needs mkdocs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "rules" / "index.html").read_text(encoding="utf-8")
    assert "loss_based" in page and "Jensen" in page, "rules are described by what they say of themselves"
    for notebook in NOTEBOOKS:
        page = (tmp_path / "notebooks" / notebook.stem / "index.html").read_text(encoding="utf-8")
        outputs = [output for cell in code_cells(notebook) for output in cell["outputs"] if "text" in output]
        assert all(output["text"][-1].split()[-1] in page for output in outputs), "outputs are shown"
    assert list((tmp_path / "notebooks").glob("*.png"))


def test_own_rule_is_short() -> None:
    own_rule = next(block for block in blocks(ROOT / "README.md", "python") if "check_rule" in block)
    assert len([line for line in own_rule.splitlines() if line.strip()]) < 20


def test_own_work_takes_a_table_to_a_report_a_table_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "own-work.md").read_text(encoding="utf-8")
    work = re.findall(r"```python\n(.*?)```", page, re.DOTALL)  # without the file for the command line
    assert len([line for block in work for line in block.splitlines() if line.strip()]) < 40
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for block in work:
            exec(compile(block, "own-work.md", "exec"), namespace)
    assert "loss-based" in said.getvalue() and "drawn anew" in said.getvalue()
    assert '<script type="application/json" id="data">' in Path("report.html").read_text(encoding="utf-8")
    assert namespace["latex"].startswith("\\begin{table}") and r"3 Byzantine: sign-flip" in namespace["latex"]
    assert len(list(Path("purchases-run/models").glob("*.safetensors"))) == 3 * 2 * 3
    assert {path.name for path in Path("purchases-run").iterdir()} >= {"summary.csv", "metrics.nc", "report.html"}
    ends = namespace["found"].summary().set_index(["rule", "byzantine"])["mean"]
    assert ends["loss-based", 3] > ends["average", 3] + 0.1, "what the example is there to show"


def test_local_links_lead_somewhere() -> None:
    for page in (*PAGES, *NOTEBOOKS, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
