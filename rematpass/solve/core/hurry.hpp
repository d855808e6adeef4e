// Let functions that free memory run before the peak.
//
// In: a `Program` and a backward. Out: the same executions in an order with a lower peak. Never changes what is
// computed.
#pragma once

#include <vector>

#include "lives.hpp"

namespace remat {

// The backward with pointwise functions that free more than they allocate ahead of its peak, as long as that lowers it.
//
// The gradients of a gated layer's two halves are made of one gradient and of what both halves kept. Between them stand
// products that need the one of them only: what the other one is made of is there for as long.
std::vector<int> let_hurry(const Program& program, const std::vector<int>& backward);
// `half`: of the backward.
std::vector<int> let_hurry(const Program& program, const std::vector<int>& backward, Half half);

}  // namespace remat
