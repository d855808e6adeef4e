#include "order.hpp"

#include <algorithm>

namespace remat {

Recorder::Recorder(const Program& program, Slice<int> kept) : program_(program), is_kept_(program.count, false) {
    for (int v : kept) is_kept_[v] = true;
    is_live_ = is_kept_;
}

std::vector<int> Recorder::demand(Slice<int> values) {
    missing_.begin(program_.count);
    std::vector<int> stack, computed;
    for (int v : values) {
        if (!program_.is_backward[v] && program_.is_paid(v)) stack.push_back(v);
    }
    while (!stack.empty()) {
        const int v = stack.back();
        stack.pop_back();
        if (is_live_[v] || missing_.has(v)) continue;
        if (!program_.may_recompute[v]) throw Unavailable{v};
        missing_.add(v);
        computed.push_back(v);
        for (int u : program_.needs[v]) stack.push_back(u);
    }
    for (int i = 0, first = static_cast<int>(computed.size()); i < first; ++i) {
        for (int p : program_.parts[computed[i]]) {
            if (!is_live_[p] && missing_.add(p)) computed.push_back(p);
        }
    }
    std::sort(computed.begin(), computed.end());
    for (int v : computed) is_live_[v] = true;
    sequence_.insert(sequence_.end(), computed.begin(), computed.end());
    return computed;
}

std::vector<int> Recorder::run(Slice<int> ops) {
    std::vector<int> computed;
    for (int op : ops) {
        const Slice<int> needs = program_.needs[op];
        if (!std::all_of(needs.begin(), needs.end(), [&](int u) { return is_live_[u]; })) {
            const std::vector<int> missing = demand(needs);
            computed.insert(computed.end(), missing.begin(), missing.end());
        }
        sequence_.push_back(op);
    }
    return computed;
}

void Recorder::drop(Slice<int> values) {
    for (int v : values) is_live_[v] = is_kept_[v];
}

bool must_keep(const Program& program, int v) {
    const int made_by = program.kind[v] == PART ? program.inputs[v][0] : v;
    return program.in_forward[v] && !program.is_backward[v] && program.may_keep[v] && !program.may_recompute[made_by];
}

std::vector<int> keep_instead(const Program& program, Slice<int> values) {
    std::vector<int> found, stack(values.begin(), values.end());
    std::vector<char> is_seen(program.count, false);
    while (!stack.empty()) {
        const int v = stack.back();
        stack.pop_back();
        if (is_seen[v]) continue;
        is_seen[v] = true;
        if (program.may_keep[v]) {
            found.push_back(v);
        } else if (program.may_recompute[v]) {  // of an op that may not run again, the results are kept instead
            stack.insert(stack.end(), program.needs[v].begin(), program.needs[v].end());
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

std::vector<int> drop_unread(const Program& program, Slice<int> backward) {
    std::vector<char> is_wanted(program.count, false), stays(backward.size(), true);
    for (int v : program.backward_outputs) is_wanted[v] = !program.is_backward[v];
    std::vector<std::vector<int>> returned(program.count);  // places of the parts met, by the op that returns them
    for (int i = backward.size() - 1; i >= 0; --i) {
        const int op = backward[i];
        if (!program.is_backward[op]) {
            const std::vector<int> of_op = std::move(returned[op]);
            returned[op].clear();
            if (program.kind[op] == PART) returned[program.inputs[op][0]].push_back(i);
            if (!is_wanted[op] && !program.is_fixed[op]) {
                stays[i] = false;
                continue;
            }
            is_wanted[op] = false;
            for (int part : of_op) stays[part] = true;  // an op returns all its results at once
        }
        for (int u : program.needs[op]) is_wanted[u] = true;
    }
    std::vector<int> left;
    for (int i = 0; i < backward.size(); ++i) {
        if (stays[i]) left.push_back(backward[i]);
    }
    return left;
}

std::vector<int> drop_overtaken(const Program& program, std::vector<int> backward) {
    Marks met;
    met.begin(program.count);
    const bool is_repeated = !std::all_of(backward.begin(), backward.end(), [&](int op) { return met.add(op); });
    return is_repeated ? drop_unread(program, backward) : backward;
}

Int recompute_ns(const Program& program, Slice<int> backward) {
    std::vector<char> is_met(program.count, false);
    Int total = 0;
    for (int op : backward) {
        if (program.is_backward[op]) continue;
        if (program.in_forward[op] || is_met[op]) total += program.duration_ns[op];
        is_met[op] = true;
    }
    return total;
}

namespace {

// Writes executions down, each after what it reads, parts right behind the op that returns them.
class Writer {
public:
    Writer(const Program& program, Slice<int> backward) : program_(program), backward_(backward) {
        const int count = backward.size();
        is_written_.assign(count, false);
        left_.assign(count, 0);
        others_ = left_;
        link();
        std::vector<char> is_returned(program.count, false);
        for (int v : program.backward_outputs) is_returned[program.root[v]] = true;
        freed_.resize(count);
        for (int i = 0; i < count; ++i) {
            const int op = backward[i];
            freed_[i] = is_returned[program.root[op]] ? 0 : program.size_bytes[op];
            if (program.is_fixed[op]) barriers_.push_back(i);
        }
        std::reverse(barriers_.begin(), barriers_.end());
    }

    // Execution `i`, and before it what it needs and is not there yet, in the given order.
    void run(int i) {
        std::vector<int> stack{i}, missing;
        while (!stack.empty()) {
            const int top = stack.back();
            if (is_written_[top]) {
                stack.pop_back();
                continue;
            }
            missing.clear();
            for (int u : reads_[top]) {
                if (!is_written_[u]) missing.push_back(u);
            }
            if (!missing.empty()) {
                std::sort(missing.rbegin(), missing.rend());
                stack.insert(stack.end(), missing.begin(), missing.end());
                continue;
            }
            stack.pop_back();
            write(top);
        }
    }

    // Everything left before `end`, in the given order.
    void run_until(int end) {
        for (int i = first_left_; i < end; ++i) run(i);
        while (!barriers_.empty() && barriers_.back() < end) barriers_.pop_back();
        first_left_ = std::max(first_left_, end);
    }

    std::vector<int> order;

private:
    // Who reads what, execution by execution. Roots: distinct executions whose storage one reads; a view reads none.
    void link() {
        const int count = backward_.size();
        std::vector<int> latest(program_.count, -1), owner(count), roots;
        std::vector<std::pair<int, int>> readers, parts;
        for (int i = 0; i < count; ++i) {
            const int op = backward_[i];
            const bool is_view = program_.is_view(op);
            int first = -1;
            roots.clear();
            for (int v : program_.inputs[op]) {
                const int u = latest[v];
                if (u < 0) continue;
                if (first < 0) first = u;
                reads_.append(u);
                readers.emplace_back(u, i);
                if (!is_view) roots.push_back(owner[u]);
            }
            reads_.close();
            owner[i] = is_view && first >= 0 ? owner[first] : i;
            std::sort(roots.begin(), roots.end());
            roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
            for (int root : roots) {
                roots_.append(root);
                ++left_[root];
                if (!may_join(i)) ++others_[root];
            }
            roots_.close();
            if (program_.kind[op] == PART && first >= 0) parts.emplace_back(first, i);
            latest[op] = i;
        }
        readers_ = Rows<int>(readers, count);
        parts_ = Rows<int>(parts, count);
    }

    // Write `i` and its parts, and then what can only free memory.
    void write(int i) {
        std::vector<int> pending{i};
        while (!pending.empty()) {
            const int now = pending.back();
            pending.pop_back();
            if (is_written_[now]) continue;
            if (is_joined(now)) write_sums([](int) { return true; });
            std::vector<int> group{now};
            group.insert(group.end(), parts_[now].begin(), parts_[now].end());
            for (int execution : group) {
                is_written_[execution] = true;
                order.push_back(execution);
            }
            for (int execution : group) {
                const Slice<int> readers = readers_[execution];
                for (int k = readers.size() - 1; k >= 0; --k) {
                    if (may_join(readers[k])) {
                        if (is_ready(readers[k])) sums_.push_back(readers[k]);
                    } else if (should_hurry(readers[k])) {
                        pending.push_back(readers[k]);
                    }
                }
                for (int root : roots_[execution]) {
                    --left_[root];
                    if (!may_join(execution)) --others_[root];
                }
            }
            write_sums([&](int sum) { return !others_[roots_[sum][0]]; });
        }
    }

    // Sums that wait, in the given order: all are over a result that was written.
    template <typename Over>
    void write_sums(const Over& is_over) {
        std::vector<int> ending, waiting;
        for (int sum : sums_) {
            if (!is_written_[sum]) (is_over(sum) ? ending : waiting).push_back(sum);
        }
        sums_ = std::move(waiting);
        std::sort(ending.begin(), ending.end());
        for (int sum : ending) write(sum);
    }

    bool may_join(int i) const { return program_.may_join[backward_[i]]; }

    // Whether waiting sums run beside `i`, in one call.
    bool is_joined(int i) const {
        const signed char kind = program_.kind[backward_[i]];
        return (kind == POINTWISE || kind == REDUCTION) && !may_join(i);
    }

    bool is_ready(int i) const {
        const Slice<int> reads = reads_[i];
        return !is_written_[i] && std::all_of(reads.begin(), reads.end(), [&](int u) { return is_written_[u]; });
    }

    // Whether all it reads is there and running it frees at least what it allocates, nothing fixed in between.
    bool should_hurry(int i) const {
        const int op = backward_[i];
        if (!barriers_.empty() && i > barriers_.back()) return false;
        if (program_.is_fixed[op] || program_.is_late[op]) return false;
        if (!is_ready(i)) return false;
        Int freed = 0;
        for (int root : roots_[i]) freed += left_[root] == 1 ? freed_[root] : 0;
        return freed >= program_.size_bytes[op];
    }

    const Program& program_;
    const Slice<int> backward_;
    Rows<int> reads_, readers_, roots_, parts_;
    std::vector<int> left_, others_;  // per execution, how many have yet to read its storage; less sums that wait
    std::vector<int> sums_;           // that wait
    std::vector<Int> freed_;
    std::vector<char> is_written_;
    std::vector<int> barriers_;
    int first_left_ = 0;
};

}  // namespace

std::vector<int> tidy_backward(const Program& program, Slice<int> backward) {
    Writer writer(program, backward);
    std::size_t settled = 0;
    for (int i = 0; i < backward.size(); ++i) {
        const int op = backward[i];
        if (program.is_fixed[op]) {
            writer.run_until(i + 1);
            settled = writer.order.size();
        } else if (program.is_anchor[op]) {
            writer.run(i);
        }
    }
    writer.run_until(backward.size());
    std::vector<int> tidied, late;
    for (std::size_t k = 0; k < writer.order.size(); ++k) {
        const int op = backward[writer.order[k]];
        (k >= settled && program.is_late[op] ? late : tidied).push_back(op);
    }
    tidied.insert(tidied.end(), late.begin(), late.end());
    return tidied;
}

}  // namespace remat
