// The network of a closure at one price of memory, whose minimum cut is the closure: see closure.py.
//
// In: a closure problem, a price. Out: capacities, arcs between variables. Never cuts.
#pragma once

#include <vector>

#include "closure.hpp"
#include "flow.hpp"

namespace remat {

// Twice the number of values, and source and sink behind them: available 0..n-1, recomputed n..2n-1.
struct Variables {
    int count;

    int available(int v) const { return v; }
    int recomputed(int v) const { return count + v; }
    int source() const { return 2 * count; }
    int sink() const { return 2 * count + 1; }
};

// In units of a power of two: 1 where products of sizes and prices fit.
struct Capacities {
    std::vector<Int> keep, again;
    int shift = 0;
};

// `NEAREST` never makes a size nothing; with `DOWN` no cut is more than what it stands for.
enum class Rounding { NEAREST, DOWN };

Capacities find_capacities(const ClosureProblem& problem, const Price& price, Rounding rounding);

// All arcs, those without capacity left out.
std::vector<Arc> list_arcs(const ClosureProblem& problem, const Capacities& capacities);

}  // namespace remat
