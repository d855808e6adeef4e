#include "closure.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>

#include "flow.hpp"
#include "network.hpp"
#include "work.hpp"

namespace remat {

namespace {

// A size times a price.
using Wide = unsigned __int128;

// The network over the open variables; fixed ones are merged into the source, closed ones into the sink.
class Network {
public:
    Network(Variables x, const Closure* upper, const Closure* lower) : x_(x), node_(2 * x.count + 2, OPEN) {
        for (int v = 0; v < x.count; ++v) {
            place(x.available(v), upper && upper->available[v], !lower || lower->available[v]);
            place(x.recomputed(v), upper && upper->recomputed[v], !lower || lower->recomputed[v]);
        }
        node_[x.source()] = SOURCE;
        node_[x.sink()] = SINK;
    }

    void add(const Arc& arc) {
        const int from = node(arc.tail), to = node(arc.head);
        const bool is_useful = from != to && to != SOURCE && from != SINK && !(from == SOURCE && to == SINK);
        if (is_useful) arcs_.push_back({from, to, arc.capacity});
    }

    // Per variable, whether it is 1.
    std::vector<char> cut() {
        ++work_done().cuts;
        work_done().arcs += static_cast<Int>(arcs_.size());
        const std::vector<char> side = minimum_cut(next_, arcs_, SOURCE, SINK).side;
        std::vector<char> found(2 * x_.count);
        for (int x = 0; x < x_.source(); ++x) found[x] = node_[x] == SOURCE || (node_[x] > SINK && side[node_[x]]);
        return found;
    }

private:
    static constexpr int SOURCE = 0, SINK = 1, OPEN = -1;

    void place(int x, bool is_fixed, bool is_open) {
        if (is_fixed)
            node_[x] = SOURCE;
        else if (!is_open)
            node_[x] = SINK;
    }

    int node(int x) {
        if (node_[x] == OPEN) node_[x] = next_++;
        return node_[x];
    }

