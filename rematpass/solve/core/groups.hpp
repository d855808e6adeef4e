// Which variables of a closure still have a choice near its minimum cut: see whole.cpp.
//
// In: a closure's network, what its flow left of the capacities, a limit. Out: groups of variables that are 1 together
// in every solution within the limit, what each takes above the cut, in an order that suits a dynamic programme. Never
// chooses.
#pragma once

#include <vector>

#include "closure.hpp"
#include "flow.hpp"

namespace remat {

// Variables that are all 1 or all 0 in every solution within the limit.
struct Group {
    Int kept = 0;                 // bytes more where they are 1
    Int within = 0, without = 0;  // what it costs that they are 1, 0
    int last = -1;                // of the groups linked to it
};

// What it costs that only the other group, an earlier one, is 1; that only this one is.
struct Link {
    int other;
    Int other_only, this_only;
};

struct Groups {
    std::vector<Group> groups;
    Rows<Link> links;         // per group, to earlier ones
    Int kept = 0, slack = 0;  // of the variables that are decided

    int count() const { return static_cast<int>(groups.size()); }
};

Groups find_groups(const ClosureProblem& problem, const std::vector<Arc>& arcs, const std::vector<Int>& left,
                   Int limit);

}  // namespace remat
