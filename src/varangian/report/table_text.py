"""The summary table as text, Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Literal, get_args

from varangian.core.errors import unknown
from varangian.report.table import Row, table

Form = Literal["text", "markdown", "latex", "html"]

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "…": r"\dots{}",
    "−": "$-$",
    "μ": r"$\mu$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex_text(text: str) -> str:
    r"""Text in which LaTeX sees no commands.

    >>> print(latex_text("a_b: 5 ± 1 %"))
    a\_b: 5 $\pm$ 1 \%
    """
    return "".join(_LATEX.get(letter, letter) for letter in text)


def written(rows: Sequence[Row], metric: str, form: Form, caption: str) -> str:
    """The table `mean ± standard error (worst agent)`, with the best rule of each scenario marked.

    Args:
        rows: The rows of a summary.
        metric: Which metric to show.
        form: How to write it.
        caption: What it shows.
    """
    forms: dict[str, Callable[[list[str], list[list[str]], set[tuple[int, int]], str], str]]
    forms = {"text": _text, "markdown": _markdown, "latex": _latex, "html": _html}
    if form not in forms:
        raise unknown("form of a table", str(form), get_args(Form))
    heads, lines, best = table(rows, metric)
    return forms[form](["rule", *heads], lines, best, caption)


def _text(heads: list[str], lines: list[list[str]], best: set[tuple[int, int]], caption: str) -> str:
    """Columns of equal width; the best of each column has a star."""
    starred = [
        [text + (" *" if (i, j - 1) in best else "  " if j else "") for j, text in enumerate(line)]
        for i, line in enumerate(lines)
    ]
    shown = [[heads[0], *(f"{head}  " for head in heads[1:])], *starred]
    widths = [max(len(line[column]) for line in shown) for column in range(len(heads))]
    out = [
        "  ".join(text.ljust(width) if not i else text.rjust(width) for i, (text, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(line, widths, strict=True)) for line in shown)
    ]
    return "\n".join([caption, "", *out, "", "* best of its column"]) + "\n"


def _markdown(heads: list[str], lines: list[list[str]], best: set[tuple[int, int]], caption: str) -> str:
    def row(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    marked = [
        [f"**{text}**" if (i, j - 1) in best else text for j, text in enumerate(line)] for i, line in enumerate(lines)
    ]
    rule = "|---|" + "---:|" * (len(heads) - 1)
    return "\n".join([caption, "", row(heads), rule, *map(row, marked)]) + "\n"


def _latex(heads: list[str], lines: list[list[str]], best: set[tuple[int, int]], caption: str) -> str:
    """For the package booktabs."""
    out = [r"\begin{table}", r"  \centering", f"  \\caption{{{latex_text(caption)}}}"]
    out += [f"  \\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"    \toprule"]
    out += [f"    {' & '.join(map(latex_text, heads))} \\\\", r"    \midrule"]
    for i, line in enumerate(lines):
        cells = [latex_text(text) for text in line]
        cells = [f"\\textbf{{{text}}}" if (i, j - 1) in best else text for j, text in enumerate(cells)]
        out.append(f"    {' & '.join(cells)} \\\\")
    return "\n".join([*out, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]) + "\n"


def _html(heads: list[str], lines: list[list[str]], best: set[tuple[int, int]], caption: str) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = ""
    for i, line in enumerate(lines):
        cells = (f"<b>{escape(t)}</b>" if (i, j - 1) in best else escape(t) for j, t in enumerate(line))
        body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
