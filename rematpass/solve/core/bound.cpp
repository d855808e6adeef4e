#include "bound.hpp"

#include <algorithm>

namespace remat {

Moments::Moments(const Program& program) : program_(program), is_returned_(program.count, false) {
    std::vector<std::pair<int, int>> readers;
    Marks met;
    for (int v = 0; v < program.count; ++v) {
        if (program.is_view(v)) continue;
        met.begin(program.count);
        for (int u : program.inputs[v]) {
            const int r = program.root[u];
            if (program.is_backward[r] && met.add(r)) readers.emplace_back(r, v);
        }
    }
    readers_ = Rows<int>(readers, program.count);
    for (int v : program.backward_outputs) is_returned_[program.root[v]] = true;
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
    Int live = 0;
    for (int r = 0; r < program_.count; ++r) {
        if (around.is_over[r] && program_.root[r] == r && program_.size_bytes[r]) live += live_of(r, around);
    }
    return live;
}

Int Moments::live_of(int r, const Around& around) const {
    const signed char kind = program_.kind[r];
    // What certainly reaches memory, also under fusion.
    bool is_stored = kind == EXTERN || kind == REDUCTION || kind == PART || kind == INPUT || is_returned_[r];
    bool is_wanted = is_returned_[r];
    Int made = 0;
    for (int v : readers_[r]) {
        is_stored |= is_certain(v);
        is_wanted |= static_cast<bool>(around.to_come[v]);
        const bool is_made_of_it = is_returned_[v] && first_gradient_of(v) == r && !around.is_over[v];
        if (is_certain(v) && is_made_of_it) made += program_.size_bytes[v];
    }
    if (is_wanted) return is_stored ? program_.size_bytes[r] : 0;
    // Not yet read by all, or the gradients made of it are there: each counts with one of those it is made of.
    return std::min(program_.size_bytes[r], made);
}

// The storage of the first gradient that op v reads; -1 for none.
int Moments::first_gradient_of(int v) const {
    for (int u : program_.inputs[v]) {
        if (program_.is_backward[u]) return program_.root[u];
    }
    return -1;
}

}  // namespace remat
