// Least extra time where a value is kept whole or not at all: see bound.py.
//
// In: a closure problem, two neighbours of its hull, the bytes that are left. Out: a lower bound. Never a solution.
#pragma once

#include "closure.hpp"

namespace remat {

// A lower bound on the extra time of all solutions that keep at most `room` bytes, of which `upper` keeps more and
// `lower` less: at least what the line between the two says, and exact unless counting takes too long; never above
// `known`.
Int least_of_whole(const ClosureProblem& problem, const Closure& upper, const Closure& lower, Int room, Int known);

}  // namespace remat
