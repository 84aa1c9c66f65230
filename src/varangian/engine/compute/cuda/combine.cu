// A rule for several tables, on a GPU: one thread per agent, one row of blocks per table.
//
// The code that precedes this file: a rule, as tables.h says.

extern "C" __global__ void combine(const __grid_constant__ Numbers given) {
    const Table& table = reinterpret_cast<const Table*>(given.numbers)[blockIdx.y];
    const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < table.agents) combine_agents<Sums>(table, at, at + 1);
}
