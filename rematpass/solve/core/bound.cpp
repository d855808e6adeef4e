#include "bound.hpp"

#include <algorithm>

#include "flow.hpp"

namespace remat {

Moments::Moments(const Program& program)
    : program_(program), is_returned_(program.count, false), is_stored_(program.count, false) {
    std::vector<std::pair<int, int>> sources;
    Marks met;
    for (int v : program.backward_outputs) is_returned_[program.root[v]] = true;
    for (int v = 0; v < program.count; ++v) {
        if (program.is_view(v)) continue;
        const signed char kind = program.kind[v];
        is_stored_[v] |= kind != POINTWISE || !program.is_fusing || is_returned_[v];
        met.begin(program.count);
        for (int u : program.inputs[kind == PART ? program.inputs[v][0] : v]) {  // parts come with what they are of
            const int r = program.root[u];
            if (!program.is_backward[r] || !met.add(r)) continue;
            sources.emplace_back(v, r);
            is_stored_[r] |= is_certain(v);
        }
    }
    sources_ = Rows<int>(sources, program.count);
}

Around Moments::around(int k, const std::vector<int>& before, const std::vector<int>& after) const {
    const int count = program_.count;
    int below = -1, above = count;  // what is fixed divides all ops
    for (int v = 0; v < count; ++v) {
        if (!program_.is_fixed[v] || !program_.is_backward[v]) continue;
        if (v <= k) below = v;
        if (v >= k) above = std::min(above, v);
    }
    Around found{std::vector<char>(count, false), std::vector<char>(count, false)};
    std::vector<int> stack(before);
    for (int v : before) found.is_over[v] = true;
    stack.push_back(k);
    while (!stack.empty()) {
        const int v = stack.back();
        stack.pop_back();
        for (int u : program_.inputs[v]) {
            if (!program_.is_backward[u] || found.is_over[u]) continue;
            found.is_over[u] = true;
            stack.push_back(u);
        }
    }
    found.to_come[k] = true;
    for (int v : after) found.to_come[v] = true;
    for (int v = 0; v < count; ++v) {
        if (!program_.is_backward[v] || found.to_come[v]) continue;
        const auto inputs = program_.inputs[v];
        const auto is_to_come = [&](int u) { return found.to_come[u]; };
        found.to_come[v] = v >= above || std::any_of(inputs.begin(), inputs.end(), is_to_come);
    }
    for (int v = 0; v <= below; ++v) found.is_over[v] |= program_.is_backward[v];
    found.is_over[k] = false;
    for (int v = 0; v < count; ++v) {  // an op returns all its results at once
        if (program_.kind[v] != PART || !program_.is_backward[v]) continue;
        found.is_over[v] = v != k && (found.is_over[v] || found.is_over[program_.inputs[v][0]]);
    }
    for (int v = 0; v < count; ++v) found.is_over[v] |= program_.is_tangent(v);
    return found;
}

Int Moments::live_gradients(const Around& around) const {
    const int count = program_.count;
    const auto is_start = [&](int r) { return around.is_over[r] && is_stored_[r]; };
    std::vector<int> place(count, -1), met;
    std::vector<Arc> arcs;
    const int source = 0, sink = 1;
    const auto entry = [&](int r) {
        if (place[r] < 0) {
            place[r] = 2 + 2 * static_cast<int>(met.size());
            met.push_back(r);
            const bool is_counted = is_start(r) && is_returned_[r];
            const Int capacity = is_counted ? 0 : program_.size_bytes[r];
            arcs.push_back({place[r], place[r] + 1, capacity});
            if (is_start(r)) arcs.push_back({source, place[r], MAX_CAPACITY});
        }
        return place[r];
    };
    Int live = 0;
    for (int v = 0; v < count; ++v) {
        if (!program_.is_backward[v] || program_.is_view(v)) continue;
        if (around.to_come[v]) {
            for (int r : sources_[v]) {
                if (!around.to_come[r]) arcs.push_back({entry(r) + 1, sink, MAX_CAPACITY});
            }
        } else if (is_returned_[v] && is_start(v)) {
            live += program_.size_bytes[v];
        } else if (is_returned_[v]) {
            arcs.push_back({entry(v) + 1, sink, MAX_CAPACITY});
        }
    }
    for (std::size_t i = 0; i < met.size(); ++i) {  // grows
        const int v = met[i];
        if (is_start(v)) continue;
        for (int r : sources_[v]) arcs.push_back({entry(r) + 1, place[v], MAX_CAPACITY});
    }
    const Flow flow = arcs.empty() ? 0 : minimum_cut(2 + 2 * static_cast<int>(met.size()), arcs, source, sink).flow;
    return live + static_cast<Int>(flow);
}

}  // namespace remat
