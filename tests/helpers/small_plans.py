"""A plan small enough to be swept in a test."""

from __future__ import annotations

from typing import Any

from varangian.experiments.config import Plan, plan_for


def small(**changed: Any) -> Plan:
    asked: dict[str, Any] = {
        "rules": ["alone", "loss-based"],
        "attacks": ["uniform"],
        "byzantine": [0, 3],
        "seeds": 2,
        "rounds": 20,
        "settings": {"agents": 10},
    }
    return plan_for("target-localization", **(asked | changed))
