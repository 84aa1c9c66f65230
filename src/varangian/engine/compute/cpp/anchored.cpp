// The rule `anchored` for a loss that is a formula, in one pass over a table of agents: gather a message, judge it,
// compare it with the anchor and with the own model, weigh and mix; then go there on a leash. `anchored.combine` does
// the same in whole-tensor operations.
//
// The code that precedes this file: lanes.h; what tables.h needs; the number of MEMORIES; and tables.h.

struct Settings {
    real forgetting[MEMORIES], significance[MEMORIES];
    real largest, tie, least, unit_forgets, distance_forgets, own_share, sudden, remembered, trust, reach;
};

// Numbers per agent; times per (slot, agent); and mean and variance per (memory, slot, agent).
struct Memory {
    real *age, *unit, *slope, *bend, *distance, *times, *mean, *variance;
};

struct Table : Messages {
    const Settings* settings;
    Matrix anchor, untrained;  // the anchors after training and before it
    Memory before, after;
};

struct Sums : Mixture<256> {
    alignas(64) real alone[tile], inverse[tile], own[tile];
    // Of the slot at hand: the messages, the differences, and one over the number of comparisons, or zero.
    alignas(64) real theta[PARAMETERS][tile], excess[tile], plain[tile];
};

// How much a loss is above the anchor's, in the unit.
static inline Lanes excess_of(const Table& table, const Sums& sums, int here, Lanes loss) {
    const Lanes excess = (loss - load(sums.alone + here, LANES)) * load(sums.inverse + here, LANES);
    return larger(excess, lanes(table.settings->least));
}

// The anchor's loss, and the unit.
INLINED void begin_vector(const Table& table, Sums& sums, int64_t at, int here, int count) {
    Lanes anchor[PARAMETERS], sample[OBSERVED];
    load_models(table.anchor, at, count, anchor);
    load_sample(table, at, count, sample);
    const Lanes alone = loss(anchor, sample);
    const Mask known = is_finite(alone) & have_sample(table, at, count);
    const Lanes age = load(table.before.age + at, count) + (known ? lanes(0.25) : Lanes{});
    const Lanes unit = load(table.before.unit + at, count);
    const Lanes newest = larger(1 / age, lanes(table.settings->unit_forgets));
    const Lanes after = known ? between(unit, magnitude(alone), newest) : unit;
    store(table.after.age + at, age, count);
    store(table.after.unit + at, after, count);
    // Above −∞, every loss is infinitely bad.
    store(sums.alone + here, known ? alone : lanes(-limits::infinity()), LANES);
    store(sums.inverse + here, 1 / larger(after, lanes(limits::min())), LANES);
}

// Judge a message, and count the comparison.
template <bool ALL> INLINED void judge_vector(
    Complete<ALL> all, const Table& table, Sums& sums, int64_t slot, int64_t at, int here, int count) {
    const int64_t place = slot * table.agents + at;
    Lanes theta[PARAMETERS], sample[OBSERVED];
    const Mask there = load_messages(all, table, slot, at, count, theta);
    load_sample(table, at, count, sample);
    const Lanes judged = loss(theta, sample);
    const Lanes excess = excess_of(table, sums, here, there & is_finite(judged) ? judged : lanes(limits::infinity()));
    const Mask seen = excess < lanes(limits::infinity());
    const Lanes times = load(table.before.times + place, count) + (seen ? lanes(1) : Lanes{});
    store(table.after.times + place, times, count);
    for (int p = 0; p < PARAMETERS; p++) store(sums.theta[p] + here, theta[p], LANES);
    store(sums.excess + here, excess, LANES);
    store(sums.plain + here, seen ? 1 / times : Lanes{}, LANES);
}

// Smooth the differences in every memory, and weigh those who are not significantly worse.
INLINED void compare_vector(const Table& table, Sums& sums, int64_t slot, int64_t at, int here, int count) {
    const Settings& settings = *table.settings;
    const int64_t place = slot * table.agents + at;
    const Lanes excess = load(sums.excess + here, LANES), plain = load(sums.plain + here, LANES);
    Lanes counted = excess < settings.largest ? excess : lanes(settings.largest);
    counted = counted > -settings.largest ? counted : lanes(-settings.largest);
    if (slot == 0) store(sums.own + here, counted, LANES);
    const Mask seen = plain > 0;
    Mask kept = excess <= settings.sudden;
    Lanes share, theta[PARAMETERS];
    for (int memory = 0; memory < MEMORIES; memory++) {
        const bool last = memory == MEMORIES - 1;
        const int64_t entry = memory * table.slots * table.agents + place;
        const Lanes nu = seen ? lanes(settings.forgetting[memory]) : Lanes{};
        const Lanes pace = nu > plain ? nu : plain;
        // In the last series, the agent's own model takes the place of the anchor.
        if (last) counted -= load(sums.own + here, LANES);
        const Lanes before = load(table.before.mean + entry, count), change = counted - before;
        const Lanes step = pace * change, mean = before + step;
        Lanes variance = load(table.before.variance + entry, count) + step * change;
        variance -= variance * pace;
        store(table.after.mean + entry, mean, count);
        store(table.after.variance + entry, variance, count);
        const Lanes error = each_sqrt((variance < 1 ? variance : lanes(1)) * pace);
        const Lanes slack = error * settings.significance[memory] + settings.tie;
        if (last)
            share = 1 - mean / slack;
        else
            kept &= mean <= slack;
    }
    share = share < 1 ? share : lanes(1);
    share = kept & (share > 0) ? share : Lanes{};
    for (int p = 0; p < PARAMETERS; p++) theta[p] = load(sums.theta[p] + here, LANES);
    add_share(table, sums, place, here, count, slot == 0 ? share * settings.own_share : share, theta);
}

