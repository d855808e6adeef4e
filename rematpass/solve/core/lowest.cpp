#include "lowest.hpp"

#include <algorithm>

#include "hurry.hpp"
#include "lives.hpp"
#include "masks.hpp"
#include "order.hpp"

namespace remat {

namespace {

// A backward, its lives and the peak of the step.
struct Candidate {
    Candidate(const Program& program, const Trace& forward, std::vector<int> sequence) : backward(std::move(sequence)) {
        const std::vector<int> kept = kept_in_memory(program, backward);
        half = find_backward(program, backward, kept);
        peak = peak_above_inputs(program, find_forward(program, forward, kept), half);
    }

    std::vector<int> backward;
    Half half;
    std::pair<Int, int> peak;
};

// The best of the orders of a backward, and the same before functions ran earlier.
struct Tried {
    Tried(const Program& program, const Trace& forward, std::vector<int> backward)
        : best(program, forward, std::move(backward)) {
        std::vector<int> tidied = drop_overtaken(program, tidy_backward(program, best.backward));
        if (tidied != best.backward) {
            Candidate other(program, forward, std::move(tidied));
            if (other.peak.first < best.peak.first) best = std::move(other);
        }
        before = best.backward;
        const bool stays = !program.is_mask.empty();  // masks are looked for in these lives
        std::vector<int> earlier = let_hurry(program, before, stays ? best.half : std::move(best.half));
        if (earlier != before) best = Candidate(program, forward, drop_overtaken(program, std::move(earlier)));
    }

    Candidate best;
    std::vector<int> before;
};

// Each time masks are handed over lowers the peak; the next one is another moment then. 64 changed nothing on two
// chains of linear layers, a T5 and a ResNet (2026-11).
constexpr int MOST_HANDED = 8;

std::vector<int> without(const Program& program, const std::vector<int>& backward, const std::vector<int>& masks) {
    std::vector<int> rest;
    std::copy_if(backward.begin(), backward.end(), std::back_inserter(rest),
                 [&](int op) { return !std::binary_search(masks.begin(), masks.end(), op); });
    return drop_unread(program, rest);
}

}  // namespace

Ordered best_order(const Program& program, Slice<int> forward, const std::vector<int>& backward, bool hands_masks) {
    const Trace trace = trace_forward(program, forward);
    Tried found(program, trace, backward);
    for (int i = 0; hands_masks && i < MOST_HANDED; ++i) {
        const std::vector<int> masks = find_masks(program, found.best.half);
        if (masks.empty()) break;
        Tried next(program, trace, without(program, found.before, masks));
        if (next.best.peak.first >= found.best.peak.first) break;
        found = std::move(next);
    }
    return {found.best.peak, std::move(found.best.backward), std::move(found.before)};
}

}  // namespace remat
