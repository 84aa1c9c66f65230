"""How an agent combines its neighbours' models with its own.

The cards of the rules share one notation:

- θ̂_k is the model of agent k after its own training step, θ_k its model after combining, θ_{k,i−1} that of the
  previous round.
- θ̂_l is also the message of neighbour l. A Byzantine neighbour may send anything.
- N_k holds the neighbours that agent k heard in this round, and agent k itself. |N_k| is their number.
- a_lk is the weight that agent k gives to neighbour l. The weights of an agent are not negative and sum to one.
- ℓ(θ; ξ_k) is the loss of model θ on the sample ξ_k of agent k, and r_k(θ) its expectation, the risk.
- φ_lk is what agent k remembers of neighbour l: an exponential moving average with forgetting factor ν.
- d is the number of parameters that travel. f is the number of Byzantine neighbours to tolerate.
"""

from varangian.rules.anchored import anchored
from varangian.rules.base import Combined, Rule
from varangian.rules.clairvoyant import best_in_hindsight, oracle
from varangian.rules.clustering import threshold_clustering
from varangian.rules.interpolated import interpolated
from varangian.rules.learned_weights import l2c
from varangian.rules.multitask import f_resilient, mean_regularised, relationship_learning
from varangian.rules.nearest import krum, monna, multi_krum
from varangian.rules.outliers import ios
from varangian.rules.paper import alone, average, distance_based, loss_based
from varangian.rules.personal import fedfomo, pens
from varangian.rules.preaggregation import bucketing, clipped
from varangian.rules.robust import centerpoint, geometric_median, median, nearest_neighbour_mixing, trimmed_mean
from varangian.rules.robust_gossip import cs_plus_rg
from varangian.rules.screening import balance, clipped_gossip, sketchguard, ubar
from varangian.rules.sparing import sparing
from varangian.rules.trust import basil, fltrust
from varangian.rules.two_models import apfl, ditto
from varangian.rules.verified import paired, patient, verified

__all__ = [
    "Combined",
    "Rule",
    "alone",
    "anchored",
    "apfl",
    "average",
    "balance",
    "basil",
    "best_in_hindsight",
    "bucketing",
    "centerpoint",
    "clipped",
    "clipped_gossip",
    "cs_plus_rg",
    "distance_based",
    "ditto",
    "f_resilient",
    "fedfomo",
    "fltrust",
    "geometric_median",
    "interpolated",
    "ios",
    "krum",
    "l2c",
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
    "threshold_clustering",
    "trimmed_mean",
    "ubar",
    "verified",
]
