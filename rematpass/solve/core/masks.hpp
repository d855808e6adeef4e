// Masks that would free more than they take at the peak of a backward if it were handed them.
//
// In: a `Program` and a backward with its lives. Out: ops. Never chooses: whether the peak of the step is lower then is
// for the caller to see.
#pragma once

#include <vector>

#include "lives.hpp"

namespace remat {

// What is narrower than all it is made of, or ahead (see `is_ahead`), and computed inside readers at the peak or behind
// it, out of what is in memory there for that alone.
//
// A linear layer's input is read by the gradient of its weight, and behind the gradient of its activation once more,
// for the mask of the ReLU that made it: the mask is a byte per element. Nor need numbers be drawn again to see which
// elements a dropout left.
std::vector<int> find_masks(const Program& program, const Half& backward);

}  // namespace remat
