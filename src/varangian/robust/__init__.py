"""Robust functions on plain stacks of vectors, without our trainer.

Every function takes a stack `(n, d)` of torch or NumPy and returns the same kind, or padded neighbourhoods
`(..., n, d)` with a `mask` of who is present, slot 0 being the receiver itself, and returns `(..., d)`. They all keep
the same promises:

- Floats of 16, 32 and 64 bits; half types are computed in float32 and come back as they went in. Nothing is written
  to what goes in, and no gradient flows through.
- A vector with nan or inf counts as absent and as one of the f: the result is that of the others. Where nobody is
  present it is vector 0, made finite. Finite vectors of any size never make a result that is not finite.
- f out of bounds is an error for a plain stack. With a mask, or with f a tensor of one number for each neighbourhood,
  it is lowered to what the number present can bear.
- With a mask nothing waits for an accelerator. Memory beyond the input is at most twice the input.

Selection rules also have `…_weights`: the convex weights w with result = w @ vectors, in the type computed in.
"""

from varangian.robust.centerpoint import centerpoint
from varangian.robust.clipping import (
    centred_clipping,
    clip,
    self_centred_clipping,
    self_centred_clipping_weights,
)
from varangian.robust.coordinatewise import mean, mean_around_median, median, trimmed_mean
from varangian.robust.geometric import geometric_median, geometric_median_weights
from varangian.robust.gram import squared_distances, squared_distances_to
from varangian.robust.selection import (
    krum,
    krum_weights,
    minimum_diameter_average,
    minimum_diameter_average_weights,
    monna,
    monna_weights,
    multi_krum,
    multi_krum_weights,
    nearest_neighbour_mixing,
    nearest_neighbour_mixing_weights,
)

__all__ = [
    "centerpoint",
    "centred_clipping",
    "clip",
    "geometric_median",
    "geometric_median_weights",
    "krum",
    "krum_weights",
    "mean",
    "mean_around_median",
    "median",
    "minimum_diameter_average",
    "minimum_diameter_average_weights",
    "monna",
    "monna_weights",
    "multi_krum",
    "multi_krum_weights",
    "nearest_neighbour_mixing",
    "nearest_neighbour_mixing_weights",
    "self_centred_clipping",
    "self_centred_clipping_weights",
    "squared_distances",
    "squared_distances_to",
    "trimmed_mean",
]
