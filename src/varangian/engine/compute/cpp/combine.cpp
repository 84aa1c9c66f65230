// A rule for several tables, on a CPU. Several threads may call this at once. Each takes the next table until none is left.
//
// The code that precedes this file: a rule, as tables.h says.

extern "C" void combine(const Table* tables, int64_t count, int64_t* taken) {
    for (;;) {
        const int64_t next = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
        if (next >= count) return;
        combine_agents<Sums>(tables[next], 0, tables[next].agents);
    }
}
