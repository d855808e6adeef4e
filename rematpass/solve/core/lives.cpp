#include "lives.hpp"

#include <algorithm>

#include "passing.hpp"

namespace remat {

namespace {

// What is held as a view keeps its whole base alive, counted once per base; views of inputs cost nothing.
std::vector<Int> find_sizes(const Program& program, const Trace& trace) {
    std::vector<Int> size(trace.count());
    for (int i = 0; i < trace.count(); ++i) {
        const int op = trace.ops[i];
        if (i >= trace.given) {
            size[i] = program.is_view(op) ? 0 : program.size_bytes[op];
            continue;
        }
        const int base = program.root[op];
        const bool is_outside = program.kind[base] == INPUT && !program.is_backward[base];
        size[i] = is_outside || trace.root[i] != i ? 0 : program.size_bytes[base];
    }
    return size;
}

// When each instance reads, and the last moment each storage is needed. What is fused into a reader is needed when
// that reader runs, and so is what is passed on, which is not stored then.
void find_ends(const Program& program, Half& half, const std::vector<char>& is_final) {
    PassingOn passing(program, half);
    const int count = half.count();
    half.runs_at.assign(count, -1);
    half.end.resize(count);
    for (int i = 0; i < count; ++i) half.end[i] = is_final[i] ? count : -1;
    for (int i = count - 1; i >= 0; --i) {
        if (program.is_fusing && passing.is_one_with_next(i)) {
            half.is_stored[i] = false;
            half.runs_at[i] = half.end[i];
        } else if (half.is_stored[i]) {
            half.runs_at[i] = i;
        }
        for (const Read& read : half.trace.reads[i]) {
            const int u = read.storage;
            half.end[u] = std::max(half.end[u], half.runs_at[i]);
            if (!half.is_stored[u]) half.runs_at[u] = std::max(half.runs_at[u], half.runs_at[i]);
        }
    }
}

// Pointwise results in memory, each with the storages it reads last and could write over: never what the caller handed
// to the backward. Also those that a result of the same kernel could write over, which this one then writes over: what
// that one alone reads there, of its size.
class Dying {
public:
    Dying(const Program& program, const Half& half)
        : half_(half), width_(half.count() + 1), may_take_(half.is_stored), is_last_(half.count() + 1, false) {
        const int count = half.count();
        std::vector<std::pair<int, int>> inner;
        for (int i = 0; i < count; ++i) {
            const int op = half.trace.ops[i];
            if (i < half.trace.given ? program.is_tangent(op) : program.is_guarded(op)) may_take_[i] = false;
            if (may_take_[i] && half.end[i] >= 0) is_last_[half.end[i]] = true;
            if (half.fusion.is_source[i] && !half.is_stored[i]) inner.emplace_back(half.runs_at[i], i);
        }
        inner_ = Rows<int>(inner, count);
    }

    bool may_be_heir(int i) const { return half_.fusion.is_source[i] && half_.is_stored[i] && is_last_[i]; }

    std::vector<int> of(int i) const {
        const Slice<Int> loads = half_.fusion.loads(i);
        std::vector<int> dying;
        for (Int d : loads) {
            if (dies(d, i) && is_straight(loads, width_, d)) dying.push_back(static_cast<int>(d));
        }
        for (int p : inner_[i]) {
            if (is_straight(loads, width_, p)) add_inner(i, p, dying);
        }
        return dying;
    }

private:
    // Whether a load addresses, element for element, what instance `i` reads last and could write over.
    bool dies(Int d, int i) const { return d >= 0 && d < width_ && half_.end[d] == i && may_take_[d]; }

    bool is_read_by_other(Int d, int i, int p) const {
        const auto reads = [&](int q) {
            const Slice<Int> loads = half_.fusion.loads(q);
            return std::any_of(loads.begin(), loads.end(), [&](Int u) { return u >= 0 && u % width_ == d; });
        };
        if (reads(i)) return true;
        return std::any_of(inner_[i].begin(), inner_[i].end(), [&](int q) { return q != p && reads(q); });
    }

