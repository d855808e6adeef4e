#include "random.hpp"

#include <algorithm>
#include <sstream>

namespace remat {

namespace {

constexpr int STATE = 624;
// Up to so many, `sample` draws from a pool; from more it draws until it meets what it does not have yet.
constexpr int POOL = 21;

// `init_by_array` of the reference implementation with a key of one word: the standard has no name for it.
std::vector<std::uint32_t> first_state(std::uint32_t key) {
    std::vector<std::uint32_t> state(STATE);
    state[0] = 19650218U;
    const auto mix = [&](int i) { return state[i - 1] ^ (state[i - 1] >> 30); };
    for (int i = 1; i < STATE; ++i) state[i] = 1812433253U * mix(i) + static_cast<std::uint32_t>(i);
    int i = 1;
    const auto next = [&] {
        if (++i < STATE) return;
        state[0] = state[STATE - 1];
        i = 1;
    };
    for (int k = STATE; k; --k) {
        state[i] = (state[i] ^ (mix(i) * 1664525U)) + key;
        next();
    }
    for (int k = STATE - 1; k; --k) {
        state[i] = (state[i] ^ (mix(i) * 1566083941U)) - static_cast<std::uint32_t>(i);
        next();
    }
    state[0] = 0x80000000U;
    return state;
}

// Feeds an engine its state word by word.
class Words {
public:
    using result_type = std::uint32_t;

    explicit Words(std::uint32_t seed) : words_(first_state(seed)) {}
    template <class Iterator>
    void generate(Iterator first, Iterator last) {
        for (std::size_t i = 0; first != last; ++first, ++i) *first = words_[i % words_.size()];
    }

private:
    std::vector<std::uint32_t> words_;
};

}  // namespace

Random::Random(std::uint32_t seed) {
    Words words(seed);
    engine_.seed(words);
}

double Random::uniform() {
    const auto a = static_cast<double>(engine_() >> 5), b = static_cast<double>(engine_() >> 6);
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
}

int Random::below(int count) {
    int bits = 0;
    while (count >> bits) ++bits;
    std::uint32_t drawn = 0;
    do {
        drawn = static_cast<std::uint32_t>(engine_()) >> (32 - bits);
    } while (drawn >= static_cast<std::uint32_t>(count));
    return static_cast<int>(drawn);
}

std::vector<int> Random::sample(const std::vector<int>& all, int count) {
    const int size = static_cast<int>(all.size());
    std::vector<int> found;
    if (size <= POOL) {
        std::vector<int> pool = all;
        for (int i = 0; i < count; ++i) {
            const int at = below(size - i);
            found.push_back(pool[at]);
            pool[at] = pool[size - i - 1];
        }
        return found;
    }
    std::vector<int> met;
    while (static_cast<int>(found.size()) < count) {
        const int at = below(size);
        if (std::find(met.begin(), met.end(), at) != met.end()) continue;
        met.push_back(at);
        found.push_back(all[at]);
    }
    return found;
}

}  // namespace remat
