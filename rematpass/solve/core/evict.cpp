#include "evict.hpp"

#include <algorithm>
#include <limits>

namespace remat {

namespace {

// An input of what is computed again is held until then when it is no larger than this share of what is freed; else it
// is computed again as well. Each share is tried. Without the last two, `layered_n100` takes 51 % more extra time at
// 80 % of its memory and 71 % more at 70 %; a fourth between them changed nothing (2026-11).
constexpr double HOLD_SHARES[] = {0.0, 0.3, 1.0};
constexpr int LOST = -1;
constexpr Int NOTHING_HELD = std::numeric_limits<Int>::max();

class Evictor {
public:
    Evictor(const Axis& axis, int moment) : axis_(axis), program_(*axis.program), moment_(moment) {}

    std::vector<Eviction> list() {
        for (int i = 0; i < std::min(moment_, axis_.count()); ++i) {
            if (axis_.end[i] > moment_ && axis_.stored[i] && axis_.size(i)) evict(i);
        }
        return std::move(found_);
    }

private:
    // Dropping `execution_`, computing it again at `place_`; inputs up to `hold_bytes_` live on instead.
    void evict(int execution) {
        execution_ = execution;
        if (!find_next_use()) return;
        const Int size = axis_.size(execution);
        const std::size_t first = found_.size();
        least_bytes_ = 0;
        for (double share : HOLD_SHARES) {
            hold_bytes_ = static_cast<Int>(share * static_cast<double>(size));
            if (least_bytes_ > hold_bytes_) continue;  // nothing more is held than at the share before
            find_missing();
            if (!again_.empty() && held_bytes_ < size) note(size, first);
            if (again_.size() == wanted_.size()) break;  // all its inputs live on anyway
        }
    }

    void note(Int size, std::size_t first) {
        for (std::size_t k = first; k < found_.size(); ++k) {
            if (found_[k].again == again_) return;
        }
        Int extra = 0;
        for (int v : again_) extra += program_.duration_ns[v];
        found_.push_back({execution_, start_, size - held_bytes_, extra, place_, again_, find_replaced()});
    }

    // Last use before the moment, the reader after it, and the ops it wants; false when it cannot be dropped there.
    bool find_next_use() {
        const int op = axis_.ops[execution_];
        if (program_.is_backward[op] || !program_.may_recompute[op]) return false;
        wanted_.clear();
        start_ = execution_;
        place_ = axis_.count();
        stack_.assign(1, execution_);
        while (!stack_.empty()) {
            const int i = stack_.back();
            stack_.pop_back();
            for (int r : axis_.readers(i)) {
                if (r == axis_.count() || axis_.runs_at[r] == moment_ || (r <= moment_ && moment_ < axis_.runs_at[r])) {
                    return false;
                }
                if (program_.is_view(axis_.ops[r])) {
                    stack_.push_back(r);
                } else if (axis_.runs_at[r] < moment_) {
                    start_ = std::max(start_, axis_.runs_at[r]);
                } else {
                    wanted_.push_back(axis_.ops[i]);
                    place_ = std::min(place_, r);
                }
            }
        }
        std::sort(wanted_.begin(), wanted_.end());
        wanted_.erase(std::unique(wanted_.begin(), wanted_.end()), wanted_.end());
        return !wanted_.empty() && place_ > std::max(moment_, axis_.split - 1);
    }

    // Views of the storage that the backward made before `place_` for readers from there on.
    std::vector<int> find_replaced() {
        std::vector<int> views;
        stack_.assign(1, execution_);
        while (!stack_.empty()) {
            const int i = stack_.back();
            stack_.pop_back();
            for (int r : axis_.readers(i)) {
                if (r >= place_ || !program_.is_view(axis_.ops[r])) continue;
                views.push_back(r);
                stack_.push_back(r);
            }
        }
        std::sort(views.begin(), views.end());
        views.erase(std::unique(views.begin(), views.end()), views.end());
        std::vector<int> gone;  // ascending once reversed
        for (auto v = views.rbegin(); v != views.rend(); ++v) {
            const Slice<int> readers = axis_.readers(*v);
            const bool is_unread = std::all_of(readers.begin(), readers.end(), [&](int r) {
                return r >= place_ || std::find(gone.begin(), gone.end(), r) != gone.end();
            });
            if (*v >= axis_.split && is_unread) gone.push_back(*v);
        }
        std::reverse(gone.begin(), gone.end());
        return gone;
    }

