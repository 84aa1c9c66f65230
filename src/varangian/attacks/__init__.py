"""What Byzantine agents send."""

from varangian.attacks.base import Attack, Insight, Knowledge, Poisons, View, knowledge_of
from varangian.attacks.best_response import best_response
from varangian.attacks.blind_spots import blind_direction, null_space
from varangian.attacks.copying import collusion, free_rider, scaled, sybil
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
from varangian.core.messages import ToAll, ToEach

__all__ = [
    "Attack",
    "Insight",
    "Knowledge",
    "Poisons",
    "ToAll",
    "ToEach",
    "View",
    "alie",
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
    "not_finite",
    "null_space",
    "pulling",
    "scaled",
    "shrink",
    "sign_flip",
    "silent",
    "sleeper",
    "spectral_dissensus",
    "strongest",
    "sybil",
    "uniform",
]