    void add_inner(int i, int p, std::vector<int>& dying) const {
        const Slice<Int> loads = half_.fusion.loads(p);
        for (Int d : loads) {
            if (!dies(d, i) || half_.size[d] != half_.size[p] || !is_straight(loads, width_, d)) continue;
            if (!is_read_by_other(d, i, p)) dying.push_back(static_cast<int>(d));
        }
    }

    const Half& half_;
    const Int width_;
    std::vector<char> may_take_, is_last_;
    Rows<int> inner_;  // per kernel, the results computed in it besides its own
};

void fuse(const Program& program, Half& half, const std::vector<char>& is_final) {
    half.fusion = find_stored(program, half.trace, is_final);
    half.is_stored = half.fusion.is_stored;
    find_ends(program, half, is_final);
    const Dying dying(program, half);
    for (int i = half.trace.given; i < half.count(); ++i) {
        if (!half.size[i] || !dying.may_be_heir(i)) continue;
        for (int d : dying.of(i)) {
            if (half.size[d] == half.size[i]) half.taken[i] = half.size[i];
        }
    }
}

// Ends of all storages; those of `final` stay to the end, the given ones whose storage is marked `outside` cost
// nothing.
Half find_lives(const Program& program, Trace trace, const std::vector<int>& final, const std::vector<char>& outside) {
    Half half;
    half.trace = std::move(trace);
    const int count = half.count();
    half.size = find_sizes(program, half.trace);
    for (int i = 0; !outside.empty() && i < half.trace.given; ++i) {
        if (outside[program.root[half.trace.ops[i]]]) half.size[i] = 0;
    }
    std::vector<char> is_final(count, false);
    for (int i : final) is_final[i] = true;
    half.taken.assign(count, 0);
    if (program.is_fusing) {
        fuse(program, half, is_final);
    } else {
        half.is_stored.assign(count, true);
        find_ends(program, half, is_final);
    }
    return half;
}

// Which instances nothing but one view has as its input.
std::vector<char> seen_by_one_view(const Program& program, const Trace& trace) {
    std::vector<int> latest(program.count, -1), seen(trace.count(), 0);
    std::vector<char> is_by_view(trace.count(), false);
    for (int i = 0; i < trace.count(); ++i) {
        const int op = trace.ops[i];
        for (int u : program.inputs[op]) {
            if (i < trace.given || latest[u] < 0) continue;
            ++seen[latest[u]];
            if (program.is_view(op)) is_by_view[latest[u]] = true;
        }
        latest[op] = i;
    }
    for (int i = 0; i < trace.count(); ++i) is_by_view[i] &= seen[i] == 1;
    return is_by_view;
}

}  // namespace

Half find_forward(const Program& program, Trace forward, Slice<int> kept) {
    std::vector<int> final = forward.roots_of(kept);
    for (int i : forward.roots_of(program.forward_outputs)) final.push_back(i);
    return find_lives(program, std::move(forward), final, {});
}

Half find_backward(const Program& program, Slice<int> sequence, Slice<int> kept) {
    std::vector<char> is_held(program.count, false), is_output(program.count, false);
    std::vector<int> held;
    const auto hold = [&](int v) {
        if (!is_held[v]) held.push_back(v);
        is_held[v] = true;
    };
    for (int v : kept) hold(v);
    for (int v : program.forward_outputs) {
        hold(v);
        is_output[v] = true;
    }
    for (int v = 0; v < program.count; ++v) {
        if (program.is_tangent(v)) hold(v);
    }
    Trace trace = trace_sequence(program, sequence, held);
    std::vector<int> final = trace.roots_of(program.backward_outputs);
    for (int i = 0; i < trace.given; ++i) {
        if (is_output[trace.ops[i]]) final.push_back(trace.root[i]);
    }
    return find_lives(program, std::move(trace), final, {});
}

Span find_span(const Half& half, int i) {
    const int given = half.trace.given;
    const bool is_given = i < given;
    // What is given and never read is gone before the first op.
    const int start = is_given ? given : i;
    const int stop = std::max(half.end[i] < 0 ? i : half.end[i], start - is_given) + 1;
    return {half.trace.root[i] == i && half.is_stored[i], start, std::min(stop, half.count() + 1)};
}

std::vector<Int> live_bytes(const Program& program, const Half& half) {
    const int count = half.count(), given = half.trace.given;
    std::vector<Int> change(count + 2, 0);
    for (int i = 0; i < count; ++i) {
        const Span span = find_span(half, i);
        if (!span.is_there) continue;
        change[span.start] += half.size[i];
        change[span.stop] -= half.size[i];
    }
    std::vector<Int> live(count - given);
    Int now = 0;
    for (int i = 0; i < count; ++i) {
        now += change[i];
        if (i >= given) live[i - given] = now + program.workspace_bytes[half.trace.ops[i]] - half.taken[i];
    }
    return live;
}

std::vector<Takeover> find_heirs(const Program& program, const Half& half) {
    std::vector<Takeover> found;
    if (!program.is_fusing) return found;
    const Dying dying(program, half);
    for (int i = half.trace.given; i < half.count(); ++i) {
        if (!dying.may_be_heir(i)) continue;
        std::vector<int> of = dying.of(i);
        if (!of.empty()) found.emplace_back(i, std::move(of));
    }
    return found;
}

std::vector<char> find_put_off(const Program& program, const Half& half) {
    const Trace& trace = half.trace;
    std::vector<char> put_off = read_by_externs(program, trace);
    const std::vector<char> by_view = seen_by_one_view(program, trace);
    const auto kind = [&](int i) { return program.kind[trace.ops[i]]; };
    for (int i = 0; i < trace.count(); ++i) {
        const bool is_pointwise = kind(i) == POINTWISE;
        put_off[i] = is_pointwise && (put_off[i] || (by_view[i] && half.is_stored[i]));
    }
    for (int i = trace.given; i < trace.count(); ++i) {
        if (!program.is_scatter(trace.ops[i])) continue;
        for (const Read& read : trace.reads[i]) put_off[read.storage] |= kind(read.storage) == REDUCTION;
    }
    for (const auto& [i, dying] : find_heirs(program, half)) {
        for (int d : dying) {
            if (half.size[d] != half.size[i] || half.size[i] <= 0) continue;
            for (int one : {i, d}) put_off[one] |= kind(one) == POINTWISE || kind(one) == REDUCTION;
        }
    }
    return {put_off.begin() + trace.given, put_off.end()};
}

Int local_peak(const Program& program, Slice<int> sequence, Slice<int> returned, Slice<int> outside) {
    std::vector<char> is_held(program.count, false), is_outside(program.count, false);
    std::vector<int> held;
    const auto hold = [&](int v) {
        if (!is_held[v]) held.push_back(v);
        is_held[v] = true;
    };
    for (int v : kept_values(program, sequence, {})) {
        if (program.kind[v] != SYMBOL) hold(v);
    }
    for (int op : sequence) {
        for (int u : program.inputs[op]) {
            if (program.is_tangent(u)) hold(u);
        }
    }
    for (int v : outside) is_outside[v] = true;
    Trace trace = trace_sequence(program, sequence, held);
    const std::vector<int> final = trace.roots_of(returned);
    const std::vector<Int> live = live_bytes(program, find_lives(program, std::move(trace), final, is_outside));
    return live.empty() ? 0 : std::max<Int>(0, *std::max_element(live.begin(), live.end()));
}

std::pair<Int, int> peak_above_inputs(const Program& program, const Half& forward, const Half& backward) {
    std::pair<Int, int> highest(0, -1);
    for (const Half* half : {&forward, &backward}) {
        const std::vector<Int> live = live_bytes(program, *half);
        const auto peak = std::max_element(live.begin(), live.end());
        if (peak == live.end() || *peak <= highest.first) continue;
        highest = {*peak, half->trace.ops[half->trace.given + (peak - live.begin())]};
    }
    return highest;
}

std::pair<Int, int> peak_above_inputs(const Program& program, Trace forward, Slice<int> backward) {
    const std::vector<int> kept = kept_in_memory(program, backward);
    const Half first = find_forward(program, std::move(forward), kept);
    return peak_above_inputs(program, first, find_backward(program, backward, kept));
}

}  // namespace remat
