#include "masks.hpp"

#include <algorithm>

namespace remat {

namespace {

class AtPeak {
public:
    AtPeak(const Program& program, const Half& half, int peak) : program_(program), half_(half), at_(peak) {
        is_wanted_.assign(half.count(), false);
        for (int i = half.count() - 1; i >= half.trace.given; --i) {
            if (is_late_mask(i) || half.runs_at[i] <= at_ || !(half.is_stored[i] || is_wanted_[i])) continue;
            for (const Read& read : half.trace.reads[i]) is_wanted_[read.storage] = true;
        }
    }

    std::vector<int> masks() {
        std::vector<int> found;
        for (int i = half_.trace.given; i < half_.count(); ++i) {
            const int op = half_.trace.ops[i];
            if (is_late_mask(i) && freed_by(i) > program_.size_bytes[op]) found.push_back(op);
        }
        std::sort(found.begin(), found.end());
        found.erase(std::unique(found.begin(), found.end()), found.end());
        return found;
    }

private:
    bool is_late_mask(int i) const {
        const int op = half_.trace.ops[i];
        return program_.is_mask[op] && !half_.is_stored[i] && half_.runs_at[i] >= at_;
    }

    // Bytes at the peak of what is there for masks alone and instance `i` is made of.
    Int freed_by(int i) {
        Int freed = 0;
        seen_.begin(half_.count());
        std::vector<int> stack{i};
        while (!stack.empty()) {
            const int reader = stack.back();
            stack.pop_back();
            for (const Read& read : half_.trace.reads[reader]) {
                const int u = read.storage;
                if (is_wanted_[u] || !seen_.add(u)) continue;
                const Span span = find_span(half_, u);
                const bool is_at_peak = span.is_there && span.start <= at_ && at_ < span.stop;
                if (is_at_peak && half_.end[u] < half_.count()) freed += half_.size[u];
                if (!half_.is_stored[u]) stack.push_back(u);
            }
        }
        return freed;
    }

    const Program& program_;
    const Half& half_;
    const int at_;                 // instance that runs at the peak
    std::vector<char> is_wanted_;  // per instance, whether anything but masks reads it behind the peak
    Marks seen_;
};

}  // namespace

std::vector<int> find_masks(const Program& program, const Half& backward) {
    if (program.is_mask.empty()) return {};
    const std::vector<Int> live = live_bytes(program, backward);
    if (live.empty()) return {};
    const auto peak = std::max_element(live.begin(), live.end()) - live.begin();
    return AtPeak(program, backward, backward.trace.given + static_cast<int>(peak)).masks();
}

}  // namespace remat
