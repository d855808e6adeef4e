#include "axis.hpp"

#include <algorithm>

namespace remat {

Axis::Axis(const Program& of, Trace forward, Slice<int> backward) : program(&of) {
    const std::vector<int> kept = kept_in_memory(of, backward);
    const Half first = find_forward(of, std::move(forward), kept);
    const Half second = find_backward(of, backward, kept);
    const int given = second.trace.given;
    split = first.count();
    const int shift = split - given;
    ops = first.trace.ops;
    ops.insert(ops.end(), second.trace.ops.begin() + given, second.trace.ops.end());
    stored = first.is_stored;
    stored.insert(stored.end(), second.is_stored.begin() + given, second.is_stored.end());
    end = first.end;
    end.reserve(ops.size());
    runs_at.reserve(ops.size());
    for (int i = 0; i < split; ++i) runs_at.push_back(i);
    for (int i = given; i < second.count(); ++i) {
        end.push_back(second.end[i] < 0 ? -1 : second.end[i] + shift);
        runs_at.push_back(second.runs_at[i] + shift);
    }
    for (int g = 0; g < given; ++g) {
        const int i = first.trace.last[second.trace.ops[g]];
        if (i >= 0 && second.end[g] >= 0) end[i] = std::max(end[i], second.end[g] + shift);
    }
    for (int i = 0; i < count(); ++i) {
        if (stored[i]) end[i] = std::max(end[i], i);  // what nobody needs is there for its own moment
    }
    live = live_bytes(of, first);
    const std::vector<Int> later = live_bytes(of, second);
    live.insert(live.end(), later.begin(), later.end());
    link();
}

// Who reads what, and the computation before each.
void Axis::link() {
    std::vector<int> last(program->count, -1), of_forward, last_reader(count(), -1);
    std::vector<std::pair<int, int>> readers;
    before.assign(count(), -1);
    readers.reserve(3 * count());
    reads_.reserve(count(), 3 * count());
    for (int i = 0; i < count(); ++i) {
        if (i == split) of_forward = last;
        const int op = ops[i];
        for (int v : program->inputs[op]) {
            const int u = last[v];
            if (u < 0) continue;
            reads_.append(u);
            if (last_reader[u] != i) readers.emplace_back(u, i);
            last_reader[u] = i;
        }
        reads_.close();
        before[i] = last[op];
        last[op] = i;
    }
    if (split == count()) of_forward = last;
    const auto note_outputs = [&](const std::vector<int>& outputs, const std::vector<int>& runs_of) {
        for (int v : outputs) {
            const int i = runs_of[v];
            if (i < 0 || last_reader[i] == count()) continue;
            readers.emplace_back(i, count());
            last_reader[i] = count();
        }
    };
    note_outputs(program->forward_outputs, of_forward);
    note_outputs(program->backward_outputs, last);
    readers_ = Rows<int>(readers, count());
    last_ = std::move(last);
}

Slice<int> Axis::reads(int i) const {
    if (own_reads_.empty()) return reads_[i];  // the usual case, without a hash
    const auto own = own_reads_.find(i);
    return own == own_reads_.end() ? reads_[i] : Slice<int>(own->second);
}

Slice<int> Axis::readers(int i) const {
    if (own_readers_.empty()) return readers_[i];
    const auto own = own_readers_.find(i);
    return own == own_readers_.end() ? readers_[i] : Slice<int>(own->second);
}

std::vector<int>& Axis::edit_reads(int i) {
    const auto [own, is_new] = own_reads_.try_emplace(i);
    if (is_new) own->second.assign(reads_[i].begin(), reads_[i].end());
    return own->second;
}

std::vector<int>& Axis::edit_readers(int i) {
    const auto [own, is_new] = own_readers_.try_emplace(i);
    if (is_new) own->second.assign(readers_[i].begin(), readers_[i].end());
    return own->second;
}

int Axis::latest(int op, int moment) const {
    int i = last_[op];
    while (i >= moment) i = before[i];
    return i;
}

std::vector<int> Axis::parts(int i) const {
    std::vector<int> found;
    for (int r : readers_[i]) {
        if (r < count() && program->kind[ops[r]] == PART) found.push_back(r);
    }
    return found;
}

int Axis::owner(int i) const {
    while (program->is_view(ops[i])) {
        if (reads(i).empty()) return -1;
        i = reads(i)[0];
    }
    return i;
}

int Axis::last_need(int owner, const Marks& removed) const {
    int last = owner;
    std::vector<int> stack{owner};
    while (!stack.empty()) {
        const int i = stack.back();
        stack.pop_back();
        for (int r : readers(i)) {
            if (r == count()) {
                last = std::max(last, r);
            } else if (removed.has(r)) {
                continue;
            } else if (program->is_view(ops[r])) {
                stack.push_back(r);
            } else {
                last = std::max(last, runs_at[r]);
            }
        }
    }
    return last;
}

}  // namespace remat
