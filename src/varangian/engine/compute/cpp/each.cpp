// A function of each agent's own numbers. Above this text stands lanes.h, and `compute`, spelled from the function: of
// matrices that begin somewhere, and of the numbers from one column of each to the next.

extern "C" void each(int64_t first, int64_t last, const int64_t* steps, void* const* begin) {
    const int64_t whole = first + (last - first) / LANES * LANES;
    for (int64_t at = first; at < whole; at += LANES) compute(steps, begin, at, LANES);
    if (whole < last) compute(steps, begin, whole, int(last - whole));
}
