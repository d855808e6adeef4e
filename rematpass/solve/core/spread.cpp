#include "spread.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace remat {

std::vector<int> spread_cuts(const std::vector<Int>& widths, const std::vector<Int>& made, const Spacing& spacing) {
    std::vector<int> order(widths.size()), taken;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return widths[a] < widths[b]; });
    for (int p : order) {
        if (!widths[p]) continue;
        const auto width = static_cast<double>(widths[p]);
        const auto after = std::lower_bound(taken.begin(), taken.end(), p);
        Int nearest = std::min(made[p], made.back() - made[p]);
        bool is_wide = false;
        const auto look = [&](int q) {
            const Int gap = std::abs(made[p] - made[q]);
            nearest = std::min(nearest, gap);
            const bool is_near = static_cast<double>(gap) <= spacing.reach * width;
            is_wide |= is_near && width > spacing.widening * static_cast<double>(widths[q]);
        };
        if (after != taken.begin()) look(after[-1]);
        if (after != taken.end()) look(*after);
        if (static_cast<double>(nearest) >= spacing.distance * width && !is_wide) taken.insert(after, p);
    }
    return taken;
}

}  // namespace remat
