// The paper's rule for a loss that is a formula, in one pass over a table of agents: gather a message, judge it, smooth,
// filter, weigh and mix (eq. 3, 9, 10). `loss_based.combine` does the same in whole-tensor operations.
//
// The code that precedes this file: lanes.h; what tables.h needs; EVERYONE, whether all neighbours are kept; tables.h.

struct Table : Messages {
    const real *forgetting, *total, *mass;
    real *new_total, *new_mass;
};

struct Sums : Mixture<1024> {
    alignas(64) real own_risk[tile];
};

INLINED void begin_vector(const Table&, Sums&, int64_t, int, int) {}

template <bool ALL> INLINED void judge_vector(
    Complete<ALL> all, const Table& table, Sums& sums, int64_t slot, int64_t at, int here, int count) {
    const int64_t place = slot * table.agents + at;
    Lanes theta[PARAMETERS], sample[OBSERVED];
    const Mask there = load_messages(all, table, slot, at, count, theta);
    load_sample(table, at, count, sample);

    const Lanes judged = loss(theta, sample);
    const Mask heard = there & is_finite(judged);
    const Lanes observed = heard ? judged : Lanes{};

    // φ ← (1 − ν) φ + ν ℓ
    const Lanes pace = heard ? load(table.forgetting + at, count) : Lanes{};
    const Lanes seen = load(table.mass + place, count);
    const Lanes total = between(load(table.total + place, count), observed, pace);
    const Lanes mass = seen + pace * (1 - seen);
    store(table.new_total + place, total, count);
    store(table.new_mass + place, mass, count);

    const Lanes risk = heard ? total / mass : lanes(limits::infinity());
    if (slot == 0) store(sums.own_risk + here, risk < lanes(limits::max()) ? risk : lanes(limits::max()), LANES);
    const Mask kept = EVERYONE ? risk < lanes(limits::infinity()) : risk <= load(sums.own_risk + here, LANES);
    const Lanes least = lanes(limits::min() * table.slots);
    add_share(table, sums, place, here, count, kept ? 1 / (risk > least ? risk : least) : Lanes{}, theta);
}

INLINED void finish_vector(const Table& table, const Sums& sums, int64_t at, int here, int count) {
    const Mask nobody = load(sums.share + here, LANES) == 0;
    Lanes mixed[PARAMETERS];
    const Lanes scale = mixed_models(table, sums, at, here, count, nobody, mixed);
    scale_weights(table, at, count, scale, nobody ? lanes(1) : Lanes{});
    store_models(table, at, count, ~nobody, mixed);
}

template <bool ALL> static void judge_slot(
    Complete<ALL> all, const Table& table, Sums& sums, int64_t slot, int64_t first, int agents) {
    each_vector(first, agents, [&](int64_t at, int here, int count) __attribute__((always_inline)) {
        judge_vector(all, table, sums, slot, at, here, count);
    });
}
