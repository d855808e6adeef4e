// Of the orders of a plan, the one with the lowest peak.
//
// In: a `Program`, both halves of a plan. Out: the same executions in the best order known, less masks that are handed
// over, and its peak. Never computes anything more.
#pragma once

#include <utility>
#include <vector>

#include "program.hpp"

namespace remat {

struct Ordered {
    std::pair<Int, int> peak;   // as in `peak_above_inputs`
    std::vector<int> backward;  // in the best order
    std::vector<int> before;    // the same before functions ran earlier
};

// The plan as it is or tidied, with functions that free memory before its peak, and, where `hands_masks`, with masks
// handed to the backward that free memory at it (masks.hpp), each where that is lower.
Ordered best_order(const Program& program, Slice<int> forward, const std::vector<int>& backward, bool hands_masks);

}  // namespace remat
