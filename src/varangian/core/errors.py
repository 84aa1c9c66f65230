"""The exceptions that users see: for invalid input, and for a run that fails."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Invalid input. One line says what is wrong, where, and what to do. The command line exits with status 2."""


class RunFailed(RuntimeError):
    """A rule, an attack, a model or a metric failed in the middle of a run. The error itself is the cause."""


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for an unknown name. It suggests the nearest known name, so that a typo is quickly found.

    >>> unknown("rule", "los-based", ["alone", "loss-based"])
    BadInput("unknown rule 'los-based'; did you mean 'loss-based'? (known: alone, loss-based)")
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return BadInput(f"unknown {kind} {name!r}{hint} (known: {', '.join(known)})")
