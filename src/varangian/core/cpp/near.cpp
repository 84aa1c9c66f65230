// A network of near points in a plane, in linear time. See core/near.py for what the arrays hold.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" {

// The `most` nearest points within `radius` of the points first … last - 1, as their numbers; -1 after the last one.
//
// Points are sorted by cell of a square grid: cell c holds points begin[c] … begin[c + 1] - 1. Rings of cells around a
// point are searched until no cell further out can hold a nearer point.
void nearest(const double* x, const double* y, const int32_t* number, const int32_t* begin, int64_t columns,
             int64_t rows, double left, double bottom, double side, double radius, int64_t most, int64_t first,
             int64_t last, int32_t* near) {
    std::vector<double> far(most);
    std::vector<int32_t> who(most);
    const double limit = radius * radius;
    for (int64_t p = first; p < last; p++) {
        const double px = x[p], py = y[p];
        const int64_t column = std::min<int64_t>(columns - 1, (int64_t)((px - left) / side));
        const int64_t row = std::min<int64_t>(rows - 1, (int64_t)((py - bottom) / side));
        int64_t found = 0;
        double worst = limit;  // the squared distance that a point must be below
        const auto look = [&](int64_t from, int64_t to) {
            for (int64_t q = from; q < to; q++) {
                const double dx = x[q] - px, dy = y[q] - py, d = dx * dx + dy * dy;
                if (d >= worst || q == p) continue;
                int64_t at = found < most ? found++ : most - 1;
                for (; at && far[at - 1] > d; at--) far[at] = far[at - 1], who[at] = who[at - 1];
                far[at] = d, who[at] = number[q];
                if (found == most) worst = far[most - 1];
            }
        };
        const int64_t outermost = std::max(std::max(column, columns - 1 - column), std::max(row, rows - 1 - row));
        for (int64_t ring = 0; ring <= outermost; ring++) {
            // Every point of this ring or beyond is at least so far away. A cell's edge is known up to rounding.
            const double away = (ring - 1 - 1e-6) * side;
            if (ring > 1 && away * away >= worst) break;
            const int64_t low = std::max<int64_t>(0, column - ring), high = std::min(columns - 1, column + ring);
            for (int64_t r = std::max<int64_t>(0, row - ring); r <= std::min(rows - 1, row + ring); r++) {
                const int32_t* cells = begin + r * columns;
                if (r == row - ring || r == row + ring) {
                    look(cells[low], cells[high + 1]);
                } else {
                    if (low == column - ring) look(cells[low], cells[low + 1]);
                    if (high == column + ring && high > low) look(cells[high], cells[high + 1]);
                }
            }
        }
        int32_t* out = near + p * most;
        for (int64_t at = 0; at < most; at++) out[at] = at < found ? who[at] : -1;
    }
}

// Pairs (lower, higher), each once and sorted, from `near`. Pairs of agent a are higher[start[a]] … higher[start[a + 1]].
// Returns their number. `start` has agents + 2 entries, `higher` room for all of `near`.
int64_t pairs(const int32_t* number, const int32_t* near, int64_t agents, int64_t most, int64_t* start,
              int32_t* higher) {
    std::fill(start, start + agents + 2, 0);
    const auto each = [&](auto&& use) {
        for (int64_t p = 0; p < agents; p++) {
            const int32_t me = number[p];
            for (int64_t at = p * most; at < (p + 1) * most && near[at] >= 0; at++)
                use(std::min(me, near[at]), std::max(me, near[at]));
        }
    };
    each([&](int32_t low, int32_t) { start[low + 2]++; });
    for (int64_t a = 0; a < agents; a++) start[a + 2] += start[a + 1];
    each([&](int32_t low, int32_t high) { higher[start[low + 1]++] = high; });  // start[a + 1] is now the end of a
    int64_t kept = 0, from = 0;
    for (int64_t a = 0; a < agents; a++) {
        const int64_t to = start[a + 1];
        std::sort(higher + from, higher + to);
        start[a] = kept;
        for (int64_t at = from; at < to; at++)
            if (at == from || higher[at] != higher[at - 1]) higher[kept++] = higher[at];
        from = to;
    }
    start[agents] = kept;
    return kept;
}

// Take pairs in the given order while both agents have room. `taken` says which, and `room` is what is left.
void take(const int32_t* lower, const int32_t* higher, const int64_t* order, int64_t count, int32_t* room,
          uint8_t* taken) {
    constexpr int64_t AHEAD = 16;
    for (int64_t at = 0; at < count; at++) {
        if (at + AHEAD < count) {
            __builtin_prefetch(lower + order[at + AHEAD]);
            __builtin_prefetch(higher + order[at + AHEAD]);
        }
        const int64_t pair = order[at];
        int32_t &one = room[lower[pair]], &other = room[higher[pair]];
        const bool both = one > 0 && other > 0;
        taken[pair] = both;
        one -= both, other -= both;
    }
}

// The taken pairs as a graph by receiver: agent a hears senders[offsets[a]] … senders[offsets[a + 1] - 1], itself first.
// `offsets` has agents + 1 entries, and on entry offsets[a + 1] is the number of pairs of agent a.
void rows(const int32_t* lower, const int32_t* higher, const uint8_t* taken, int64_t count, int64_t agents,
          int64_t* offsets, int64_t* senders) {
    std::vector<int64_t> next(agents);
    offsets[0] = 0;
    for (int64_t a = 0; a < agents; a++) {
        senders[offsets[a]] = a;
        next[a] = offsets[a] + 1;
        offsets[a + 1] += next[a];
    }
    // Pairs come in the order of their lower agent, so every row is filled in the order of its senders.
    for (int64_t pair = 0; pair < count; pair++) {
        if (!taken[pair]) continue;
        senders[next[lower[pair]]++] = higher[pair];
        senders[next[higher[pair]]++] = lower[pair];
    }
}
}
