#include "stored.hpp"

#include <algorithm>
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
    std::sort(loads.begin(), loads.end());
    loads.erase(std::unique(loads.begin(), loads.end()), loads.end());
}

// Walks along the instances once and fuses what may be.
class Fuser {
public:
    Fuser(const Program& program, const Trace& trace, const std::vector<char>& is_final)
        : program_(program), trace_(trace), width_(trace.count() + 1), needed_(read_by_externs(program, trace)) {
        const int count = trace.count();
        for (int i = 0; i < count; ++i) needed_[i] |= is_final[i];
        count_readers();
        result_.all.reserve(4 * static_cast<std::size_t>(count));
        result_.first.assign(count, 0);
        result_.last.assign(count, 0);
        is_fused_.assign(count, false);
        is_apart_.assign(count, false);
        is_costly_.assign(count, false);
        has_tail_.assign(count, false);
        length_.assign(count, 1);
        find_apart();
        find_tails();
    }

    Stored run() {
        const int count = trace_.count();
        result_.is_stored.assign(count, true);
        result_.is_source.assign(count, false);
        for (int i = trace_.given; i < count; ++i) {
            if (program_.kind[trace_.ops[i]] == POINTWISE) place(i);
        }
        return std::move(result_);
    }

private:
    void count_readers() {
        const int count = trace_.count();
        readers_.assign(count, 0);
        is_mixed_.assign(count, false);
        is_read_often_.assign(count, false);
        for (int i = trace_.given; i < count; ++i) {
            const int op = trace_.ops[i];
            for (const Read& read : trace_.reads[i]) {
                ++readers_[read.storage];
                if (program_.kind[op] != POINTWISE) is_mixed_[read.storage] = true;
                if (!program_.reads_often.empty() && program_.reads_often[op]) is_read_often_[read.storage] = true;
            }
        }
    }

    // Results to which their readers add a bias stand for two loads: themselves and that bias.
    void find_apart() {
        if (program_.addend.empty()) return;
        for (int i = trace_.given; i < trace_.count(); ++i) {
            const signed char addend = program_.addend[trace_.ops[i]];
            if (addend == BY_OP || needed_[i] || (addend == BY_POINTWISE && is_mixed_[i])) continue;
            is_apart_[i] = is_fused_[i] = true;
            length_[i] = 1 + LOADS_APART;
            loads_ = {-1 - static_cast<Int>(trace_.ops[i]), static_cast<Int>(i)};
            note_loads(i);
        }
    }

    // What readers of a reduction still do to what is stored becomes a part of theirs, unless a mean itself is stored.
    void find_tails() {
        for (int i = trace_.given; i < trace_.count(); ++i) {
            const Int tail = needed_[i] ? 0 : program_.tail_of(trace_.ops[i]);
            has_tail_[i] = tail > 0;
            length_[i] += tail;
        }
    }

    void note_loads(int i) {
        result_.first[i] = static_cast<int>(result_.all.size());
        result_.all.insert(result_.all.end(), loads_.begin(), loads_.end());
        result_.last[i] = static_cast<int>(result_.all.size());
    }

    int most_reads(int i) const {
        if (needed_[i]) return -1;  // stored whatever it reads
        const int most = readers_[i] > 1 ? SHARED_READS : program_.most_reads;
        return is_read_often_[i] ? std::min(most, 1) : most;
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
        const Slice<Read> reads = trace_.reads[i];
        loads_.assign(outside.begin(), outside.end());
        Int steps = program_.length(op) + outside.size();
        for (const Read& read : reads) {
            const Int self = read.storage;
            steps += length_[self];
            add_through(read.way, is_fused_[self] ? result_.loads(read.storage) : Slice<Int>(&self, &self + 1), loads_);
        }
        keep_distinct(loads_);
        return steps;
    }

    void place(int i) {
        const int op = trace_.ops[i], most = most_reads(i);
        Int steps = collect_loads(i);
        bool is_costly = program_.is_heavy[op];
        for (const Read& read : trace_.reads[i]) is_costly |= static_cast<bool>(is_costly_[read.storage]);
        const bool is_shared = readers_[i] > 1;
        const auto reads = static_cast<int>(loads_.size());
        const Int longest = std::max(LONGEST, program_.most_operations);
        const Int most_steps = is_shared || reads > 1 ? program_.most_operations : longest;
        if (steps > most_steps && reads <= most) steps = reads + count_operations(i);
        const bool is_short = reads <= most && steps <= most_steps;
        if (is_short && !(is_costly && is_shared) && !program_.is_put_down(op)) {
            is_fused_[i] = true;
            result_.is_stored[i] = false;
            length_[i] = steps;
            is_costly_[i] = is_costly;
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
            if (is_apart_[u]) {
                steps += is_new;
                continue;
            }
            const int op = trace_.ops[u];
            if (is_new) steps += program_.operations_of(op);
            if (program_.constants.size()) {
                for (Int c : program_.constants[op]) constants.emplace(c, c < 0 ? alone : 0);
            }
            if (has_tail_[u]) continue;
            for (const Read& read : trace_.reads[u]) {
                const std::pair<int, Int> found{read.storage, read.way ? program_.combine(read.way, ways) : ways};
                const bool is_inside = is_fused_[read.storage] || has_tail_[read.storage];
                if (is_inside && seen.insert(found).second) todo.push_back(found);
            }
        }
        return steps + static_cast<Int>(constants.size());
    }

    const Program& program_;
    const Trace& trace_;
    const Int width_;
    std::vector<char> needed_, is_mixed_, is_read_often_, is_fused_, is_apart_, is_costly_, has_tail_;
    std::vector<int> readers_;
    std::vector<Int> length_;
    Loads loads_;
    Stored result_;
};

}  // namespace

Stored find_stored(const Program& program, const Trace& trace, const std::vector<char>& is_final) {
    return Fuser(program, trace, is_final).run();
}

std::vector<int> straight(Slice<Int> loads, Int width) {
    std::vector<int> found;
    const Int* first = std::lower_bound(loads.begin(), loads.end(), Int{0});
    const Int* askew = std::lower_bound(first, loads.end(), width);
    for (const Int* u = first; u != askew; ++u) {
        const bool is_askew = std::any_of(askew, loads.end(), [&](Int v) { return v % width == *u; });
        if (!is_askew) found.push_back(static_cast<int>(*u));
    }
    return found;
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
