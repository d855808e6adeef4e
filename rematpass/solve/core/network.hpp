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

// Hand over all arcs one by one, those without capacity left out.
template <class Take>
void each_arc(const ClosureProblem& problem, const Capacities& capacities, const Take& take) {
    const Variables x{problem.count()};
    const auto add = [&](int tail, int head, Int capacity) {
        if (capacity) take(Arc{tail, head, capacity});
    };
    for (int v = 0; v < problem.count(); ++v) {
        if (problem.wanted[v]) add(x.source(), x.available(v), MAX_CAPACITY);
        add(x.available(v), x.recomputed(v), capacities.keep[v]);
        add(x.recomputed(v), x.sink(), capacities.again[v]);
        add(x.recomputed(v), x.available(v), MAX_CAPACITY);
    }
    for (const auto& [tail, head] : problem.arcs) add(x.recomputed(tail), x.available(head), MAX_CAPACITY);
}

}  // namespace remat
