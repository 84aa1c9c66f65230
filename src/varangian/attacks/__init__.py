"""What Byzantine agents send."""

from varangian.attacks.backdoors import backdoor, model_replacement
from varangian.attacks.base import Attack, Insight, Knowledge, Poisons, Triggers, View, knowledge_of
from varangian.attacks.best_response import best_response
from varangian.attacks.blind_spots import blind_direction, null_space
from varangian.attacks.copying import collusion, free_rider, scaled, sybil
from varangian.attacks.drifting import poisoned_fl, rop, variance_inflation
from varangian.attacks.fang import fang_krum, fang_trimmed_mean
from varangian.attacks.faults import delay, dropping, duplicate
from varangian.attacks.poisoning import label_flip
from varangian.attacks.rehearsal import strongest
from varangian.attacks.simple import (
    crash,
    gaussian,
    not_finite,
    pulling,
    shrink,
    sign_flip,
    silent,
    sleeper,
    uniform,
)
from varangian.attacks.statistical import alie, inner_product, mimic, min_max, min_sum
from varangian.attacks.topological import dissensus, isolation, spectral_dissensus
from varangian.attacks.trust import trust_then_strike
from varangian.core.messages import ToAll, ToEach

__all__ = [
    "Attack",
    "Insight",
    "Knowledge",
    "Poisons",
    "ToAll",
    "ToEach",
    "Triggers",
    "View",
    "alie",
    "backdoor",
    "best_response",
    "blind_direction",
    "collusion",
    "crash",
    "delay",
    "dissensus",
    "dropping",
    "duplicate",
    "fang_krum",
    "fang_trimmed_mean",
    "free_rider",
    "gaussian",
    "inner_product",
    "isolation",
    "knowledge_of",
    "label_flip",
    "mimic",
    "min_max",
    "min_sum",
    "model_replacement",
    "not_finite",
    "null_space",
    "poisoned_fl",
    "pulling",
    "rop",
    "scaled",
    "shrink",
    "sign_flip",
    "silent",
    "sleeper",
    "spectral_dissensus",
    "strongest",
    "sybil",
    "trust_then_strike",
    "uniform",
    "variance_inflation",
]
