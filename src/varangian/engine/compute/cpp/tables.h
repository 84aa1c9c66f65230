// What loops over tables of agents share: messages, mixing, and the order of the work.
//
// The code that precedes this file: lanes.h, or lane.h on a GPU; the number of PARAMETERS; the sizes of the PARTS of a sample; and
// `loss(theta, sample)`, translated from the model. The code that follows it is a rule: what it remembers, as a `Table`;
// what it adds up over slots, as `Sums`; `begin_vector` and `finish_vector` for some agents; and `judge_slot` for all agents
// of a tile, from agent `first` of the table on. Agent `at` of the table is agent `here` of its tile. Tables are stored slot
// by slot.

constexpr int NUMBER_OF_PARTS = sizeof(PARTS) / sizeof(*PARTS);

constexpr int observed() {
    int sum = 0;
    for (int part = 0; part < NUMBER_OF_PARTS; part++) sum += PARTS[part];
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
    const int32_t* senders;      // −1 where nothing is heard
    const bool* arrived;         // which rows are valid messages; null if all are
    const bool* normal;
    const bool* fresh;           // which agents have a new sample; null if all have. To the others, everyone is silent
    real* weights;
    Matrix rows, own, models, sample[NUMBER_OF_PARTS];
};

// TILE is how many agents to work on at a time: few enough that their sums stay in the L1 cache, and enough to read long
// consecutive stretches of memory in each slot, which is fast.
template <int TILE> struct Mixture {
    static constexpr int tile = tile_of(TILE);
    alignas(64) real share[tile], mixed[PARAMETERS][tile];
};

INLINED void load_models(const Matrix& from, int64_t at, int count, Lanes* theta) {
    for (int p = 0; p < PARAMETERS; p++) theta[p] = load(from.column(p) + at, count);
}

INLINED void load_sample(const Messages& table, int64_t at, int count, Lanes* sample) {
    int number = 0;
    for (int part = 0; part < NUMBER_OF_PARTS; part++)
        for (int column = 0; column < PARTS[part]; column++)
            sample[number++] = load(table.sample[part].column(column) + at, count);
}

INLINED Mask have_sample(const Messages& table, int64_t at, int count) {
    return table.fresh ? load(table.fresh + at, count) : lanes(0) == lanes(0);
}

// Whether ALL messages have arrived and all agents have a new sample.
template <bool ALL> struct Complete {};

// Gather the models that some agents hear in one slot. Returns who hears one; the models of the others mean nothing.
template <bool ALL> INLINED Mask load_messages(
    Complete<ALL>, const Messages& table, int64_t slot, int64_t at, int count, Lanes* theta) {
    Senders who = load<Senders>(table.senders + slot * table.agents + at, count);
    Mask there = present(who);
    if (!ALL && table.arrived) there &= gather(table.arrived, who);
    if (!ALL) there &= have_sample(table, at, count);
    for (int p = 0; p < PARAMETERS; p++) theta[p] = gather(table.rows.column(p), who);
    return there;
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
    const Lanes sum = nobody ? lanes(1) : load(sums.share + here, LANES), scale = 1 / sum;
    Mask fine = is_finite(scale);
    for (int p = 0; p < PARAMETERS; p++) {
        mixed[p] = load(sums.mixed[p] + here, LANES) * scale;
        fine &= is_finite(mixed[p]);
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
        load_messages(Complete<false>{}, table, slot, at, count, theta);
        for (int p = 0; p < PARAMETERS; p++) mixed[p] += weight * theta[p];
    }
    return lanes(1);
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
    for (int p = 0; p < PARAMETERS; p++) taken &= is_finite(models[p]);
    for (int p = 0; p < PARAMETERS; p++)
        store(table.models.column(p) + at, taken ? models[p] : load(table.own.column(p) + at, count), count);
}

// Apply a function of (at, here, count) to the agents of a tile.
template <class Step> INLINED void each_vector(int64_t first, int agents, Step step) {
    const int whole = agents / LANES * LANES;
    for (int here = 0; here < whole; here += LANES) step(first + here, here, LANES);
    if (whole < agents) step(first + whole, whole, agents - whole);
}

// The whole rule for the agents of a table from `first` to `last`.
template <class Sums, class Table> static void combine_agents(const Table& table, int64_t first, int64_t last) {
    Sums sums;
    for (; first < last; first += Sums::tile) {
        const int agents = last - first < Sums::tile ? int(last - first) : Sums::tile;
        for (int here = 0; here < Sums::tile; here++) sums.share[here] = 0;
        for (int p = 0; p < PARAMETERS; p++)
            for (int here = 0; here < Sums::tile; here++) sums.mixed[p][here] = 0;
        each_vector(first, agents, [&](int64_t at, int here, int count) __attribute__((always_inline)) {
            begin_vector(table, sums, at, here, count);
        });
        for (int64_t slot = 0; slot < table.slots; slot++)
            if (table.arrived || table.fresh)
                judge_slot(Complete<false>{}, table, sums, slot, first, agents);
            else
                judge_slot(Complete<true>{}, table, sums, slot, first, agents);
        each_vector(first, agents, [&](int64_t at, int here, int count) __attribute__((always_inline)) {
            finish_vector(table, sums, at, here, count);
        });
    }
}
