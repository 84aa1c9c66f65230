"""Text for terminals that know only ASCII: `±` becomes `+-`, `μ` becomes `mu`, and nothing fails."""

from __future__ import annotations

import codecs
import unicodedata
from typing import TextIO

HANDLER = "varangian.plain"
PLAIN = {"…": "...", "±": "+-", "×": "x", "∞": "inf", "≈": "~", "−": "-", "–": "-", "·": ".", "≤": "<=", "≥": ">="}
PLAIN |= {
    "‖": "||",
    "∑": "sum",
    "Σ": "sum ",
    "∈": " in ",
    "→": "->",
    "⌊": "floor(",
    "⌋": ")",
    "√": "sqrt",
    "∇": "grad ",
}


def plain(text: str, encoding: str | None) -> str:
    """The text in characters that an encoding has.

    >>> plain("θ_k: 0.5 ± 0.1 …", "ascii"), plain("θ_k: 0.5 ± 0.1 …", "utf-8")
    ('theta_k: 0.5 +- 0.1 ...', 'θ_k: 0.5 ± 0.1 …')
    """
    encoding = encoding or "utf-8"
    return text.encode(encoding, HANDLER).decode(encoding)


def never_fail(stream: TextIO) -> None:
    """Make a stream write every text, in the characters that it has."""
    if hasattr(stream, "reconfigure"):  # not a stream of tests or of a notebook
        stream.reconfigure(errors=HANDLER)


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_ascii, error.object[error.start : error.end])), error.end


def _ascii(character: str) -> str:
    """One character in ASCII: by the table, without its accents, or by the name of the letter.

    >>> [_ascii(character) for character in "é₊θ─漢"]
    ['e', '+', 'theta', '?', '?']
    """
    if character in PLAIN:
        return PLAIN[character]
    simple = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    name = unicodedata.name(character, "").partition(" WITH ")[0]
    letter = name.rpartition(" LETTER ")[2].lower() if name.startswith("GREEK") else ""
    return simple or letter or "?"


codecs.register_error(HANDLER, _replaced)
