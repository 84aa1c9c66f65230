// What loops over tables of agents share: messages, mixing, and the order of the work.
//
// The code that precedes this file: lanes.h; the number of PARAMETERS; the sizes of the PARTS of a sample; and
// `loss(theta, sample)`, translated from the model. The code that follows it is a rule: what it remembers, as a `Table`;
// what it adds up over slots, as `Sums`; `begin_vector` and `finish_vector` for some agents; and `judge_slot` for all agents
// of a tile, from agent `first` of the table on. Agent `at` of the table is agent `here` of its tile. Tables are stored slot
// by slot.

constexpr int observed() {
    int sum = 0;
    for (int part : PARTS) sum += part;
    return sum;
}
constexpr int OBSERVED = observed();

#define INLINED static inline __attribute__((always_inline))

struct Matrix {
    real* begin;
    int64_t step;  // the distance from one column to the next
    real* column(int number) const { return begin + number * step; }
};

struct Messages {
    int64_t agents, slots;
    const int32_t* senders;  // −1 where nothing is heard
    const bool* normal;
    real* weights;
    Matrix rows, own, models, sample[std::size(PARTS)];
};

// TILE is how many agents to work on at a time: few enough that their sums stay in the L1 cache, and enough to read long
// consecutive stretches of memory in each slot, which is fast.
template <int TILE> struct Mixture {
    static constexpr int tile = TILE;
    alignas(64) real share[TILE], mixed[PARAMETERS][TILE];
};

INLINED void load_models(const Matrix& from, int64_t at, int count, Lanes* theta) {
    for (int p = 0; p < PARAMETERS; p++) theta[p] = load(from.column(p) + at, count);
}

INLINED void load_sample(const Messages& table, int64_t at, int count, Lanes* sample) {
    int number = 0;
    for (int part = 0; part < int(std::size(PARTS)); part++)
        for (int column = 0; column < PARTS[part]; column++)
            sample[number++] = load(table.sample[part].column(column) + at, count);
}

// Gather the models that some agents hear in one slot. Returns who hears one; the models of the others mean nothing.
INLINED Mask load_messages(const Messages& table, int64_t place, int count, Lanes* theta) {
    Senders who = load<Senders>(table.senders + place, count);
    const Senders there = who >= 0;
    who &= there;
    for (int p = 0; p < PARAMETERS; p++) theta[p] = gather(table.rows.column(p), who);
    return __builtin_convertvector(there, Mask);
}

// Keep the share of a model as its weight for now, and add it to the mixture.
template <class Sums> INLINED void add_share(
    const Messages& table, Sums& sums, int64_t place, int here, int count, Lanes share, const Lanes* theta) {
    store(table.weights + place, share, count);
    store(sums.share + here, load(sums.share + here, LANES) + share, LANES);
    for (int p = 0; p < PARAMETERS; p++)
        store(sums.mixed[p] + here, load(sums.mixed[p] + here, LANES) + share * theta[p], LANES);
}

// The weighted means of models, or zeros where no model has a share. Returns the factor that makes shares weights.
template <class Sums> INLINED Lanes mixed_models(
    const Messages& table, const Sums& sums, int64_t at, int here, int count, Mask nobody, Lanes* mixed) {
    const Lanes sum = nobody ? all(1) : load(sums.share + here, LANES), scale = 1 / sum;
    Mask fine = finite(scale);
    for (int p = 0; p < PARAMETERS; p++) {
        mixed[p] = load(sums.mixed[p] + here, LANES) * scale;
        fine &= finite(mixed[p]);
    }
    if (all_true(fine)) return scale;
    // Products of large shares and large models may overflow, and so may one over the sum of tiny shares. Products of
    // weights and models do not, so mix again with weights.
    for (int p = 0; p < PARAMETERS; p++) mixed[p] = Lanes{};
    for (int64_t slot = 0; slot < table.slots; slot++) {
        const int64_t place = slot * table.agents + at;
        const Lanes weight = load(table.weights + place, count) / sum;
        store(table.weights + place, weight, count);
        Lanes theta[PARAMETERS];
        load_messages(table, place, count, theta);
        for (int p = 0; p < PARAMETERS; p++) mixed[p] += weight * theta[p];
    }
    return all(1);
}

// Multiply the weights of some agents by a factor, and add to the weights of their own models.
INLINED void scale_weights(const Messages& table, int64_t at, int count, Lanes factor, Lanes to_own) {
    for (int64_t slot = 0; slot < table.slots; slot++) {
        real* place = table.weights + slot * table.agents + at;
        const Lanes weight = load(place, count) * factor;
        store(place, slot == 0 ? weight + to_own : weight, count);
    }
}

// Store the models of the agents that take new ones, if these are finite. All others keep their own.
INLINED void store_models(const Messages& table, int64_t at, int count, Mask taken, const Lanes* models) {
    taken &= load(table.normal + at, count);
    for (int p = 0; p < PARAMETERS; p++) taken &= finite(models[p]);
    for (int p = 0; p < PARAMETERS; p++)
        store(table.models.column(p) + at, taken ? models[p] : load(table.own.column(p) + at, count), count);
}

// Apply a function of (at, here, count) to the agents of a tile.
template <class Step> INLINED void each_vector(int64_t first, int agents, Step step) {
    const int whole = agents / LANES * LANES;
    for (int here = 0; here < whole; here += LANES) step(first + here, here, LANES);
    if (whole < agents) step(first + whole, whole, agents - whole);
}

template <class Sums, class Table> static void combine_table(const Table& table) {
    Sums sums;
    for (int64_t first = 0; first < table.agents; first += Sums::tile) {
        const int agents = int(std::min<int64_t>(Sums::tile, table.agents - first));
        std::memset(sums.share, 0, sizeof sums.share);
        std::memset(sums.mixed, 0, sizeof sums.mixed);
        each_vector(first, agents, [&](int64_t at, int here, int count) __attribute__((always_inline)) {
            begin_vector(table, sums, at, here, count);
        });
        for (int64_t slot = 0; slot < table.slots; slot++) judge_slot(table, sums, slot, first, agents);
        each_vector(first, agents, [&](int64_t at, int here, int count) __attribute__((always_inline)) {
            finish_vector(table, sums, at, here, count);
        });
    }
}

// Several threads may call this at once. Each takes the next table until none is left.
template <class Sums, class Table> static void combine_tables(const Table* tables, int64_t count, int64_t* taken) {
    for (;;) {
        const int64_t next = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
        if (next >= count) return;
        combine_table<Sums>(tables[next]);
    }
}
