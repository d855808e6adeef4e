#include "hurry.hpp"

#include <algorithm>
#include <utility>

#include "moves.hpp"

namespace remat {

namespace {

// Each lowers the peak; the next one is another moment then. With equal layers each of them may be the peak in turn.
// Other limits than these two were not tried (2026-11).
constexpr int MOST_MOVES = 64;
// Executions that a function may consist of.
constexpr std::size_t MOST_STEPS = 64;

class Backward : public Moving {
public:
    using Moving::Moving;

    // With functions that run at the peak or behind it before it, each as early as it frees what it is for; empty where
    // there are none.
    std::vector<int> with_functions_earlier() {
        if (live_.empty()) return {};
        at_ = given() + peak_;
        link();
        for (int end = at_; end < count(); ++end) {
            if (is_fixed(end)) break;
            if (moved_to_[end] < 0 && half_.is_stored[end] && kind(end) == POINTWISE) move_function(end);
        }
        return is_any_moved_ ? moved() : std::vector<int>();
    }

private:
    int count() const { return half_.trace.count(); }
    signed char kind(int i) const { return program_->kind[half_.trace.ops[i]]; }
    bool is_fixed(int i) const { return program_->is_fixed[half_.trace.ops[i]]; }

    // Which instance computes what each one reads, views included, and who reads each storage.
    void link() {
        const Trace& trace = half_.trace;
        std::vector<int> latest(program_->count, -1);
        std::vector<std::pair<int, int>> readers;
        for (int i = 0; i < count(); ++i) {
            if (i >= given()) {
                for (int v : program_->inputs[trace.ops[i]]) {
                    if (latest[v] >= 0) inputs_.append(latest[v]);
                }
                for (const Read& read : trace.reads[i]) readers.emplace_back(read.storage, i);
            }
            inputs_.close();
            latest[trace.ops[i]] = i;
        }
        readers_ = Rows<int>(readers, count());
        moved_to_.assign(count(), -1);
        first_free_ = given();
        for (int i = given(); i <= at_; ++i) {
            if (is_fixed(i)) first_free_ = i + 1;
        }
    }

    // The function whose result is `end`: as early as it may run, if it frees more than it allocates there.
    void move_function(int end) {
        if (!collect_steps(end)) return;
        Int allocated = 0;
        std::vector<int> read;
        for (int i : steps_) {
            if (i >= at_ && half_.is_stored[i] && half_.trace.root[i] == i) allocated += half_.size[i];
            for (const Read& each : half_.trace.reads[i]) {
                // An executor joins kernels that read slices in ways of its own: a scan took 5.8 % more than planned.
                if (i >= at_ && !program_->combine.way(each.way).first.empty()) return;
                read.push_back(each.storage);
            }
        }
        std::sort(read.begin(), read.end());
        read.erase(std::unique(read.begin(), read.end()), read.end());
        Int freed = 0;
        int place = first_place_;
        for (int storage : read) {
            const int last = half_.is_stored[storage] ? last_other_reader(storage) : count();
            if (last >= at_) continue;
            freed += half_.size[storage];
            place = std::max(place, last + 1);
        }
        while (place < at_ && kind(place) == PART) ++place;  // results of an op run right behind it
        if (freed <= allocated || place > std::min(at_, end - 1) || kind(place) == PART) return;
        for (int i : steps_) {
            if (i >= at_) moved_to_[i] = place;
        }
        is_any_moved_ = true;
    }

    // `end`, and what has to run with it: what does not come before the peak, and what is computed inside its readers.
    // False where one of them is no step of a function.
    bool collect_steps(int end) {
        steps_.assign(1, end);
        first_place_ = first_free_;
        for (std::size_t k = 0; k < steps_.size(); ++k) {
            for (int u : inputs_[steps_[k]]) {
                const bool is_inside = kind(u) == VIEW || (kind(u) == POINTWISE && !half_.is_stored[u]);
                if (u < at_ || moved_to_[u] >= 0) first_place_ = std::max(first_place_, place_after(u));
                if (u < given() || moved_to_[u] >= 0 || (u < at_ && !is_inside)) continue;
                if (std::find(steps_.begin(), steps_.end(), u) != steps_.end()) continue;
                const bool is_step = kind(u) == VIEW || kind(u) == POINTWISE;
                if (u == at_ || !is_step || steps_.size() == MOST_STEPS) return false;
                steps_.push_back(u);
            }
        }
        return true;
    }

    // The first instance before which something may run that reads `u`.
    int place_after(int u) const { return moved_to_[u] >= 0 ? moved_to_[u] : u + 1; }

    // The last moment at which somebody else reads a storage; beyond the last one for what is returned.
    int last_other_reader(int storage) const {
        if (half_.end[storage] == count()) return count();
        int last = -1;
        for (int reader : readers_[storage]) {
            if (std::find(steps_.begin(), steps_.end(), reader) != steps_.end()) continue;
            last = std::max(last, half_.runs_at[reader]);
        }
        return last;
    }

    std::vector<int> moved() const {
        std::vector<std::pair<int, int>> moves;
        for (int i = at_; i < count(); ++i) {
            if (moved_to_[i] >= 0) moves.emplace_back(moved_to_[i], half_.trace.ops[i]);
        }
        const Rows<int> before(moves, count());
        std::vector<int> found;
        found.reserve(sequence_.size());
        int i = given();
        for (int op : sequence_) {
            if (program_->is_paid(op)) {
                found.insert(found.end(), before[i].begin(), before[i].end());
                if (moved_to_[i++] >= 0) continue;
            }
            found.push_back(op);
        }
        return found;
    }

    int at_ = 0;  // instance that runs at the peak
    Rows<int> inputs_, readers_;
    std::vector<int> moved_to_;  // per instance, the one before which it runs; -1: where it is
    std::vector<int> steps_;     // of one function
    int first_free_ = 0;         // nothing moves before it
    int first_place_ = 0;        // before which that function may run
    bool is_any_moved_ = false;
};

}  // namespace

std::vector<int> let_hurry(const Program& program, const std::vector<int>& backward) {
    return let_hurry(program, backward, find_backward(program, backward, kept_in_memory(program, backward)));
}

std::vector<int> let_hurry(const Program& program, const std::vector<int>& backward, Half half) {
    Backward present(program, backward, std::move(half));
    return move_while_lower(program, std::move(present), MOST_MOVES, &Backward::with_functions_earlier);
}

}  // namespace remat
