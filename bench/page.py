"""Writes measurements into the manual: `python -m bench.page [--from results/performance]`.

In a page, `<!-- table cpu/roofline -->` starts the table of that CSV file, and `<!-- end -->` ends it. The lines in
between are replaced. `<!-- table cpu/roofline | workload | round ms -->` shows only these columns. `<!-- far -->` marks
the estimate for a hundred million agents. Tables without a CSV file stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.timing import formatted

PAGES = (Path("docs/performance.md"), Path("docs/performance-details.md"), Path("docs/cluster.md"))
IMAGE = Path("docs/images/scaling.png")


def table(path: Path, columns: Sequence[str] = ()) -> str:
    """A CSV file as a Markdown table, with all columns or with the named ones.

    Numbers have three digits, and columns of numbers are aligned to the right.
    """
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if unknown := set(columns) - set(rows[0]):
        raise SystemExit(f"{path} has no column {', '.join(sorted(unknown))}; it has {', '.join(rows[0])}")
    places = [rows[0].index(name) for name in columns or rows[0]]
    rows = [[row[place] for place in places] for row in rows]
    head, body = rows[0], [[formatted(_number(cell)) for cell in row] for row in rows[1:]]
    numeric = [all(isinstance(_number(row[place]), float) for row in rows[1:]) for place in range(len(head))]
    lines = [head, ["--:" if right else "---" for right in numeric], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def far(folder: Path) -> str:
    """The estimate for a hundred million agents, from the largest network that was measured."""
    with (folder / "cpu" / "scaling.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["sweep"] == "agents"]
    last = max(rows, key=lambda row: int(row["size"]))
    agents, edges = int(last["size"]), int(last["edges"])
    seconds, mib = float(last["round ms"]) / 1e3, float(last["MiB"])
    more = 10**8 / agents
    hours, gib = seconds * more * 500 / 3600, mib * more / 1024
    measured = (
        f"**Measured:** {agents:,} agents with {edges:,} edges take {1e3 * seconds:.0f} ms per round",
        f"({1e9 * seconds / edges:.1f} ns per edge) and {mib / 1024:.2f} GiB of memory",
        f"({mib * 2**20 / agents:,.0f} bytes per agent). Most of the memory is needed while the graph is made.",
        "Both grow in proportion to the network.",
    )
    estimated = (
        f"**Estimated:** a hundred million agents with as many neighbours each have {edges * more:.2g} edges. On the",
        f"same two cores a round would take {seconds * more:.0f} s, 500 rounds {hours:.1f} hours, and the run",
        f"{gib:,.0f} GiB: one large machine.",
        f"The round itself would hold some {edges * more * 29 / 2**30:,.0f} GiB of that.",
    )
    return " ".join(measured) + "\n\n" + " ".join(estimated)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", type=Path, default=Path("results/performance"))
    folder: Path = parser.parse_args().folder

    def fresh(found: re.Match[str]) -> str:
        name, *columns = (part.strip() for part in found[1].split("|"))
        path = folder / f"{name}.csv"
        if not path.exists():
            print(f"{path} does not exist; its table stays as it is")
            return found[0]
        return f"<!-- table {found[1]} -->\n{table(path, columns)}\n<!-- end -->"

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"<!-- table (.+?) -->\n.*?<!-- end -->", fresh, text, flags=re.DOTALL)
        if (folder / "cpu" / "scaling.csv").exists():
            text = re.sub(
                r"<!-- far -->\n.*?<!-- end -->",
                lambda _: f"<!-- far -->\n{far(folder)}\n<!-- end -->",
                text,
                flags=re.DOTALL,
            )
        page.write_text(text, encoding="utf-8")
        print(f"Written to {page}")
    if (folder / "cpu" / "scaling.png").exists():
        shutil.copyfile(folder / "cpu" / "scaling.png", IMAGE)


if __name__ == "__main__":
    main()
