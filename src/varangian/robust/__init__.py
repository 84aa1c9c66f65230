"""Robust functions on plain stacks of vectors, for use without our trainer.

A function takes one of two inputs, as a torch or NumPy array, and returns the same kind of array:

- A stack `(n, d)` of n vectors. The result is `(d,)`.
- Padded neighbourhoods `(..., n, d)` with a `mask` that says which vectors are present. Slot 0 is the receiver itself.
  The result is `(..., d)`.

All functions keep the same promises:

- Floats of 16, 32 and 64 bits are accepted. Half types are computed in float32 and returned in their own type. The
  input is not changed, and no gradient flows through.
- A vector with nan or inf counts as absent, and as one of the f Byzantine vectors. If no vector is present, the result
  is vector 0 with finite numbers in place of nan and inf. Finite input of any size gives a finite result.
- For a plain stack, an f out of bounds is an error. With a mask, or with a tensor of one f per neighbourhood, f is
  lowered to what the number of present vectors can tolerate.
- With a mask, nothing waits for an accelerator. Memory beyond the input is at most twice the input.

Functions that select vectors also have a `…_weights` variant. It returns the convex weights w with result = w @
vectors, in the type of the computation.
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
