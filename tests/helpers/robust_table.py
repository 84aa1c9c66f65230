"""All robust functions that reduce many vectors to one, with the same signature: rule(vectors, f, mask=…)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from varangian import robust

RULES: dict[str, Callable[..., Any]] = {
    "mean": lambda x, f, **mask: robust.mean(x, **mask),
    "median": lambda x, f, **mask: robust.median(x, **mask),
    "trimmed_mean": robust.trimmed_mean,
    "mean_around_median": robust.mean_around_median,
    "geometric_median": lambda x, f, **mask: robust.geometric_median(x, **mask),
    "krum": robust.krum,
    "multi_krum": robust.multi_krum,
    "monna": robust.monna,
    "minimum_diameter_average": robust.minimum_diameter_average,
    "centerpoint": lambda x, f, **mask: robust.centerpoint(x, **mask),
    "self_centred_clipping": lambda x, f, **mask: robust.self_centred_clipping(x, 0, 1.0, **mask),
    "centred_clipping": lambda x, f, **mask: robust.centred_clipping(x, 1.0, iterations=3, **mask),
}
ROBUST = [name for name in RULES if name != "mean"]

WEIGHTS: dict[str, Callable[..., Any]] = {
    "geometric_median": lambda x, f, **mask: robust.geometric_median_weights(x, **mask),
    "krum": robust.krum_weights,
    "multi_krum": robust.multi_krum_weights,
    "monna": robust.monna_weights,
    "minimum_diameter_average": robust.minimum_diameter_average_weights,
    "self_centred_clipping": lambda x, f, **mask: robust.self_centred_clipping_weights(x, 0, 1.0, **mask),
}


def max_tolerated(name: str, f: int, n: int) -> int:
    """The largest number of Byzantine vectors, up to f, that the rule tolerates among n."""
    return max(0, min(f, (n - 3) // 2 if "krum" in name else (n - 1) // 2))
