// Applies a function of each agent's own numbers to the agents from `first` to `last`.
//
// The code that precedes this file: lanes.h, and `compute`, the translated function. `begin` has the addresses of its
// matrices, and `steps` the distance from one column of each matrix to the next.

extern "C" void each(int64_t first, int64_t last, const int64_t* steps, void* const* begin) {
    const int64_t whole = first + (last - first) / LANES * LANES;
    for (int64_t at = first; at < whole; at += LANES) compute(steps, begin, at, LANES);
    if (whole < last) compute(steps, begin, whole, int(last - whole));
}
