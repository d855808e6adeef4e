// Minimum cut, with its certificate checked.
//
// In: arcs with integer capacities. Out: the side of the source. Never rounds.
#pragma once

#include <string>
#include <vector>

#include "rows.hpp"

namespace remat {

// Capacities up to here leave room for what flows back.
constexpr Int MAX_CAPACITY = Int{1} << 60;

struct Arc {
    int tail, head;
    Int capacity;
};

// What the solver cannot take, or its own certificate when it fails.
struct Unsolvable {
    std::string why;
};

// Wide enough for sums of capacities.
using Flow = __int128;

// Throws `Unsolvable` unless the arcs that leave `side` carry exactly `flow` and the sink is not in it: then the cut is
// a minimum one.
void certify_cut(const std::vector<Arc>& arcs, const std::vector<char>& side, int sink, Flow flow);

// `side`: which nodes are on the source's. `left`: what more could flow along arc k (2k) and against it (2k + 1).
struct Cut {
    std::vector<char> side;
    std::vector<Int> left;
    Flow flow = 0;
};

// The minimum cut with the fewest nodes on the source's side; parallel arcs add up. Dinic 1970.
// Throws `Unsolvable` when flow and cut differ.
Cut minimum_cut(int nodes, const std::vector<Arc>& arcs, int source, int sink);

}  // namespace remat
