"""Typeset the equations of docstrings: Unicode in, MathML out.

An equation in a docstring is readable in a terminal: `a_lk ∝ 1 / φ_lk`, `Σ_{l∈N_k} a_lk θ̂_l`, `‖x‖²`. The conventions:

- A subscript or superscript of letters and digits needs no braces (`a_lk`); all others do (`θ_{k,i−1}`).
- `frac{a}{b}` and `sqrt{a}` are as in LaTeX. `√(a + b)` covers its parentheses.
- Other braces are those of sets: `{l : φ_lk ≤ φ_kk}`.
- Words of two letters and more are set upright. In subscripts it takes three letters, as `lk` are two indices.
- Two spaces and more make a wide gap.
"""

from __future__ import annotations

import re
import unicodedata

from latex2mathml.converter import convert

SYMBOLS = {
    "−": "-", "∝": r"\propto ", "≤": r"\le ", "≥": r"\ge ", "∈": r"\in ", "∉": r"\notin ", "∇": r"\nabla ",
    "Σ": r"\sum ", "∑": r"\sum ", "Π": r"\prod ", "·": r"\cdot ", "×": r"\times ", "‖": r"\Vert ", "|": r"\vert ",
    "←": r"\leftarrow ", "→": r"\rightarrow ", "≠": r"\ne ", "≈": r"\approx ", "∞": r"\infty ", "ℓ": r"\ell ",
    "…": r"\ldots ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "∪": r"\cup ",
    "∩": r"\cap ", "∖": r"\;\setminus\;", "∅": r"\emptyset ", "½": r"\frac{1}{2}", "⟨": r"\langle ", "⟩": r"\rangle ",
    "√": r"\sqrt ", "±": r"\pm ", "~": r"\sim ", "∼": r"\sim ", "&": r"\& ", "%": r"\% ", "#": r"\# ",
}  # fmt: skip
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ᵀⁿ", "0123456789-+Tn", strict=True))
ACCENTS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar"}
OPERATORS = (
    "argmax",
    "argmin",
    "clip",
    "exp",
    "log",
    "max",
    "mean",
    "median",
    "min",
    "tr",
)


def mathml(equation: str, display: bool = True) -> str:
    """One equation as MathML."""
    return convert(to_latex(equation), display="block" if display else "inline")


def to_latex(equation: str) -> str:
    r"""The equation in LaTeX.

    >>> print(to_latex("a_lk ∝ 1 / φ_lk²  if φ_lk ≤ φ_kk"))
    a_{lk} \propto 1 / φ_{lk}^{2}\quad \text{if } φ_{lk} \le φ_{kk}
    >>> print(to_latex("Σ_{l∈N_k} a_lk θ̂_l"))
    \sum _{l\in N_{k}} a_{lk} \hat{θ}_{l}
    >>> print(to_latex("B_k = {l : l ≠ k},  √(x_{own} + 1)"))
    B_{k} = \{l \;:\; l \ne k\},\quad \sqrt{x_{\text{own}} + 1}
    """
    text = _roots(_sets(equation.strip()))
    # Only letters are taken apart: "≠" would become "=" and a stroke.
    text = re.sub(r"\w", lambda found: unicodedata.normalize("NFD", found[0]), text)
    text = re.sub(
        rf"(\w)([{''.join(ACCENTS)}])",
        lambda found: rf"\{ACCENTS[found[2]]}{{{found[1]}}}",
        text,
    )
    text = re.sub(
        rf"[{''.join(RAISED)}]+",
        lambda found: f"^{{{''.join(RAISED[c] for c in found[0])}}}",
        text,
    )
    text = re.sub(r"([_^])([A-Za-z0-9α-ωΑ-Ω*]+)", r"\1{\2}", text)
    text = re.sub(r"(?<![\\A-Za-z])(frac|sqrt)(?=\{)", r"\\\1", text)
    text = re.sub(r"(?<= ):(?= )", r"\\;:\\;", text)
    text = re.sub(r" {2,}", r"\\quad ", text)
    text = re.sub(
        r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:[ ’'-][A-Za-z]{2,})*(?![A-Za-z])", _word, text
    )
    for symbol, command in SYMBOLS.items():
        text = text.replace(symbol, command)
    return re.sub(r" {2,}", " ", text)


def _sets(text: str) -> str:
    """Mark the braces that are no groups of LaTeX: those of sets."""
    done, literal = "", list[bool]()
    for character in text:
        if character == "{":
            literal.append(not done.endswith(("_", "^", "frac", "sqrt", "}")))
        mark = "\\" if character in "{}" and literal and literal[-1] else ""
        if character == "}" and literal:
            literal.pop()
        done += mark + character
    return done


def _roots(text: str) -> str:
    """√(…) as \\sqrt{…}, with the parenthesis that closes the first."""
    while (start := text.find("√(")) >= 0:
        depth = 0
        for end in range(start + 1, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                break
        else:
            raise ValueError(f"no parenthesis closes the root in {text!r}")
        text = f"{text[:start]}\\sqrt{{{text[start + 2 : end]}}}{text[end + 1 :]}"
    return text


def _word(found: re.Match[str]) -> str:
    """A word, upright; indices stay as they are."""
    before, after = found.string[: found.start()], found.string[found.end() :]
    if before.endswith(("_{", "^{")) and len(found[0]) < 3:
        return found[0]
    if found[0] in OPERATORS:
        return rf"\operatorname{{{found[0]}}}"
    left = " " if before.endswith(" ") and not before.endswith(r"\quad ") else ""
    right = " " if after.startswith(" ") else ""
    return rf"\text{{{left}{found[0]}{right}}}"
