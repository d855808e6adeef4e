// An order of what is linked in which few have to be kept in mind at once.
//
// In: nodes, what each weighs, which are linked. Out: the nodes in order. Never looks at what they are.
#pragma once

#include <vector>

#include "rows.hpp"

namespace remat {

// A node waits from its own turn until the last that it is linked to has had its own. Next comes the one after which
// the fewest wait, the first of these: a greedy order, as for the pathwidth of a graph. Parts that nothing links come
// one after the other, the lightest first. `near`: per node, each other that it is linked to once.
std::vector<int> narrow_order(const std::vector<Int>& weight, const Rows<int>& near);

}  // namespace remat
