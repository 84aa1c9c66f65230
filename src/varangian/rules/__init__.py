"""How an agent combines its neighbours' models with its own."""

from varangian.rules.base import Combined, Rule
from varangian.rules.clairvoyant import best_in_hindsight, oracle
from varangian.rules.interpolated import interpolated
from varangian.rules.multitask import f_resilient, mean_regularised, relationship_learning
from varangian.rules.paper import alone, average, distance_based, loss_based
from varangian.rules.personal import fedfomo, pens
from varangian.rules.robust import (
    centerpoint,
    geometric_median,
    krum,
    median,
    monna,
    multi_krum,
    nearest_neighbour_mixing,
    trimmed_mean,
)
from varangian.rules.screening import balance, clipped_gossip, ios, sketchguard, ubar
from varangian.rules.sparing import sparing
from varangian.rules.verified import paired, patient, verified

__all__ = [
    "Combined",
    "Rule",
    "alone",
    "average",
    "balance",
    "best_in_hindsight",
    "centerpoint",
    "clipped_gossip",
    "distance_based",
    "f_resilient",
    "fedfomo",
    "geometric_median",
    "interpolated",
    "ios",
    "krum",
    "loss_based",
    "mean_regularised",
    "median",
    "monna",
    "multi_krum",
    "nearest_neighbour_mixing",
    "oracle",
    "paired",
    "patient",
    "pens",
    "relationship_learning",
    "sketchguard",
    "sparing",
    "trimmed_mean",
    "ubar",
    "verified",
]
