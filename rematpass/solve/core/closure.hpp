// Which values to keep and which to recompute at one price of memory, by a minimum cut: see closure.py.
//
// In: values, what keeping and computing them costs, who reads whom. Out: `Closure`. Never looks at the order.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "program.hpp"

namespace remat {

// One solution, per value; what it keeps is available and not recomputed.
struct Closure {
    std::vector<char> available, recomputed;
    Int kept_bytes = 0, extra_ns = 0;
};

// Bytes saved for time spent; nothing for "at any price".
using Price = std::optional<std::pair<Int, Int>>;

// Fields as in `ClosureProblem` of closure.py.
struct ClosureProblem {
    std::vector<Int> keep_bytes, recompute_ns;
    std::vector<char> wanted, may_keep, may_recompute;
    std::vector<std::pair<int, int>> arcs;
    std::vector<char> is_forced;  // every solution recomputes it

    int count() const { return static_cast<int>(keep_bytes.size()); }
    // To be called once all else is set.
    void find_forced();
    // What the neighbours decided alike is contracted: `upper`'s sets are in, what `lower` leaves out is out.
    Closure solve(const Price& price, const Closure* upper, const Closure* lower) const;
    // The solution where the lines of two neighbours cross; nothing where none lies below the line between them.
    std::optional<Closure> vertex_between(const Closure& high, const Closure& low) const;
    // Vertices of the lower hull of (kept bytes, extra time), fastest first; those closer than 1 / `resolution` of the
    // hull's bytes or time are not looked for, unless that is 0.
    std::vector<Closure> sweep(int resolution) const;
    // Solutions strictly between two neighbours of the hull, by moving parts that no arc connects one by one.
    std::vector<Closure> fill_between(const Closure& upper, const Closure& lower, int most) const;
    Closure measure(std::vector<char> available, std::vector<char> recomputed) const;
};

// The closure over the values in `scope` and those in `free`, whose keeping costs nothing, and the value behind each
// index.
std::pair<ClosureProblem, std::vector<int>> closure_problem(const Program& program, Slice<int> scope, Slice<int> wanted,
                                                            Slice<int> free);

// What must be at hand for `reads`, each once: a view is made again for nothing where its base is, unless `is_inside`
// marks it.
std::vector<int> held_values(const Program& program, Slice<int> reads, const std::vector<char>& is_inside);

}  // namespace remat
