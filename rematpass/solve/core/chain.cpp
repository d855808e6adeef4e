#include "chain.hpp"

#include <algorithm>
#include <map>

#include "work.hpp"

namespace remat {

ChainTables::ChainTables(ChainFigures figures) : figures_(std::move(figures)) {
    const int n = stages();
    rows_.push_back({std::vector<Int>(figures_.width, 0), std::vector<int>(figures_.width, 0), {}});
    again_.assign(n + 1, std::vector<int>(n + 1, 0));
    first_.assign(n + 1, 0);
    fill_again();
    for (int i = n - 1; i >= 0; --i) first_[i] = solve(list_ways(i, n - 1, true));
}

// Stretches whose stages offer the same share a row.
void ChainTables::fill_again() {
    const int n = stages();
    std::map<std::vector<Int>, int> seen;
    std::map<int, int> row_of;
    std::vector<std::vector<int>> name(n, std::vector<int>(n, 0));
    std::vector<std::vector<std::pair<int, const ChainRun*>>> ends(n);  // by last stage: first stage, run
    for (int i = 0; i < n; ++i) {
        for (const ChainRun& run : figures_.runs[i]) ends[run.stop - 1].emplace_back(i, &run);
    }
    for (int length = 1; length <= n; ++length) {
        for (int i = 0; i + length <= n; ++i) {
            const int j = i + length - 1;
            std::vector<Int> key{length > 1 ? name[i][j - 1] : -1, figures_.added[i][j]};
            for (const auto& [start, run] : ends[j]) {
                if (start >= i) key.insert(key.end(), {j - start, run->kind, run->passing});
            }
            name[i][j] = seen.emplace(std::move(key), static_cast<int>(seen.size())).first->second;
            if (!row_of.count(name[i][j])) row_of[name[i][j]] = solve(list_ways(i, j, false));
            again_[i][j] = row_of[name[i][j]];
        }
    }
}

// All ways to run stages i..j: options of runs that start here, then splits.
std::vector<ChainTables::Way> ChainTables::list_ways(int i, int j, bool is_first) const {
    std::vector<Way> ways;
    for (std::size_t r = 0; r < figures_.runs[i].size(); ++r) {
        const ChainRun& run = figures_.runs[i][r];
        if (run.stop <= j + 1) add_run(run, static_cast<int>(r), i, j, is_first, ways);
    }
    int floor = 0;
    for (int k = i + 1; k <= j; ++k) {  // keep the boundary of k, run k..j on top, then i..k-1 again
        floor = std::max(floor, figures_.advance_peak[k - 1]);
        const Int spent = is_first ? 0 : figures_.advance_ns[k] - figures_.advance_ns[i];
        const int later = is_first ? first_[k] : again_[k][j];
        const int below = figures_.gradients[j + 1] - figures_.gradients[k];
        ways.push_back({spent, floor, figures_.added[i][k], later, below, again_[i][k - 1], -1, -1, k - i});
    }
    return ways;
}

void ChainTables::add_run(const ChainRun& run, int r, int i, int j, bool is_first, std::vector<Way>& ways) const {
    if (run.stop == j + 1 && !is_first) {
        ways.push_back({run.alone_ns, run.alone_peak, 0, 0, 0, 0, r, -1, -1});
        return;
    }
    const int own = run.passing + figures_.gradients[j + 1] - figures_.gradients[run.stop];
    const int rest = is_first ? first_[run.stop] : again_[run.stop][j];
    for (std::size_t o = 0; o < run.options.size(); ++o) {
        const ChainOption& option = run.options[o];
        const Int spent = option.extra_ns + (is_first ? 0 : option.again_ns);
        const int floor = std::max(option.forward_peak, own + option.backward_peak);
        const int hold = option.kept + figures_.added[i][run.stop];
        ways.push_back({spent, floor, hold, rest, 0, 0, r, static_cast<int>(o), -1});
    }
}

// Best way per slot of memory, as a new row. More memory never takes more time, so a way is looked at only up to where
// the ways before it take no more than its least.
int ChainTables::solve(std::vector<Way> ways) {
    const int width = figures_.width;
    Row row{std::vector<Int>(width, NEVER), std::vector<int>(width, 0), {}};
    for (std::size_t w = 0; w < ways.size(); ++w) {
        const Way& way = ways[w];
        const int start = std::max({way.floor, way.hold, way.below});
        if (start >= width) continue;
        const Int* later = rows_[way.later].time.data() - way.hold;
        const Int* earlier = rows_[way.earlier].time.data() - way.below;
        const Int least = way.spent + later[width - 1] + earlier[width - 1];
        const int place = static_cast<int>(w);
        for (int m = start; m < width && row.time[m] > least; ++m) {
            const Int time = way.spent + later[m] + earlier[m];
            if (time < row.time[m]) {
                row.time[m] = time;
                row.choice[m] = place;
            }
        }
    }
    work_done().ways += static_cast<Int>(ways.size());
    row.ways = std::move(ways);
    rows_.push_back(std::move(row));
    return static_cast<int>(rows_.size()) - 1;
}

ChainStep ChainTables::step(int row, int slot) const {
    const Way& way = rows_[row].ways[rows_[row].choice[slot]];
    return {way.run, way.option, way.split, way.later, slot - way.hold, way.earlier, slot - way.below};
}

}  // namespace remat