// From the anchor towards the mean of the models kept.
INLINED void finish_vector(const Table& table, const Sums& sums, int64_t at, int here, int count) {
    const Settings& settings = *table.settings;
    const Mask nobody = load(sums.share + here, LANES) == 0;
    Lanes candidate[PARAMETERS], anchor[PARAMETERS], own[PARAMETERS], untrained[PARAMETERS], sample[OBSERVED];
    const Lanes scale = mixed_models(table, sums, at, here, count, nobody, candidate);
    load_models(table.anchor, at, count, anchor);
    load_models(table.untrained, at, count, untrained);
    load_models(table.own, at, count, own);
    load_sample(table, at, count, sample);

    // Not much farther from the own model than usual.
    Lanes stepped = Lanes{}, distance = Lanes{};
    for (int p = 0; p < PARAMETERS; p++) {
        stepped += (anchor[p] - untrained[p]) * (anchor[p] - untrained[p]);
        distance += (candidate[p] - own[p]) * (candidate[p] - own[p]);
    }
    const Lanes usual = load(table.before.distance + at, count);
    const Lanes most = usual == 0 ? lanes(limits::infinity()) : larger(usual, stepped) * settings.reach;
    distance = smaller(larger(distance, lanes(limits::min())), lanes(limits::max()));
    const Lanes allowed = smaller(distance, most), part = each_sqrt(allowed / distance);
    Lanes towards[PARAMETERS], halfway[PARAMETERS];
    for (int p = 0; p < PARAMETERS; p++) {
        towards[p] = own[p] + (candidate[p] - own[p]) * part;
        halfway[p] = between(anchor[p], towards[p], lanes(0.5));
    }

    // The parabola of this round. Between here and there may be a hill. A comparison with nan is false.
    Lanes half = excess_of(table, sums, here, loss(halfway, sample));
    Lanes whole = excess_of(table, sums, here, loss(towards, sample));
    half = nobody ? Lanes{} : half;
    whole = nobody ? Lanes{} : whole;
    const Mask level = half <= settings.sudden;
    const Lanes past = settings.remembered * load(table.before.slope + at, count);
    const Lanes past_bend = settings.remembered * load(table.before.bend + at, count);
    const Lanes newest_bend = 2 * (whole - 2 * (level ? half : lanes(settings.sudden)));
    const Lanes slope = whole - newest_bend + past, bend = newest_bend + past_bend;

    // A parabola that opens upwards is least at its vertex, and any other at an end.
    const Lanes curve = bend + settings.trust, down = 2 * settings.trust - slope - (curve < 0 ? curve : Lanes{});
    const Lanes best = smaller(larger(down / larger(curve, lanes(limits::min())) / 2, Lanes{}), lanes(1));
    // A candidate that is too bad to go to counts against later ones.
    const Mask goes = (whole <= settings.sudden) & (level | (best == 1));
    store(table.after.slope + at, goes ? slope : past + settings.sudden, count);
    store(table.after.bend + at, goes ? bend : past_bend, count);
    const Mask usable = goes & ~nobody;
    const Lanes w = usable ? best : Lanes{};
    const Lanes newest = larger(1 / load(table.after.age + at, count), lanes(settings.distance_forgets));
    store(table.after.distance + at, between(usual, allowed, usable ? newest : Lanes{}), count);

    Lanes models[PARAMETERS];
    for (int p = 0; p < PARAMETERS; p++) models[p] = between(anchor[p], towards[p], w);
    scale_weights(table, at, count, scale * (w * part), 1 - w * part);
    store_models(table, at, count, is_finite(load(sums.alone + here, LANES)), models);
}

// Two short loops instead of a long one, so that the processor can work on several vectors at a time.
template <bool ALL> static void judge_slot(
    Complete<ALL> all, const Table& table, Sums& sums, int64_t slot, int64_t first, int agents) {
    each_vector(first, agents, [&](int64_t at, int here, int count) __attribute__((always_inline)) {
        judge_vector(all, table, sums, slot, at, here, count);
    });
    each_vector(first, agents, [&](int64_t at, int here, int count) __attribute__((always_inline)) {
        compare_vector(table, sums, slot, at, here, count);
    });
}
