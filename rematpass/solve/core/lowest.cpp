#include "lowest.hpp"

#include "hurry.hpp"
#include "lives.hpp"
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

}  // namespace

Ordered best_order(const Program& program, Slice<int> forward, const std::vector<int>& backward) {
    const Trace trace = trace_forward(program, forward);
    Candidate best(program, trace, backward);
    std::vector<int> tidied = drop_overtaken(program, tidy_backward(program, backward));
    if (tidied != backward) {
        Candidate other(program, trace, std::move(tidied));
        if (other.peak.first < best.peak.first) best = std::move(other);
    }
    std::vector<int> earlier = let_hurry(program, best.backward, std::move(best.half));
    if (earlier == best.backward) return {best.peak, best.backward, std::move(best.backward)};
    Candidate hurried(program, trace, drop_overtaken(program, std::move(earlier)));
    return {hurried.peak, std::move(hurried.backward), std::move(best.backward)};
}

}  // namespace remat
