"""Which rules a test of one family still has to hold to the contract."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def beyond_defaults(rules: Iterable[Any]) -> list[Any]:
    """Rules with settings of their own: `tests/testing` holds every shipped rule to the contract with its defaults."""
    return [rule for rule in rules if rule != type(rule)()]
