// Let functions that free memory run before the peak.
//
// In: a `Program` and a backward. Out: the same executions in an order with a lower peak. Never changes what is
// computed.
#pragma once

#include <vector>

#include "lives.hpp"

namespace remat {

// The backward with pointwise functions that free more than they allocate ahead of its peak, as long as that lowers it.
std::vector<int> let_hurry(const Program& program, Slice<int> backward);

}  // namespace remat
