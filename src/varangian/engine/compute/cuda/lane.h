// One agent per thread of a GPU: what lanes.h does for a vector of agents, for a single one.
//
// The code that precedes this file defines `real`, the number type, its limits LARGEST and SMALLEST, and MOST_NUMBERS.

#ifdef __CUDACC_RTC__
typedef int int32_t;
typedef long long int64_t;
struct limits {
    static real infinity() { return __int_as_float(0x7f800000); }
    static real quiet_NaN() { return __int_as_float(0x7fffffff); }
    static real max() { return LARGEST; }
    static real min() { return SMALLEST; }
};
#else  // to check it on a CPU
#include <cmath>
#include <cstdint>
#include <limits>
using limits = std::numeric_limits<real>;
#endif

// What a loop is given at its start.
struct Numbers {
    int64_t numbers[MOST_NUMBERS];
};

constexpr int LANES = 1;
typedef real Lanes;
typedef int32_t Senders;

// Unlike for bool, ~ is its opposite.
struct Mask {
    bool on;
    Mask(bool on = false) : on(on) {}
    explicit operator bool() const { return on; }
    Mask operator~() const { return !on; }
    Mask& operator&=(Mask other) { return *this = on && other.on; }
    friend Mask operator&(Mask a, Mask b) { return a.on && b.on; }
    friend Mask operator|(Mask a, Mask b) { return a.on || b.on; }
};

// How many agents to work on at a time.
constexpr int tile_of(int) { return 1; }

static inline Lanes lanes(real value) { return value; }
template <class Vector, class Number> static inline Vector load(const Number* from, int) { return *from; }
static inline Lanes load(const real* from, int) { return *from; }
static inline Mask load(const bool* from, int) { return *from; }
static inline void store(real* to, Lanes value, int) { *to = value; }
static inline void store(bool* to, Mask value, int) { *to = value.on; }
static inline Lanes gather(const real* from, Senders who) { return from[who]; }
static inline Mask gather(const bool* from, Senders who) { return from[who]; }

// Whether there is a sender. If not (−1), it becomes 0, so that something can be read.
static inline Mask present(Senders& who) {
    const bool there = who >= 0;
    who = there ? who : 0;
    return there;
}

// If a or b is nan, so is the result.
static inline Lanes larger(Lanes a, Lanes b) { return a > b || a != a ? a : b; }
static inline Lanes smaller(Lanes a, Lanes b) { return a < b || a != a ? a : b; }
static inline Lanes magnitude(Lanes a) { return a < 0 ? -a : a; }
static inline Mask negated(Mask a) { return ~a; }
static inline bool all_true(Mask which) { return which.on; }
static inline Mask is_finite(Lanes a) { return magnitude(a) < limits::infinity(); }

// a + w (b − a), starting from the nearer end: with w = 1, nothing of a must remain.
static inline Lanes between(Lanes a, Lanes b, Lanes w) {
    const Lanes far = b - a;
    return w < real(0.5) ? a + w * far : b - far * (1 - w);
}

#define EACH(function) \
    static inline Lanes each_##function(Lanes a) { return ::function(a); }
EACH(exp) EACH(log) EACH(log1p) EACH(expm1) EACH(sqrt) EACH(sin) EACH(cos) EACH(tanh)
