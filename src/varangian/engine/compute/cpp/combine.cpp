// The paper's rule for a loss that is a formula, in one pass over a table of agents: gather a message, judge it, smooth,
// filter, weigh and mix (eq. 3, 9, 10). `loss_based.combine` does the same in whole-tensor operations.
//
// The code that precedes this file: lanes.h; the number of PARAMETERS; the sizes of the PARTS of a sample; EVERYONE,
// whether all neighbours are kept; and `loss(theta, sample)`, translated from the model. Tables are stored slot by slot.

constexpr int observed() {
    int sum = 0;
    for (int part : PARTS) sum += part;
    return sum;
}
constexpr int OBSERVED = observed();

// How many agents to work on at a time: few enough that their sums stay in the L1 cache, and enough to read long
// consecutive stretches of memory in each slot, which is fast.
constexpr int TILE = 1024;

struct Matrix {
    real* begin;
    int64_t step;  // the distance from one column to the next
    real* column(int number) const { return begin + number * step; }
};

struct Table {
    int64_t agents, slots;
    const int32_t* senders;  // −1 where nothing is heard
    const bool* normal;
    const real *forgetting, *total, *mass;
    real *new_total, *new_mass, *weights;
    Matrix rows, own, models, sample[std::size(PARTS)];
};

struct Sums {
    alignas(64) real own_risk[TILE], share[TILE], mixed[PARAMETERS][TILE];
};

// Prefetch a slot of some agents. The processor itself prefetches within a slot, but not across slots.
static inline void prefetch_slot(const Table& table, int64_t place) {
    constexpr int READ = 0, WRITE = 1, NEAR = 2;
    __builtin_prefetch(table.senders + place, READ, NEAR);
    __builtin_prefetch(table.total + place, READ, NEAR);
    __builtin_prefetch(table.mass + place, READ, NEAR);
    __builtin_prefetch(table.new_total + place, WRITE, NEAR);
    __builtin_prefetch(table.new_mass + place, WRITE, NEAR);
    __builtin_prefetch(table.weights + place, WRITE, NEAR);
}

// Judge and weigh one slot of `count` agents. The first of them is agent `at` of the table and agent `here` of its tile.
static inline __attribute__((always_inline)) void judge_slot(
    const Table& table, Sums& sums, int64_t slot, int64_t at, int here, int count) {
    const int64_t place = slot * table.agents + at;
    prefetch_slot(table, place + table.agents);
    Lanes theta[PARAMETERS], sample[OBSERVED];
    Senders who = load<Senders>(table.senders + place, count);
    const Senders there = who >= 0;
    who &= there;
    for (int p = 0; p < PARAMETERS; p++) theta[p] = gather(table.rows.column(p), who);
    int number = 0;
    for (int part = 0; part < int(std::size(PARTS)); part++)
        for (int column = 0; column < PARTS[part]; column++)
            sample[number++] = load(table.sample[part].column(column) + at, count);

    const Lanes judged = loss(theta, sample);
    const Mask heard = __builtin_convertvector(there, Mask) & finite(judged);
    const Lanes observed = heard ? judged : Lanes{};

    // φ ← (1 − ν) φ + ν ℓ, starting from the nearer end: with ν = 1, nothing of the old φ must remain.
    const Lanes pace = heard ? load(table.forgetting + at, count) : Lanes{};
    const Lanes before = load(table.total + place, count), seen = load(table.mass + place, count);
    const Lanes far = observed - before;
    const Lanes total = pace < real(0.5) ? before + pace * far : observed - far * (1 - pace);
    const Lanes mass = seen + pace * (1 - seen);
    store(table.new_total + place, total, count);
    store(table.new_mass + place, mass, count);

    const Lanes risk = heard ? total / mass : all(limits::infinity());
    if (slot == 0) store(sums.own_risk + here, risk < all(limits::max()) ? risk : all(limits::max()), LANES);
    const Mask kept = EVERYONE ? risk < all(limits::infinity()) : risk <= load(sums.own_risk + here, LANES);
    const Lanes least = all(limits::min() * table.slots);
    const Lanes share = kept ? 1 / (risk > least ? risk : least) : Lanes{};
    store(table.weights + place, share, count);
    store(sums.share + here, load(sums.share + here, LANES) + share, LANES);
    for (int p = 0; p < PARAMETERS; p++)
        store(sums.mixed[p] + here, load(sums.mixed[p] + here, LANES) + share * theta[p], LANES);
}

// Finish the agents of a tile: scale their weights to sum to one, and store their models, if these are finite.
static inline __attribute__((always_inline)) void finish_tile(
    const Table& table, const Sums& sums, int64_t at, int here, int count) {
    const Lanes sum = load(sums.share + here, LANES);
    const Mask nobody = sum == 0;
    const Lanes scale = 1 / (nobody ? all(1) : sum);
    Lanes mixed[PARAMETERS];
    Mask fine = finite(scale);
    for (int p = 0; p < PARAMETERS; p++) {
        mixed[p] = load(sums.mixed[p] + here, LANES) * scale;
        fine &= finite(mixed[p]);
    }
    const bool overflowed = !all_true(fine);

    for (int64_t slot = 0; slot < table.slots; slot++) {
        real* place = table.weights + slot * table.agents + at;
        Lanes weight = overflowed ? load(place, count) / (nobody ? all(1) : sum) : load(place, count) * scale;
        if (slot == 0) weight += nobody ? all(1) : Lanes{};
        store(place, weight, count);
    }
    // Shares of almost perfect models are huge, so that their products with models may overflow; and so may one over the
    // sum of tiny shares. Products of the scaled weights do not overflow, so mix again with them.
    if (overflowed)
        for (int p = 0; p < PARAMETERS; p++) {
            mixed[p] = Lanes{};
            for (int64_t slot = 0; slot < table.slots; slot++) {
                const int64_t place = slot * table.agents + at;
                Senders who = load<Senders>(table.senders + place, count);
                who &= who >= 0;
                mixed[p] += load(table.weights + place, count) * gather(table.rows.column(p), who);
            }
        }

    Mask taken = load(table.normal + at, count) & ~nobody;
    for (int p = 0; p < PARAMETERS; p++) taken &= finite(mixed[p]);
    for (int p = 0; p < PARAMETERS; p++)
        store(table.models.column(p) + at, taken ? mixed[p] : load(table.own.column(p) + at, count), count);
}

static void combine_table(const Table& table) {
    Sums sums;
    for (int64_t first = 0; first < table.agents; first += TILE) {
        const int some = int(std::min<int64_t>(TILE, table.agents - first)), whole = some / LANES * LANES;
        std::memset(sums.share, 0, sizeof sums.share);
        std::memset(sums.mixed, 0, sizeof sums.mixed);
        for (int64_t slot = 0; slot < table.slots; slot++) {
            for (int here = 0; here < whole; here += LANES) judge_slot(table, sums, slot, first + here, here, LANES);
            if (whole < some) judge_slot(table, sums, slot, first + whole, whole, some - whole);
        }
        for (int here = 0; here < whole; here += LANES) finish_tile(table, sums, first + here, here, LANES);
        if (whole < some) finish_tile(table, sums, first + whole, whole, some - whole);
    }
}

// Several threads may call this at once. Each takes the next table until none is left.
extern "C" void combine(const Table* tables, int64_t count, int64_t* taken) {
    for (;;) {
        const int64_t next = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
        if (next >= count) return;
        combine_table(tables[next]);
    }
}
