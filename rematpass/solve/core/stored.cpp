#include "stored.hpp"

#include <algorithm>
#include <functional>
#include <set>

namespace remat {

namespace {

// Inductor stores a pointwise result that reads more than 4 buffers and has several readers
// (`realize_reads_threshold`), or more than `Program.most_reads` whoever reads it; torch 2.13 defaults.
constexpr int SHARED_READS = 4;
// A function that reads one tensor and has one reader may be this long, whatever `Program.most_operations` says
// (`GraphLowering.run_node`, torch 2.13).
constexpr Int LONGEST = 100;
// What a result without its bias, and the bias, are to their readers.
constexpr Int LOADS_APART = 2;

void keep_distinct(Loads& loads) {
    if (std::adjacent_find(loads.begin(), loads.end(), std::greater_equal<>()) == loads.end()) return;
    std::sort(loads.begin(), loads.end());
    loads.erase(std::unique(loads.begin(), loads.end()), loads.end());
}

// Walks along the instances once and fuses what may be.
class Fuser {
public:
    Fuser(const Program& program, const Trace& trace, const std::vector<char>& is_final)
        : program_(program), trace_(trace), width_(trace.count() + 1), at_(trace.count()) {
        const int count = trace.count();
        result_.all.reserve(4 * static_cast<std::size_t>(count));
        result_.first.assign(count, 0);
        result_.last.assign(count, 0);
        result_.is_stored.assign(count, true);
        result_.is_source.assign(count, false);
        for (int i = 0; i < count; ++i) at_[i].is_needed = is_final[i];
        count_readers();
    }

    Stored run() {
        for (int i = trace_.given; i < trace_.count(); ++i) {
            const int op = trace_.ops[i];
            set_apart(i, op);
            // What readers of a reduction still do to what is stored becomes a part of theirs, unless a mean itself is
            // stored.
            const Int tail = at_[i].is_needed ? 0 : program_.tail_of(op);
            at_[i].has_tail = tail > 0;
            at_[i].length += tail;
            if (program_.kind[op] == POINTWISE) place(i);
        }
        return std::move(result_);
    }

private:
    struct Instance {
        Int length = 1;  // steps of the function that computes it
        int readers = 0;
        bool is_needed = false;  // stored whatever it reads
        bool is_mixed = false;   // read by what is not pointwise
        bool is_broadcast = false, is_read_often = false;
        bool is_fused = false, is_apart = false, is_costly = false, has_tail = false;
    };

    void count_readers() {
        for (int i = trace_.given; i < trace_.count(); ++i) {
            const int op = trace_.ops[i];
            const bool is_extern = program_.is_extern(op), is_mixed = program_.kind[op] != POINTWISE;
            const bool reads_often = !program_.reads_often.empty() && program_.reads_often[op];
            for (const Read& read : trace_.reads[i]) {
                Instance& source = at_[read.storage];
                ++source.readers;
                source.is_needed |= is_extern;
                source.is_mixed |= is_mixed;
                source.is_read_often |= reads_often;
                source.is_broadcast |= read.is_broadcast;
            }
        }
    }

    // A result to which its readers add a bias stands for two loads: itself and that bias.
    void set_apart(int i, int op) {
        if (program_.addend.empty()) return;
        const signed char addend = program_.addend[op];
        Instance& self = at_[i];
        if (addend == BY_OP || self.is_needed || (addend == BY_POINTWISE && self.is_mixed)) return;
        self.is_apart = self.is_fused = true;
        self.length = 1 + LOADS_APART;
        loads_ = {-1 - static_cast<Int>(op), static_cast<Int>(i)};
        note_loads(i);
    }

    void note_loads(int i) {
        result_.first[i] = static_cast<int>(result_.all.size());
        result_.all.insert(result_.all.end(), loads_.begin(), loads_.end());
        result_.last[i] = static_cast<int>(result_.all.size());
    }

    int most_reads(const Instance& self) const {
        if (self.is_needed) return -1;
        const bool is_shared = self.readers > 1 || (self.is_broadcast && program_.is_broadcast_shared);
        const int most = is_shared ? SHARED_READS : program_.most_reads;
        return self.is_read_often ? std::min(most, 1) : most;
    }

