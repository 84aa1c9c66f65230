"""How an agent combines its neighbours' models with its own."""

from varangian.rules.rule import Combined, Rule
from varangian.rules.weighing import alone, average, distance_based, loss_based

__all__ = ["Combined", "Rule", "alone", "average", "distance_based", "loss_based"]
