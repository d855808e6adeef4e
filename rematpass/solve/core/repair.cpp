#include "repair.hpp"

#include <algorithm>
#include <cmath>

#include "order.hpp"

namespace remat {

namespace {

// The choice of an eviction is blurred by up to this power of two in either direction. Half and twice moved plans of
// the published resnet50 at 80, 50, 30, 20 % by -5 to +2 % of their extra time, of `layered_n100` not at all (2026-11).
constexpr double NOISE = 1.0;
// What was evicted within the last rounds counts as this much dearer, so that the search does not go round in circles.
// 5 rounds cost `layered_n100` 2 % at 70 %; 20 moved resnet50 by -4 to +2 %. At a penalty of 3 or 6 resnet50 takes up
// to 11 % more at 30 % (2026-11).
constexpr int RECENT_ROUNDS = 10;
constexpr double RECENT_PENALTY = 1.5;
// A plan this much dearer than the best is given up. 1.07 and 1.3 changed nothing (2026-11).
constexpr double GIVE_UP = 1.15;
// Recomputations left out at random. One at a time, and twice as many, moved resnet50 by -2 to +1 % (2026-11).
constexpr int RUIN_SIZES[] = {1, 1, 2, 3};
// Recomputations left out one by one, in turn with those that are drawn: what saves most for what has to go instead. On
// 30 traced programs at eight budgets each, none take 0.5 % more extra time on average, 2 to 16 differ by 0.1 %; all of
// them before any are drawn take 0.1 % more (2026-11).
constexpr std::size_t MOST_PROMISING = 4;
// Evictions of one round. With 1 the published resnet50 takes 8 % more extra time at 30 % of its memory and 3 % more at
// 20 % (2026-11).
constexpr int MOST_TOGETHER = 8;
// Share of rounds that count all an eviction frees, also beyond what is too much: then something large goes, and small
// things come back.
constexpr double WHOLE_SHARE = 0.3;
constexpr std::uint32_t SEED = 0;

}  // namespace

LocalSearch::LocalSearch(const Program& program, Slice<int> forward, std::vector<int> backward, Int budget_bytes,
                         double enough_ns)
    : program_(program),
      forward_(trace_forward(program, forward)),
      start_(std::move(backward)),
      budget_(budget_bytes),
      enough_ns_(enough_ns),
      random_(SEED),
      evicted_at_(program.count, -RECENT_ROUNDS) {
    go_to(start_);
}

void LocalSearch::go_to(std::vector<int> backward) {
    present_ = std::move(backward);
    present_ns_ = recompute_ns(program_, present_);
}

bool LocalSearch::step() {
    ++steps_;
    if (settled_.count({present_ns_, present_})) {  // it would come to the same plan again
        restart();
        return false;
    }
    Axis axis(program_, forward_, present_);
    std::vector<Int> over(axis.live.size());
    for (std::size_t m = 0; m < over.size(); ++m) over[m] = std::max<Int>(axis.live[m] - budget_, 0);
    const Excess excess(std::move(over));
    if (excess.is_none()) {
        settled_.emplace(present_ns_, present_);
        const bool is_better = take_back(Polisher(std::move(axis)));
        restart();
        return is_better;
    }
    const std::vector<Eviction> evictions = choose(axis, excess);
    if (evictions.empty()) {
        restart();
        return false;
    }
    for (const Eviction& eviction : evictions) evicted_at_[axis.ops[eviction.execution]] = steps_;
    go_to(apply_evictions(axis, evictions));
    if (best_ && static_cast<double>(present_ns_) > GIVE_UP * static_cast<double>(best_ns_) + 1) restart();
    return false;
}

// Least time per byte and moment freed, at the fullest moment or at any overfull one.
std::vector<Eviction> LocalSearch::choose(const Axis& axis, const Excess& excess) {
    const bool is_at_peak = random_.uniform() < 0.5;
    int moment = excess.fullest();
    if (!is_at_peak) {
        const std::vector<int> overfull = excess.overfull();
        moment = overfull[random_.below(static_cast<int>(overfull.size()))];
    }
    const bool counts_all = random_.uniform() < WHOLE_SHARE;
    std::vector<Eviction> found = list_evictions(axis, moment);
    std::vector<std::pair<double, int>> order;
    order.reserve(found.size());
    for (std::size_t k = 0; k < found.size(); ++k) {
        order.emplace_back(price(axis, excess, found[k], counts_all), static_cast<int>(k));
    }
    std::sort(order.begin(), order.end());
    std::vector<Eviction> cheapest_first;
    cheapest_first.reserve(found.size());
    for (const auto& [_, k] : order) cheapest_first.push_back(std::move(found[k]));
    return take_together(axis, cheapest_first, excess.at(moment), MOST_TOGETHER);
}

double LocalSearch::price(const Axis& axis, const Excess& excess, const Eviction& eviction, bool counts_all) {
    const Int freed = excess.freed(eviction.start + 1, eviction.place, eviction.freed_bytes, counts_all);
    const double blur = std::exp2(random_.uniform(-NOISE, NOISE));
    const bool is_recent = steps_ <= evicted_at_[axis.ops[eviction.execution]] + RECENT_ROUNDS;
    const auto extra = static_cast<double>(eviction.extra_ns + 1);
    return extra / static_cast<double>(std::max<Int>(1, freed)) * blur * (is_recent ? RECENT_PENALTY : 1.0);
}

// Whether what fits of the present plan, taken back, is the best plan so far.
bool LocalSearch::take_back(Polisher polisher) {
    int count = 0;
    Int extra_ns = present_ns_;
    while (const auto taken = polisher.next()) {
        extra_ns -= taken->second;
        if (taken->first > budget_ || static_cast<double>(extra_ns) < enough_ns_) break;
        ++count;
    }
    for (;; count /= 2) {  // under fusion the steps are estimates
        std::vector<int> plan = polisher.backward(count);
        const Int plan_ns = recompute_ns(program_, plan);
        if (best_ && plan_ns >= best_ns_) return false;
        Axis axis(program_, forward_, plan);
        if (count && axis.peak_bytes() > budget_) continue;
        best_ = std::move(plan);
        best_ns_ = plan_ns;
        of_best_.emplace(std::move(axis));
        promising_ = of_best_->promising(budget_, MOST_PROMISING);
        std::reverse(promising_.begin(), promising_.end());
        return true;
    }
}

// Leave out a promising recomputation of the best plan, or a few at random, or begin again.
void LocalSearch::restart() {
    if (!best_) {
        go_to(start_);
        return;
    }
    is_drawn_ = promising_.empty() || !is_drawn_;
    if (!is_drawn_) {
        const int again = promising_.back();
        promising_.pop_back();
        go_to(of_best_->without({again}));
        return;
    }
    const std::vector<int> again = of_best_->repeated();
    const int wanted = RUIN_SIZES[random_.below(4)];
    go_to(of_best_->without(random_.sample(again, std::min(static_cast<int>(again.size()), wanted))));
}

}  // namespace remat
