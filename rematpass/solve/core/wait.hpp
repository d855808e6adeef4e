// Let the gradient of a weight wait where it is the peak.
//
// In: a `Program` and a backward. Out: the same executions in an order with a lower peak. Never changes what is
// computed.
#pragma once

#include <vector>

#include "lives.hpp"

namespace remat {

// The backward with what makes its peak later, as long as that lowers it: of ops whose results are returned and read by
// nobody (`Urgency.may_wait`), with what is computed for them alone.
std::vector<int> let_wait(const Program& program, const std::vector<int>& backward);

// The backward with what makes its peak beyond where others would take more than that, and functions that free memory
// before these, where all of that lowers the peak.
std::vector<int> let_wait_longer(const Program& program, const std::vector<int>& backward);

}  // namespace remat
