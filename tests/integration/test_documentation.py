"""README, manual and notebooks are run: Python top to bottom, commands in a fresh folder. Links lead somewhere.

Commands are run as they stand, in their order, but for few rounds and one seed. What installs is what `make` does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from manual import NOTEBOOKS, PAGES, ROOT, blocks, code_cells, commands, run_commands, run_in_order

CLUSTERS = "cluster.md"
"""Its commands and its Python are run where the tests have a cluster, in test_ray_own_code.py."""
HERE = [page for page in PAGES if page.name != CLUSTERS]


@pytest.mark.parametrize(
    "page",
    [page for page in HERE if blocks(page, "python") and page.name != "own-work.md"],
    ids=lambda page: page.name,
)
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


@pytest.mark.parametrize("page", [page for page in HERE if commands(page)], ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name != "README.md":  # one page with figures is enough: they take longer than all else
        monkeypatch.setattr("varangian.report.folder.draw_figures", lambda metrics, folder: [])
    run_commands(page, tmp_path, monkeypatch)


def test_own_rule_is_short() -> None:
    own_rule = next(block for block in blocks(ROOT / "README.md", "python") if "check_rule" in block)
    assert len([line for line in own_rule.splitlines() if line.strip()]) < 20


def test_own_work_takes_a_table_to_a_report_a_table_and_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "own-work.md"
    work = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for block in work for line in block.splitlines() if line.strip()]) < 40
    monkeypatch.chdir(tmp_path)
    # Also the file for the command line, which is not counted as work.
    namespace, said = run_in_order((str(page), block) for block in blocks(page, "python"))
    assert "loss-based" in said and "drawn anew" in said
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
