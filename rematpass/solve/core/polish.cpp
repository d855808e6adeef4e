#include "polish.hpp"

#include <algorithm>

namespace remat {

namespace {

// Recomputations that are looked at, the dearest first. Up to some 4,000 ops
// these are all there are; on 10,000, half and twice changed the extra time of plans by less than 0.1 % (2026-11).
constexpr std::size_t MAX_CANDIDATES = 1000;

// Heaps put the largest first: most time saved first, then the earlier one.
const auto is_later_free = [](const auto& a, const auto& b) {
    return a.saved_ns != b.saved_ns ? a.saved_ns < b.saved_ns : a.again > b.again;
};
// The lowest peak first.
const auto is_later_dear = [](const auto& a, const auto& b) {
    return a.peak_bytes != b.peak_bytes ? a.peak_bytes > b.peak_bytes : is_later_free(a, b);
};

}  // namespace

Polisher::Polisher(Axis axis) : axis_(std::move(axis)), live_(axis_.live) { is_gone_.assign(axis_.count(), false); }

std::vector<int> Polisher::repeated() const {
    std::vector<int> found;
    for (int i = 0; i < axis_.count(); ++i) {
        if (axis_.before[i] >= 0 && duration(i)) found.push_back(i);
    }
    return found;
}

void Polisher::fill_queue() {
    is_filled_ = true;
    std::vector<int> dearest = repeated();
    std::stable_sort(dearest.begin(), dearest.end(), [&](int a, int b) { return duration(a) > duration(b); });
    if (dearest.size() > MAX_CANDIDATES) dearest.resize(MAX_CANDIDATES);
    for (int i : dearest) {
        if (find_step(i)) dear_.push_back({step_.peak_bytes, step_.saved_ns, i});
    }
    std::make_heap(dear_.begin(), dear_.end(), is_later_dear);
}

std::vector<int> Polisher::promising(Int budget_bytes, std::size_t most) {
    if (!is_filled_) fill_queue();
    std::vector<std::pair<double, int>> by_worth;
    for (const Waiting& each : dear_) {
        const Int above = std::max<Int>(1, each.peak_bytes - budget_bytes);
        by_worth.emplace_back(-static_cast<double>(each.saved_ns) / static_cast<double>(above), each.again);
    }
    std::sort(by_worth.begin(), by_worth.end());
    if (by_worth.size() > most) by_worth.resize(most);
    std::vector<int> found;
    for (const auto& [worth, again] : by_worth) found.push_back(again);
    return found;
}

std::optional<Polisher::Waiting> Polisher::pop_waiting() {
    const auto pop = [](std::vector<Waiting>& heap, const auto& is_later) {
        std::pop_heap(heap.begin(), heap.end(), is_later);
        const Waiting top = heap.back();
        heap.pop_back();
        return top;
    };
    while (!dear_.empty() && dear_.front().peak_bytes <= peak_bytes()) {
        free_.push_back(pop(dear_, is_later_dear));
        std::push_heap(free_.begin(), free_.end(), is_later_free);
    }
    if (!free_.empty()) return pop(free_, is_later_free);
    if (!dear_.empty()) return pop(dear_, is_later_dear);
    return std::nullopt;
}

std::optional<Taken> Polisher::next() {
    if (!is_filled_) fill_queue();
    while (const auto best = pop_waiting()) {
        if (is_gone_[best->again]) continue;
        if (!find_step(best->again)) continue;
        if (step_.peak_bytes != best->peak_bytes || step_.saved_ns != best->saved_ns) {
            dear_.push_back({step_.peak_bytes, step_.saved_ns, step_.again});  // the timeline has moved since
            std::push_heap(dear_.begin(), dear_.end(), is_later_dear);
            continue;
        }
        take();
        return Taken{peak_bytes(), step_.saved_ns};
    }
    return std::nullopt;
}

std::vector<int> Polisher::without(const std::vector<int>& executions) {
    std::vector<char> is_gone(axis_.count(), false);
    for (int again : executions) {
        if (!find_step(again)) continue;
        for (int i : step_.removed) is_gone[i] = true;
    }
    return leave_out(is_gone);
}

std::vector<int> Polisher::backward(int count) const {
    std::vector<char> is_gone(axis_.count(), false);
    for (int n = 0; n < count; ++n) {
        for (int i : removed_[n]) is_gone[i] = true;
    }
    return leave_out(is_gone);
}

std::vector<int> Polisher::leave_out(const std::vector<char>& is_gone) const {
    std::vector<int> backward;
    for (int i = axis_.split; i < axis_.count(); ++i) {
        if (!is_gone[i]) backward.push_back(axis_.ops[i]);
    }
    return backward;
}

// What leaving out execution `again` does, in `step_`; whether it is possible and saves time.
bool Polisher::find_step(int again) {
    find_group(again);
    if (!may_leave_out()) return false;
    step_.again = again;
    find_removed();
    step_.saved_ns = 0;
    for (int i : step_.removed) step_.saved_ns += duration(i);
    if (step_.saved_ns <= 0) return false;
    find_changes();
    step_.peak_bytes = peak_after(step_.changes);
    return true;
}

// An execution and those of its parts.
void Polisher::find_group(int again) {
    group_.assign(1, again);
    for (int i : axis_.parts(again)) group_.push_back(i);
    in_group_.begin(axis_.count() + 1);
    for (int i : group_) in_group_.add(i);
}

// Whether all readers may read the computation before instead.
bool Polisher::may_leave_out() const {
    const Program& program = *axis_.program;
    for (int i : group_) {
        const int op = axis_.ops[i];
        if (program.is_view(op) || axis_.before[i] < 0) return false;
        if (program.may_keep[op]) continue;
        for (int r : axis_.readers(i)) {
            if (!in_group_.has(r)) return false;
        }
    }
    return true;
}

// The group and all executions that nobody reads any more.
void Polisher::find_removed() {
    in_removed_.begin(axis_.count() + 1);
    step_.removed = group_;
    for (int i : group_) in_removed_.add(i);
    stack_.clear();
    const auto push_reads = [&](int i) {
        for (int u : axis_.reads(i)) stack_.push_back(u);
    };
    const auto add = [&](int i) {
        if (in_removed_.add(i)) step_.removed.push_back(i);
    };
    for (int i : group_) push_reads(i);
    while (!stack_.empty()) {
        const int i = stack_.back();
        stack_.pop_back();
        if (in_removed_.has(i) || axis_.before[i] < 0 || axis_.program->is_backward[axis_.ops[i]]) continue;
        if (!is_unread(i)) continue;
        add(i);
        for (int part : axis_.parts(i)) add(part);
        push_reads(i);
    }
    std::sort(step_.removed.begin(), step_.removed.end());
}

// Whether only what is removed reads it. An op whose other results nobody reads stays for none of them.
bool Polisher::is_unread(int i) const {
    const auto is_left = [&](int r) { return !in_removed_.has(r); };
    const auto is_read = [&](int r) {
        if (!is_left(r)) return false;
        if (r == axis_.count() || axis_.program->kind[axis_.ops[r]] != PART) return true;
        const Slice<int> of_part = axis_.readers(r);
        return std::any_of(of_part.begin(), of_part.end(), is_left);
    };
    const Slice<int> readers = axis_.readers(i);
    return std::none_of(readers.begin(), readers.end(), is_read);
}

// Storages that live longer, shorter, or not at all.
void Polisher::find_changes() {
    const auto is_removed = [&](int r) { return in_removed_.has(r); };
    step_.changes.clear();
    step_.ends.clear();
    for (int i : group_) {
        const Slice<int> readers = axis_.readers(i);
        if (std::all_of(readers.begin(), readers.end(), is_removed)) continue;
        const int before = axis_.before[i];
        const int start = axis_.stored[before] ? axis_.end[before] + 1 : before;
        const int stop = axis_.stored[i] ? i - 1 : axis_.end[i];
        step_.changes.push_back({start, stop, axis_.program->size_bytes[axis_.ops[i]]});
        step_.ends.push_back({before, std::max(axis_.end[before], axis_.end[i])});
    }
    in_owners_.begin(axis_.count() + 1);
    owners_.clear();
    for (int i : step_.removed) {
        if (!in_group_.has(i) && axis_.stored[i]) step_.changes.push_back({i, axis_.end[i], -axis_.size(i)});
        for (int u : axis_.reads(i)) {
            const int owner = axis_.owner(u);
            if (owner >= 0 && !is_removed(owner) && in_owners_.add(owner)) owners_.push_back(owner);
        }
    }
    for (int u : owners_) {
        const int end = axis_.last_need(u, in_removed_);
        if (end < axis_.end[u] && axis_.stored[u]) {
            step_.changes.push_back({std::max(end, u) + 1, axis_.end[u], -axis_.size(u)});
            step_.ends.push_back({u, end});
        }
    }
}

// Between two moments at which something changes, all moments change alike.
Int Polisher::peak_after(const std::vector<Change>& changes) {
    turns_.assign({{0, 0}, {live_.count(), 0}});
    for (const Change& change : changes) {
        const int stop = std::min(change.stop + 1, live_.count());
        if (change.start >= stop) continue;
        turns_.emplace_back(change.start, change.size);
        turns_.emplace_back(stop, -change.size);
    }
    std::sort(turns_.begin(), turns_.end());
    Int peak = 0, more = 0;
    for (std::size_t k = 0; k + 1 < turns_.size(); ++k) {
        more += turns_[k].second;
        peak = std::max(peak, live_.highest(turns_[k].first, turns_[k + 1].first - 1) + more);
    }
    return peak;
}

void Polisher::take() {
    const int count = axis_.count();
    for (const Change& change : step_.changes) live_.add(change.start, change.stop, change.size);
    for (const End& end : step_.ends) axis_.end[end.storage] = end.moment;
    for (int i : group_) {
        const int before = axis_.before[i];
        axis_.stored[before] = true;
        std::vector<int> moved;
        for (int r : axis_.readers(i)) {
            if (!in_removed_.has(r)) moved.push_back(r);
        }
        std::vector<int>& readers = axis_.edit_readers(before);
        readers.insert(readers.end(), moved.begin(), moved.end());
        std::sort(readers.begin(), readers.end());
        readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
        for (int r : moved) {
            if (r == count) continue;
            std::vector<int>& reads = axis_.edit_reads(r);
            std::replace(reads.begin(), reads.end(), i, before);
        }
    }
    for (int i : step_.removed) {
        for (int u : std::vector<int>(axis_.reads(i).begin(), axis_.reads(i).end())) {
            std::vector<int>& readers = axis_.edit_readers(u);
            readers.erase(std::remove(readers.begin(), readers.end(), i), readers.end());
        }
        is_gone_[i] = true;
    }
    for (int i = 0; i < count; ++i) {
        while (axis_.before[i] >= 0 && in_removed_.has(axis_.before[i]))
            axis_.before[i] = axis_.before[axis_.before[i]];
    }
    removed_.push_back(step_.removed);
}

}  // namespace remat
