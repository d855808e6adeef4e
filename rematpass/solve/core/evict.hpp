// Free memory at one moment: compute values again instead of holding them there.
//
// In: a plan on its `Axis` and a moment. Out: the ways to free memory at that moment, and the longer backward that some
// of them make. Never simulates.
#pragma once

#include <vector>

#include "axis.hpp"

namespace remat {

// Drop a value after its last use before a moment, compute it again right before its next use.
struct Eviction {
    int execution;              // whose storage is freed
    int start;                  // moment of its last use before
    Int freed_bytes;            // its size, less inputs held for it
    Int extra_ns;               // time of what is computed again
    int place;                  // moment before which it happens
    std::vector<int> again;     // ops computed there, in order
    std::vector<int> replaced;  // executions of views that nobody needs any more once they are made again there
};

// Every value held across `moment` that could be computed again later, with each way to have its inputs then.
std::vector<Eviction> list_evictions(const Axis& axis, int moment);

// The first of `evictions`, and as many of the next as free `wanted_bytes` and have nothing to do with each other: what
// one computes again, no other computes, drops or reads.
std::vector<Eviction> take_together(const Axis& axis, const std::vector<Eviction>& evictions, Int wanted_bytes,
                                    int most);

// The backward with the recomputations in it.
std::vector<int> apply_evictions(const Axis& axis, const std::vector<Eviction>& evictions);

}  // namespace remat
