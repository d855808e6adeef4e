// Narrow places of the forward, far enough from each other: see stages.py.
//
// In: bytes that cross each place, bytes made before it. Out: places. Never looks at a graph.
#pragma once

#include <vector>

#include "rows.hpp"

namespace remat {

// Fields as the constants of stages.py.
struct Spacing {
    double distance, widening, reach;
};

// Non-maximum suppression over places, narrowest first, distance measured in bytes made between them; `made` has one
// entry more than `widths`.
std::vector<int> spread_cuts(const std::vector<Int>& widths, const std::vector<Int>& made, const Spacing& spacing);

}  // namespace remat
