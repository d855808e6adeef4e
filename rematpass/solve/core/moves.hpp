// A backward whose executions may move, and moves that are made as long as they lower its peak.
//
// In: a `Program` and a backward. Out: its lives and its peak; the last sequence that lowers it. Never chooses what
// moves.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "lives.hpp"

namespace remat {

// A backward as executed, and the moment of its peak.
class Moving {
public:
    Moving(const Program& program, const std::vector<int>& sequence)
        : Moving(program, sequence, find_backward(program, sequence, kept_in_memory(program, sequence))) {}

    // `half`: of the sequence.
    Moving(const Program& program, std::vector<int> sequence, Half half)
        : program_(&program),
          sequence_(std::move(sequence)),
          half_(std::move(half)),
          live_(live_bytes(program, half_)) {
        peak_ = live_.empty() ? 0 : static_cast<int>(std::max_element(live_.begin(), live_.end()) - live_.begin());
    }

    const std::vector<int>& sequence() const { return sequence_; }
    Int peak_bytes() const { return live_.empty() ? 0 : live_[peak_]; }

protected:
    int given() const { return half_.trace.given; }

    const Program* program_;
    std::vector<int> sequence_;
    Half half_;
    std::vector<Int> live_;
    int peak_ = 0;
};

// The sequence after up to `most` moves, each of which lowers the peak. `moved` returns an empty one where none is
// left.
template <class Backward>
std::vector<int> move_while_lower(const Program& program, Backward best, int most,
                                  std::vector<int> (Backward::*moved)()) {
    for (int i = 0; i < most; ++i) {
        const std::vector<int> next_sequence = (best.*moved)();
        if (next_sequence.empty()) break;
        Backward next(program, next_sequence);
        if (next.peak_bytes() >= best.peak_bytes()) break;
        best = std::move(next);
    }
    return best.sequence();
}

}  // namespace remat
