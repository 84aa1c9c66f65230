"""What Byzantine agents send."""

from varangian.attacks.attack import Attack, View
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
from varangian.messages import ToAll, ToEach

__all__ = [
    "Attack",
    "ToAll",
    "ToEach",
    "View",
    "crash",
    "gaussian",
    "not_finite",
    "pulling",
    "shrink",
    "silent",
    "sign_flip",
    "sleeper",
    "uniform",
]
