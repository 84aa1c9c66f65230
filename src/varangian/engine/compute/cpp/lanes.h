// Vectors of consecutive agents, and the functions that formulas need.
//
// The code that precedes this file defines `real`, the number type, and `word`, an integer type of the same size.
// Matrices are stored column by column, so that a vector can be read from memory directly.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

constexpr int LANES = 64 / sizeof(real);
typedef real Lanes __attribute__((vector_size(64)));
typedef word Mask __attribute__((vector_size(64)));
typedef int32_t Senders __attribute__((vector_size(4 * LANES)));
typedef uint8_t Flags __attribute__((vector_size(LANES)));

using limits = std::numeric_limits<real>;

// How many agents to work on at a time.
constexpr int tile_of(int agents) { return agents; }

static inline Lanes lanes(real value) { return Lanes{} + value; }

// `count` is less than a full vector only at the end of a table. Elsewhere it is a constant for the compiler.
template <class Vector, class Number> static inline Vector load(const Number* from, int count) {
    Vector out{};
    std::memcpy(&out, from, count * sizeof(Number));
    return out;
}

static inline Lanes load(const real* from, int count) { return load<Lanes>(from, count); }

static inline Mask load(const bool* from, int count) {
    return __builtin_convertvector(load<Flags>(reinterpret_cast<const uint8_t*>(from), count), Mask) != 0;
}

static inline void store(real* to, Lanes values, int count) { std::memcpy(to, &values, count * sizeof(real)); }

static inline void store(bool* to, Mask values, int count) {
    const Flags flags = __builtin_convertvector(values & 1, Flags);
    std::memcpy(to, &flags, count);
}

static inline Lanes gather(const real* from, Senders who) {
    Lanes out;
    for (int lane = 0; lane < LANES; lane++) out[lane] = from[who[lane]];
    return out;
}

static inline Mask gather(const bool* from, Senders who) {
    Mask out;
    for (int lane = 0; lane < LANES; lane++) out[lane] = -word(from[who[lane]]);
    return out;
}

// Which senders there are. Those that are not (−1) become 0, so that something can be read.
static inline Mask present(Senders& who) {
    const Senders there = who >= 0;
    who &= there;
    return __builtin_convertvector(there, Mask);
}

// If a or b is nan, so is the result.
static inline Lanes larger(Lanes a, Lanes b) { return (a > b) | (a != a) ? a : b; }
static inline Lanes smaller(Lanes a, Lanes b) { return (a < b) | (a != a) ? a : b; }
static inline Lanes magnitude(Lanes a) { return a < 0 ? -a : a; }
static inline Mask negated(Mask a) { return ~a; }
static inline bool all_true(Mask which) {
    word out = -1;
    for (int lane = 0; lane < LANES; lane++) out &= which[lane];
    return out;
}
static inline Mask is_finite(Lanes a) { return magnitude(a) < lanes(limits::infinity()); }

// a + w (b − a), starting from the nearer end: with w = 1, nothing of a must remain.
static inline Lanes between(Lanes a, Lanes b, Lanes w) {
    const Lanes far = b - a;
    return w < real(0.5) ? a + w * far : b - far * (1 - w);
}

#define EACH(function)                                                               \
    static inline Lanes each_##function(Lanes a) {                                   \
        for (int lane = 0; lane < LANES; lane++) a[lane] = std::function(a[lane]);   \
        return a;                                                                    \
    }
EACH(exp) EACH(log) EACH(log1p) EACH(expm1) EACH(sqrt) EACH(sin) EACH(cos) EACH(tanh)