    // What `loads` address, addressed once more in `way`.
    void add_through(Int way, Slice<Int> loads, Loads& into) const {
        const Int count = program_.count;
        for (Int u : loads) {
            if (!way) {
                into.push_back(u);
            } else if (u >= 0) {
                into.push_back(u % width_ + width_ * program_.combine(u / width_, way));
            } else {
                const Int code = -1 - u;
                into.push_back(-1 - code % count - count * program_.combine(code / count, way));
            }
        }
    }

    // Into `loads_`, each once; the steps of the function that computes it are returned, what several read counted
    // several times.
    Int collect_loads(int i) {
        const int op = trace_.ops[i];
        const Slice<Int> outside = program_.outside[op];
        loads_.assign(outside.begin(), outside.end());
        Int steps = program_.length(op) + outside.size();
        for (const Read& read : trace_.reads[i]) {
            const Int self = read.storage;
            const Instance& source = at_[self];
            steps += source.length;
            add_through(read.way, source.is_fused ? result_.loads(read.storage) : Slice<Int>(&self, &self + 1), loads_);
        }
        keep_distinct(loads_);
        return steps;
    }

    void place(int i) {
        Instance& self = at_[i];
        const int op = trace_.ops[i], most = most_reads(self);
        Int steps = collect_loads(i);
        bool is_costly = program_.is_heavy[op];
        for (const Read& read : trace_.reads[i]) is_costly |= at_[read.storage].is_costly;
        const bool is_shared = self.readers > 1 || self.is_broadcast;
        const auto reads = static_cast<int>(loads_.size());
        const Int longest = std::max(LONGEST, program_.most_operations);
        const Int most_steps = is_shared || reads > 1 ? program_.most_operations : longest;
        if (steps > most_steps && reads <= most) steps = reads + count_operations(i);
        const bool is_short = reads <= most && steps <= most_steps;
        if (is_short && !(is_costly && is_shared) && !program_.is_put_down(op)) {
            self.is_fused = true;
            self.length = steps;
            self.is_costly = is_costly;
            result_.is_stored[i] = false;
        } else {
            result_.is_source[i] = true;
        }
        note_loads(i);
    }

    // Steps and constants of what instance `i` computes with all that is fused into it, each once. Of what is apart
    // that is the addition of its bias: one step.
    Int count_operations(int i) const {
        std::vector<std::pair<int, Int>> todo{{i, 0}};
        std::set<std::pair<int, Int>> seen(todo.begin(), todo.end()), counted;
        std::set<std::pair<Int, Int>> constants;
        Int steps = 0;
        while (!todo.empty()) {
            const auto [u, ways] = todo.back();
            todo.pop_back();
            const Int alone = ways ? program_.combine(0, ways) : 0;  // whatever is fused into it was picked
            const bool is_new = counted.emplace(u, alone).second;
            if (at_[u].is_apart) {
                steps += is_new;
                continue;
            }
            const int op = trace_.ops[u];
            if (is_new) steps += program_.operations_of(op);
            if (program_.constants.size()) {
                for (Int c : program_.constants[op]) constants.emplace(c, c < 0 ? alone : 0);
            }
            if (at_[u].has_tail) continue;
            for (const Read& read : trace_.reads[u]) {
                const std::pair<int, Int> found{read.storage, read.way ? program_.combine(read.way, ways) : ways};
                const bool is_inside = at_[read.storage].is_fused || at_[read.storage].has_tail;
                if (is_inside && seen.insert(found).second) todo.push_back(found);
            }
        }
        return steps + static_cast<Int>(constants.size());
    }

    const Program& program_;
    const Trace& trace_;
    const Int width_;
    std::vector<Instance> at_;
    Loads loads_;
    Stored result_;
};

}  // namespace

Stored find_stored(const Program& program, const Trace& trace, const std::vector<char>& is_final) {
    return Fuser(program, trace, is_final).run();
}

bool is_straight(Slice<Int> loads, Int width, Int storage) {
    if (!std::binary_search(loads.begin(), loads.end(), storage)) return false;
    const Int* askew = std::lower_bound(loads.begin(), loads.end(), width);
    return std::none_of(askew, loads.end(), [&](Int u) { return u % width == storage; });
}

std::vector<char> read_by_externs(const Program& program, const Trace& trace) {
    std::vector<char> needed(trace.count(), false);
    for (int i = trace.given; i < trace.count(); ++i) {
        if (!program.is_extern(trace.ops[i])) continue;
        for (const Read& read : trace.reads[i]) needed[read.storage] = true;
    }
    return needed;
}

}  // namespace remat