    const Variables x_;
    std::vector<int> node_;
    std::vector<Arc> arcs_;
    int next_ = SINK + 1;
};

}  // namespace

void ClosureProblem::find_forced() {
    is_forced.assign(count(), false);
    for (int v = 0; v < count(); ++v) is_forced[v] = wanted[v] && !may_keep[v];
    std::vector<std::pair<int, int>> inner;
    for (const auto& [tail, head] : arcs) {
        if (!may_keep[tail] && !may_keep[head]) inner.emplace_back(tail, head);
    }
    std::sort(inner.rbegin(), inner.rend());
    for (const auto& [tail, head] : inner) is_forced[head] |= is_forced[tail];
}

Closure ClosureProblem::solve(const Price& price, const Closure* upper, const Closure* lower) const {
    const Capacities capacities = find_capacities(*this, price, Rounding::NEAREST);
    Network network({count()}, upper, lower);
    each_arc(*this, capacities, [&](const Arc& arc) { network.add(arc); });
    const std::vector<char> side = network.cut();
    return measure({side.begin(), side.begin() + count()}, {side.begin() + count(), side.end()});
}

std::optional<Closure> ClosureProblem::vertex_between(const Closure& high, const Closure& low) const {
    const Int saved = high.kept_bytes - low.kept_bytes, spent = low.extra_ns - high.extra_ns;
    if (saved <= 0 || spent <= 0) return std::nullopt;
    Closure middle = solve(Price{{saved, spent}}, &high, &low);
    const auto height = [&](const Closure& c) {
        return static_cast<Wide>(c.kept_bytes) * static_cast<Wide>(spent) +
               static_cast<Wide>(c.extra_ns) * static_cast<Wide>(saved);
    };
    if (height(middle) >= height(high)) return std::nullopt;
    // Rounding of the capacities, no vertex.
    if (middle.kept_bytes == high.kept_bytes || middle.kept_bytes == low.kept_bytes) return std::nullopt;
    return middle;
}

// Solve where the lines of two neighbours cross, until nothing below the line appears.
std::vector<Closure> ClosureProblem::sweep(int resolution) const {
    std::deque<Closure> found;  // what it holds does not move when more comes
    found.push_back(solve(std::nullopt, nullptr, nullptr));
    found.push_back(solve(Price{{0, 1}}, &found[0], nullptr));
    const Int bytes = found[0].kept_bytes - found[1].kept_bytes, time = found[1].extra_ns - found[0].extra_ns;
    std::vector<std::pair<const Closure*, const Closure*>> stack{{&found[0], &found[1]}};
    while (!stack.empty()) {
        const auto [high, low] = stack.back();
        stack.pop_back();
        const bool is_narrow = (high->kept_bytes - low->kept_bytes) * resolution < bytes;
        const bool is_flat = (low->extra_ns - high->extra_ns) * resolution < time;
        if (resolution && (is_narrow || is_flat)) continue;
        std::optional<Closure> middle = vertex_between(*high, *low);
        if (!middle) continue;
        found.push_back(*std::move(middle));
        stack.emplace_back(high, &found.back());
        stack.emplace_back(&found.back(), low);
    }
    std::vector<Closure> hull{std::make_move_iterator(found.begin()), std::make_move_iterator(found.end())};
    std::stable_sort(hull.begin(), hull.end(),
                     [](const auto& a, const auto& b) { return a.kept_bytes > b.kept_bytes; });
    const auto is_same = [](const auto& a, const auto& b) { return a.kept_bytes == b.kept_bytes; };
    hull.erase(std::unique(hull.begin(), hull.end(), is_same), hull.end());
    return hull;
}

Closure ClosureProblem::measure(std::vector<char> available, std::vector<char> recomputed) const {
    Closure closure{std::move(available), std::move(recomputed)};
    for (int v = 0; v < count(); ++v) {
        if (closure.available[v] && !closure.recomputed[v]) closure.kept_bytes += keep_bytes[v];
        if (closure.recomputed[v]) closure.extra_ns += recompute_ns[v];
    }
    return closure;
}

std::vector<Closure> ClosureProblem::fill_between(const Closure& upper, const Closure& lower, int most) const {
    std::vector<char> is_changed(count());
    std::vector<int> leader(count());
    for (int v = 0; v < count(); ++v) {
        is_changed[v] = (lower.recomputed[v] && !upper.recomputed[v]) || (lower.available[v] && !upper.available[v]);
        leader[v] = v;
    }
    const auto find = [&](int v) {
        while (leader[v] != v) v = leader[v] = leader[leader[v]];
        return v;
    };
    for (const auto& [tail, head] : arcs) {
        if (!is_changed[tail] || !is_changed[head] || !lower.recomputed[tail]) continue;
        const int one = find(tail), other = find(head);
        leader[std::max(one, other)] = std::min(one, other);  // a part is named by its first value
    }
    std::map<int, std::vector<int>> parts;
    for (int v = 0; v < count(); ++v) {
        if (is_changed[v]) parts[find(v)].push_back(v);
    }
    const int total = static_cast<int>(parts.size());
    const int group = most ? (total + most - 1) / most : 1;
    std::vector<Closure> filled;
    Closure now = upper;
    int moved = 0;
    for (const auto& [_, members] : parts) {
        if (++moved == total) break;  // that would be `lower`
        for (int v : members) {
            now.available[v] = lower.available[v];
            now.recomputed[v] = lower.recomputed[v];
        }
        if (moved % group == 0) filled.push_back(measure(now.available, now.recomputed));
    }
    return filled;
}

std::vector<int> held_values(const Program& program, Slice<int> reads, const std::vector<char>& is_inside) {
    std::vector<int> held, stack(reads.begin(), reads.end());
    while (!stack.empty()) {
        const int u = stack.back();
        stack.pop_back();
        if (!program.is_paid(u) || program.from_inputs[u]) continue;
        if (program.is_view(u) && !is_inside[u]) {
            stack.insert(stack.end(), program.inputs[u].begin(), program.inputs[u].end());
        } else {
            held.push_back(u);
        }
    }
    std::sort(held.begin(), held.end());
    held.erase(std::unique(held.begin(), held.end()), held.end());
    return held;
}

std::pair<ClosureProblem, std::vector<int>> closure_problem(const Program& program, Slice<int> scope, Slice<int> wanted,
                                                            Slice<int> free) {
    std::vector<char> is_free(program.count, false), is_inside(program.count, false);
    std::vector<int> place(program.count, -1), values;
    for (int v : free) is_free[v] = true;
    for (int v : program.forward_outputs) is_free[program.root[v]] = true;
    for (int v : scope) is_inside[v] = true;
    for (int v = 0; v < program.count; ++v) {
        is_inside[v] = (is_inside[v] || is_free[v]) && program.is_paid(v) && !program.from_inputs[v];
        if (!is_inside[v]) continue;
        place[v] = static_cast<int>(values.size());
        values.push_back(v);
    }
    ClosureProblem problem;
    problem.wanted.assign(values.size(), false);
    for (int v : wanted) {
        if (place[v] >= 0) problem.wanted[place[v]] = true;
    }
    for (int v : values) {
        bool is_closed = true;
        for (int u : held_values(program, program.inputs[v], is_inside)) {
            is_closed &= place[u] >= 0;
            if (place[u] >= 0) problem.arcs.emplace_back(place[v], place[u]);
        }
        const bool may_keep = (program.may_keep[v] || is_free[v]) && program.in_forward[v];
        problem.keep_bytes.push_back(is_free[v] ? 0 : program.size_bytes[v]);
        problem.recompute_ns.push_back(program.in_forward[v] ? program.duration_ns[v] : 0);
        problem.may_keep.push_back(may_keep);
        // What must not be kept has to be computed, also from another stage's values: these are taken to be at hand.
        problem.may_recompute.push_back(program.may_recompute[v] && (is_closed || !may_keep));
    }
    problem.find_forced();
    return {std::move(problem), std::move(values)};
}

}  // namespace remat
