// Applies a function of each agent's own numbers to all agents, on a GPU: one thread per agent.
//
// The code that precedes this file: lane.h, and `compute`, the translated function. The first of the `numbers` is how
// many agents there are. Then come the distances from one column of each matrix to the next, and then the addresses of
// the matrices.

extern "C" __global__ void each(const __grid_constant__ Numbers given) {
    const int64_t* numbers = given.numbers;
    const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < numbers[0]) compute(numbers + 1, (void* const*)(numbers + 1 + MATRICES), at, 1);
}
