// Least extra time where a value is kept whole or not at all: see bound.py.
//
// In: a closure problem, two neighbours of its hull, the bytes that are left. Out: a lower bound. Never a solution.
#pragma once

#include "closure.hpp"

namespace remat {

// Least extra time of all solutions that keep at most `room` bytes, of which `upper` keeps more and `lower` less; at
// most `known`, and at least what the line between the two says. Less than the true least where counting it takes too
// long.
Int least_of_whole(const ClosureProblem& problem, const Closure& upper, const Closure& lower, Int room, Int known);

}  // namespace remat