    // What to compute at the place; bytes of inputs that live on for it, and of the smallest that could, but does not.
    // Nothing when it is not possible.
    void find_missing() {
        marks_.begin(program_.count);
        again_.clear();
        held_.clear();
        least_bytes_ = NOTHING_HELD;
        held_bytes_ = 0;
        stack_ = wanted_;
        while (!stack_.empty()) {
            const int v = stack_.back();
            stack_.pop_back();
            if (marks_.has(v)) continue;
            if (!program_.may_recompute[v] || program_.is_backward[v]) {
                again_.clear();
                held_bytes_ = least_bytes_ = 0;
                return;
            }
            add(v);
            for (int part : program_.parts[v]) add(part);
            if (program_.kind[v] == PART) {  // handed out by its op when that runs, and only then
                stack_.push_back(program_.inputs[v][0]);
                continue;
            }
            for (int u : program_.needs[v]) need(u);
        }
        std::sort(again_.begin(), again_.end());
        std::sort(held_.begin(), held_.end());
        held_.erase(std::unique(held_.begin(), held_.end()), held_.end());
        for (int i : held_) held_bytes_ += axis_.size(i);
    }

    void add(int v) {
        if (marks_.add(v)) again_.push_back(v);
    }

    void need(int u) {
        const int owner = find_holder(u);
        if (owner == LOST) {
            stack_.push_back(u);
        } else if (axis_.end[owner] <= moment_ && axis_.size(owner) > hold_bytes_) {
            least_bytes_ = std::min(least_bytes_, axis_.size(owner));
            stack_.push_back(u);
        } else if (axis_.end[owner] <= moment_) {
            held_.push_back(owner);
        }
    }

    // The execution whose storage has `value` at the place, alive or not; `LOST` when it has to be computed again. That
    // is so for the evicted one, and for what may not cross from the forward to the backward, such as a tuple. Nor does
    // a view: its base does, and with two of one storage at hand an executor would take over the memory of one.
    int find_holder(int value) const {
        const int latest = axis_.latest(value, place_);
        const int owner = latest >= 0 ? axis_.owner(latest) : LOST;
        const bool may_cross = program_.may_keep[value] && !program_.is_view(value);
        return owner == execution_ || (latest < axis_.split && !may_cross) ? LOST : owner;
    }

    const Axis& axis_;
    const Program& program_;
    const int moment_;
    int execution_ = 0, start_ = 0, place_ = 0;
    Int hold_bytes_ = 0, held_bytes_ = 0, least_bytes_ = 0;
    std::vector<int> wanted_, again_, held_, stack_;
    Marks marks_;
    std::vector<Eviction> found_;
};

}  // namespace

std::vector<Eviction> list_evictions(const Axis& axis, int moment) { return Evictor(axis, moment).list(); }

std::vector<Eviction> take_together(const Axis& axis, const std::vector<Eviction>& evictions, Int wanted_bytes,
                                    int most) {
    const Program& program = *axis.program;
    std::vector<Eviction> taken;
    std::vector<char> is_dropped(program.count, false), is_again(program.count, false), is_read(program.count, false);
    const auto clashes = [&](const Eviction& eviction) {
        const int op = axis.ops[eviction.execution];
        if (is_dropped[op] || is_read[op]) return true;
        for (int v : eviction.again) {
            if (is_again[v] || is_read[v]) return true;
            for (int u : program.needs[v]) {
                if (is_again[u] || is_dropped[u]) return true;
            }
        }
        return false;
    };
    for (const Eviction& eviction : evictions) {
        if (wanted_bytes <= 0 || static_cast<int>(taken.size()) == most) break;
        if (clashes(eviction)) continue;
        taken.push_back(eviction);
        is_dropped[axis.ops[eviction.execution]] = true;
        for (int v : eviction.again) {
            is_again[v] = true;
            for (int u : program.needs[v]) is_read[u] = true;
        }
        wanted_bytes -= eviction.freed_bytes;
    }
    return taken;
}

std::vector<int> apply_evictions(const Axis& axis, const std::vector<Eviction>& evictions) {
    std::vector<char> is_gone(axis.count(), false);
    std::vector<std::pair<int, int>> at;
    for (const Eviction& eviction : evictions) {
        for (int i : eviction.replaced) is_gone[i] = true;
        for (int v : eviction.again) at.emplace_back(eviction.place, v);
    }
    const Rows<int> again(at, axis.count() + 1);
    std::vector<int> backward;
    for (int i = axis.split; i <= axis.count(); ++i) {
        backward.insert(backward.end(), again[i].begin(), again[i].end());
        if (i < axis.count() && !is_gone[i]) backward.push_back(axis.ops[i]);
    }
    return backward;
}

}  // namespace remat
