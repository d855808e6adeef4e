// Local search on the byte-exact timeline: see repair.py.
//
// In: a `Program`, a plan, a budget. Out: the cheapest plan found that fits. Every state is a plan whose live bytes are
// counted, not estimated.
#pragma once

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "evict.hpp"
#include "excess.hpp"
#include "polish.hpp"
#include "random.hpp"

namespace remat {

class LocalSearch {
public:
    // `budget_bytes` above the graph's inputs; nothing is taken back that leads below `enough_ns`.
    LocalSearch(const Program& program, Slice<int> forward, std::vector<int> backward, Int budget_bytes,
                double enough_ns);

    // Some evictions, or one take-back and a fresh ruin; whether a better plan was found.
    bool step();
    const std::optional<std::vector<int>>& best() const { return best_; }
    Int best_ns() const { return best_ns_; }
    const std::vector<int>& present() const { return present_; }
    Int present_ns() const { return present_ns_; }

private:
    std::vector<Eviction> choose(const Axis& axis, const Excess& excess);
    double price(const Axis& axis, const Excess& excess, const Eviction& eviction, bool counts_all);
    bool take_back(Polisher polisher);
    void restart();
    void go_to(std::vector<int> backward);

    const Program& program_;
    const Trace forward_;
    const std::vector<int> start_;
    const Int budget_;
    const double enough_ns_;
    Random random_;
    int steps_ = 0;
    std::vector<int> evicted_at_;  // per op, the step of its last eviction, or long ago
    std::vector<int> present_;
    Int present_ns_ = 0;
    std::set<std::pair<Int, std::vector<int>>> settled_;  // times and plans from which was taken back what may be
    std::optional<std::vector<int>> best_;
    std::optional<Polisher> of_best_;  // to leave recomputations of it out
    std::vector<int> promising_;       // recomputations of it that are still to be left out one by one, the best last
    bool is_drawn_ = true;             // whether what is left out now was drawn
    Int best_ns_ = 0;
};

}  // namespace remat
