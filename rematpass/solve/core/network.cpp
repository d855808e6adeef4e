#include "network.hpp"

namespace remat {

namespace {

// A size times a price.
using Wide = unsigned __int128;

// All that may be kept together stays below this, so that "infinite" is never the cheaper way.
constexpr Int MOST_KEPT = MAX_CAPACITY / 4;

}  // namespace

Capacities find_capacities(const ClosureProblem& problem, const Price& price, Rounding rounding) {
    const Int spent = price ? price->second : 1, saved = price ? price->first : 0;
    Wide total = 0;
    for (Int bytes : problem.keep_bytes) total += static_cast<Wide>(bytes) * static_cast<Wide>(spent);
    Capacities found;
    while ((total >> found.shift) >= static_cast<Wide>(MOST_KEPT - problem.count())) ++found.shift;
    const Wide unit = Wide{1} << found.shift;
    const Wide up = rounding == Rounding::DOWN ? 0 : unit - 1;
    Int limit = 1;  // more than keeping everything
    for (Int bytes : problem.keep_bytes) {
        found.keep.push_back(
            static_cast<Int>((static_cast<Wide>(bytes) * static_cast<Wide>(spent) + up) >> found.shift));
        limit += found.keep.back();
    }
    for (int v = 0; v < problem.count(); ++v) {
        const Wide exact =
            (static_cast<Wide>(problem.recompute_ns[v]) * static_cast<Wide>(saved) + (up + 1) / 2) >> found.shift;
        const Int priced = exact > static_cast<Wide>(limit) ? limit : static_cast<Int>(exact);
        const Int again = price ? priced : (problem.recompute_ns[v] > 0 ? limit : 0);
        // The same in every solution; many together would pass for infinite.
        found.again.push_back(problem.is_forced[v] ? 0 : again);
        if (!problem.may_keep[v]) found.keep[v] = MAX_CAPACITY;
        if (!problem.may_recompute[v]) found.again[v] = MAX_CAPACITY;
    }
    return found;
}

}  // namespace remat
