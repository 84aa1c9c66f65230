"""Equations as they stand in docstrings, typeset: Unicode in, MathML out.

A docstring's equation is readable in a terminal: `a_lk ∝ 1 / φ_lk`, `Σ_{l∈N_k} a_lk θ̂_l`, `‖x‖²`. Subscripts and
superscripts longer than letters and digits stand in braces; `frac{a}{b}` and `sqrt{a}` are as in LaTeX; words of two
letters and more are set upright.
"""

from __future__ import annotations

import re
import unicodedata

from latex2mathml.converter import convert

SYMBOLS = {
    "−": "-", "∝": r"\propto ", "≤": r"\le ", "≥": r"\ge ", "∈": r"\in ", "∇": r"\nabla ", "Σ": r"\sum ", "∑": r"\sum ",
    "Π": r"\prod ", "·": r"\cdot ", "×": r"\times ", "‖": r"\Vert ", "←": r"\leftarrow ", "→": r"\rightarrow ",
    "≠": r"\ne ", "≈": r"\approx ", "∞": r"\infty ", "ℓ": r"\ell ", "…": r"\ldots ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset ",
    "½": r"\frac{1}{2}", "⟨": r"\langle ", "⟩": r"\rangle ", "|": r"\vert ", "√": r"\sqrt ", "±": r"\pm ", "~": r"\sim ",
    "∼": r"\sim ", "&": r"\& ", "%": r"\% ", "#": r"\# ",
}  # fmt: skip
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ᵀⁿ", "0123456789-+Tn", strict=True))
ACCENTS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar"}


def mathml(equation: str, display: bool = True) -> str:
    """One equation as MathML."""
    return convert(to_latex(equation), display="block" if display else "inline")


def to_latex(equation: str) -> str:
    r"""The equation in LaTeX.

    >>> print(to_latex("a_lk ∝ 1 / φ_lk²  if  φ_lk ≤ φ_kk"))
    a_{lk} \propto  1 / φ_{lk}^{2} \text{ if }  φ_{lk} \le  φ_{kk}
    >>> print(to_latex("Σ_{l∈N_k} a_lk θ̂_l"))
    \sum _{l\in N_{k}} a_{lk} \hat{θ}_{l}
    """
    text = unicodedata.normalize("NFD", equation)
    text = re.sub(rf"(\w)([{''.join(ACCENTS)}])", lambda found: rf"\{ACCENTS[found[2]]}{{{found[1]}}}", text)
    text = re.sub(rf"[{''.join(RAISED)}]+", lambda found: f"^{{{''.join(RAISED[c] for c in found[0])}}}", text)
    text = re.sub(r"_(?!\{)([A-Za-z0-9α-ωΑ-Ω*]+)", r"_{\1}", text)
    text = re.sub(r"\^(?!\{)([A-Za-z0-9α-ω*]+)", r"^{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z{_^])(frac|sqrt)(?=\{)", r"\\\1", text)
    # Words of several letters, unless they are commands or indices.
    text = re.sub(r"(?<![\\A-Za-z])(?<!_\{)(?<!\^\{)([A-Za-z]{2,}(?:[ ’'-][A-Za-z]{2,})*)", _upright, text)
    for symbol, command in SYMBOLS.items():
        text = text.replace(symbol, command)
    return re.sub(r"  +", " ", text) if "\\" not in text else text


def _upright(found: re.Match[str]) -> str:
    before, after = found.string[: found.start()], found.string[found.end() :]
    left = " " if before.endswith(" ") else ""
    right = " " if after.startswith(" ") else ""
    return rf"\text{{{left}{found[1]}{right}}}"
