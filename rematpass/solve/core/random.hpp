// Random numbers that are the same on every machine, whatever standard library is at hand.
//
// In: a seed. Out: what Python's `random.Random(seed)` draws (Mersenne Twister, Matsumoto and Nishimura 1998; choices
// by rejection as in CPython 3.11). The standard's distributions differ from one library to the next.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace remat {

class Random {
public:
    explicit Random(std::uint32_t seed);

    // In [0, 1), 53 bits.
    double uniform();
    double uniform(double low, double high) { return low + (high - low) * uniform(); }
    // In 0..count-1.
    int below(int count);
    // Some of `all`, at most each once.
    std::vector<int> sample(const std::vector<int>& all, int count);

private:
    std::mt19937 engine_;
};

}  // namespace remat
