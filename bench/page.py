"""Updates the tables in the manual: `python -m bench.page [--from results/performance]`.

In a page, the text between `<!-- table cpu/roofline -->` and `<!-- end -->` is replaced by the table of that CSV file.
`<!-- far -->` marks the place of the estimate for a hundred million agents. Tables without a CSV file stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from pathlib import Path

from bench.timing import formatted

PAGES = (Path("docs/performance.md"), Path("docs/cluster.md"))
IMAGE = Path("docs/images/scaling.png")


def table(path: Path) -> str:
    """A CSV file as a Markdown table.

    Numbers have three digits. Columns of numbers are aligned to the right.
    """
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
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
    """An estimate for a hundred million agents, from the largest network that was measured."""
    with (folder / "cpu" / "scaling.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["sweep"] == "agents"]
    last = max(rows, key=lambda row: int(row["size"]))
    agents, edges = int(last["size"]), int(last["edges"])
    seconds, mib = float(last["round ms"]) / 1e3, float(last["MiB"])
    more = 10**8 / agents
    hours, gib = seconds * more * 500 / 3600, mib * more / 1024
    return " ".join(
        (
            f"With {agents:,} agents and {edges:,} edges a round takes {1e3 * seconds:.0f} ms,",
            f"which is {1e9 * seconds / edges:.1f} ns per edge. The run needs {mib / 1024:.2f} GiB, or",
            f"{mib * 2**20 / agents:,.0f} bytes per agent, most of it while the graph is made. Both grow linearly.",
            f"A hundred million agents with as many neighbours each have {edges * more:.2g} edges. A round would take",
            f"{seconds * more:.0f} s on these two cores, and 500 rounds {hours:.1f} hours. The run would need",
            f"{gib:,.0f} GiB, which one large machine has. A round itself (φ and its mass before and after, senders,",
            f"weights) needs about {edges * more * 29 / 2**30:,.0f} GiB of it. If that is too much, the network must",
            "be split into parts that exchange only the models at their borders. If agents hear only agents near",
            "them, these are few.",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", type=Path, default=Path("results/performance"))
    folder: Path = parser.parse_args().folder

    def fresh(found: re.Match[str]) -> str:
        path = folder / f"{found[1]}.csv"
        if not path.exists():
            print(f"{path} does not exist; its table stays as it is")
            return found[0]
        return f"<!-- table {found[1]} -->\n{table(path)}\n<!-- end -->"

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", fresh, text, flags=re.DOTALL)
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
