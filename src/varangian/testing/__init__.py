"""Check your own rule or attack against the contract: `check_rule(rule)`, `check_attack(attack)`."""

from varangian.testing.contract import check_attack as check_attack
from varangian.testing.contract import check_rule as check_rule

__all__ = ["check_attack", "check_rule"]
