#include "wait.hpp"

#include <algorithm>
#include <limits>

#include "hurry.hpp"
#include "moves.hpp"

namespace remat {

namespace {

// Each lowers the peak; the next one is another moment then.
constexpr int MOST_MOVES = 4;

class Backward : public Moving {
public:
    using Moving::Moving;

    // With the op at the peak where it is about the lowest; empty where it may not wait, or no place is lower.
    std::vector<int> with_peak_later() { return with_peak_at(Sought::LOWEST); }

    // With the op at the peak at the first place where it takes less itself, whatever what runs before it takes.
    std::vector<int> with_peak_beyond() { return with_peak_at(Sought::FIRST); }

private:
    enum class Sought { LOWEST, FIRST };

    int count() const { return static_cast<int>(live_.size()); }
    int op_at(int moment) const { return half_.trace.ops[given() + moment]; }

    std::vector<int> with_peak_at(Sought sought) {
        if (live_.empty() || !program_->may_wait[op_at(peak_)]) return {};
        find_group();
        const int place = find_place(sought);
        return place < 0 ? std::vector<int>() : moved_to(place);
    }

    // What moves: the op, what is made of its result, and what is computed again for it alone.
    void find_group() {
        const Trace& trace = half_.trace;
        const int at = given() + peak_;
        moves_.assign(trace.count(), false);
        moves_[at] = true;
        const auto is_of_group = [&](int i) {
            if (program_->is_view(trace.ops[i])) return trace.root[i] >= 0 && moves_[trace.root[i]];
            const auto reads = trace.reads[i];
            return std::any_of(reads.begin(), reads.end(), [&](const Read& read) { return moves_[read.storage]; });
        };
        for (int i = at + 1; i < trace.count(); ++i) moves_[i] = is_of_group(i);
        std::vector<char> is_for_others(trace.count(), false);
        is_read_.assign(trace.count(), false);
        for (int i = trace.count() - 1; i >= given(); --i) {
            if (i < at && is_read_[i] && !is_for_others[i]) moves_[i] = may_follow(trace.ops[i]);
            for (const Read& read : trace.reads[i]) (moves_[i] ? is_read_ : is_for_others)[read.storage] = true;
        }
        for (int i = given(); i < at; ++i) {
            if (program_->is_view(trace.ops[i])) moves_[i] = trace.root[i] >= given() && moves_[trace.root[i]];
        }
    }

    // Whether the op is one of the forward that runs again and returns one tensor, or may wait itself.
    bool may_follow(int op) const {
        if (program_->may_wait[op]) return true;
        const bool is_single = program_->kind[op] != PART && program_->parts[op].empty();
        return is_single && !program_->is_backward[op] && !program_->is_fixed[op];
    }

    // Last moment at which each storage is needed by what does not move; beyond the last one for what is returned.
    std::vector<int> ends_without_group() const {
        const Trace& trace = half_.trace;
        std::vector<int> end(trace.count(), -1);
        for (int i = given(); i < trace.count(); ++i) {
            if (moves_[i]) continue;
            for (const Read& read : trace.reads[i]) end[read.storage] = std::max(end[read.storage], half_.runs_at[i]);
        }
        for (int i = 0; i < trace.count(); ++i) {
            if (half_.end[i] == trace.count()) end[i] = trace.count();
        }
        return end;
    }

    // The instance before which the group would run at the least peak, about, or the first before which it would take
    // less than the peak; one beyond the last for the end; -1 where no place is lower.
    int find_place(Sought sought) const {
        const Trace& trace = half_.trace;
        const int total = trace.count(), at = given() + peak_;
        std::vector<Int> starts(total + 2, 0), stops(total + 2, 0), held(total + 2, 0);
        Int group_bytes = 0;
        const std::vector<int> end = ends_without_group();
        for (int i = 0; i < total; ++i) {
            const Span span = find_span(half_, i);
            if (!span.is_there) continue;
            if (moves_[i]) {
                group_bytes += half_.size[i];
                continue;
            }
            starts[span.start] += half_.size[i];
            const int stop = is_read_[i] ? std::max(end[i], span.start) + 1 : span.stop;
            stops[stop] += half_.size[i];
            if (is_read_[i]) held[stop] += half_.size[i];  // until the group runs
        }
        Int scratch = 0;
        for (int i = given(); i < total; ++i) {
            if (moves_[i]) scratch = std::max(scratch, program_->workspace_bytes[trace.ops[i]]);
        }
        std::vector<Int> highest_from(total + 1, 0);
        for (int i = total - 1; i >= given(); --i) {
            highest_from[i] = std::max(highest_from[i + 1], live_[i - given()]);
        }
        Int now = 0, waiting = 0, highest = 0, least = live_[peak_];
        int place = -1;
        for (int i = 0; i <= total; ++i) {
            now -= stops[i];
            waiting += held[i];
            // Results of an op run right behind it.
            const bool is_part = i < total && program_->kind[trace.ops[i]] == PART;
            if (i > at + 1 && !is_part) {
                const Int before = sought == Sought::FIRST ? 0 : highest;
                const Int there = std::max({before, now + waiting + group_bytes + scratch, highest_from[i]});
                if (there < least) {
                    if (sought == Sought::FIRST) return i;
                    least = there;
                    place = i;
                }
                if (before >= least) break;
            }
            now += starts[i];
            if (i < given() || i == total || moves_[i]) continue;
            if (i > at && program_->is_fixed[trace.ops[i]]) break;
            const Int own = program_->workspace_bytes[trace.ops[i]] - half_.taken[i];
            highest = std::max(highest, i < at ? live_[i - given()] : now + waiting + own);
        }
        return place;
    }

    std::vector<int> moved_to(int place) const {
        std::vector<int> group, found;
        for (int i = given(); i < half_.trace.count(); ++i) {
            if (moves_[i]) group.push_back(half_.trace.ops[i]);
        }
        found.reserve(sequence_.size());
        int i = given();
        for (int op : sequence_) {
            if (!program_->is_paid(op)) {
                found.push_back(op);
                continue;
            }
            if (i == place) found.insert(found.end(), group.begin(), group.end());
            if (!moves_[i++]) found.push_back(op);
        }
        if (i == place) found.insert(found.end(), group.begin(), group.end());
        return found;
    }

    std::vector<char> moves_, is_read_;  // of instances: move later; are read by some that do
};

}  // namespace

std::vector<int> let_wait(const Program& program, const std::vector<int>& backward) {
    return move_while_lower(program, Backward(program, backward), MOST_MOVES, &Backward::with_peak_later);
}

std::vector<int> let_wait_longer(const Program& program, const std::vector<int>& backward) {
    Backward present(program, backward);
    const std::vector<int> beyond = present.with_peak_beyond();
    if (beyond.empty()) return backward;
    const std::vector<int> hurried = let_hurry(program, beyond);
    if (hurried == beyond) return backward;
    std::vector<int> found = let_wait(program, hurried);
    return Moving(program, found).peak_bytes() < present.peak_bytes() ? found : backward;
}

}  // namespace remat
