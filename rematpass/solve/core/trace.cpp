#include "trace.hpp"

#include <algorithm>

namespace remat {

namespace {

const auto is_before = [](const Read& a, const Read& b) {
    if (a.storage != b.storage) return a.storage < b.storage;
    return a.way != b.way ? a.way < b.way : a.is_broadcast > b.is_broadcast;
};
const auto is_same = [](const Read& a, const Read& b) { return a.storage == b.storage && a.way == b.way; };

// What is handed over shares storages as it did where it was made.
void root_given(const Program& program, Trace& trace) {
    std::vector<int> owner(program.count, -1);
    for (int i = 0; i < trace.given; ++i) {
        int& first = owner[program.root[trace.ops[i]]];
        if (first < 0) first = i;
        trace.root[i] = first;
    }
}

}  // namespace

std::vector<int> Trace::roots_of(Slice<int> values) const {
    std::vector<int> found;
    for (int v : values) {
        if (last[v] >= 0 && root[last[v]] >= 0) found.push_back(root[last[v]]);
    }
    return found;
}

Trace trace_sequence(const Program& program, Slice<int> sequence, Slice<int> held) {
    Trace trace;
    trace.ops.assign(held.begin(), held.end());
    trace.given = held.size();
    for (int op : sequence) {
        if (program.is_paid(op)) trace.ops.push_back(op);
    }
    trace.root.resize(trace.count());
    trace.last.assign(program.count, -1);
    root_given(program, trace);
    for (int i = 0; i < trace.given; ++i) {
        trace.last[trace.ops[i]] = i;
        trace.reads.close();
    }
    trace.reads.reserve(trace.count(), 3 * trace.count());
    std::vector<Read> own;
    for (int i = trace.given; i < trace.count(); ++i) {
        const int op = trace.ops[i];
        const Slice<int> inputs = program.inputs[op], access = program.access[op];
        trace.root[i] = i;
        if (program.is_view(op)) {  // lives where its first input lives
            const int source = inputs.empty() ? -1 : trace.last[inputs[0]];
            trace.root[i] = source < 0 ? -1 : trace.root[source];
        } else {
            own.clear();
            for (int k = 0; k < inputs.size(); ++k) {
                const int source = trace.last[inputs[k]];
                if (source < 0 || trace.root[source] < 0) continue;
                const bool is_broadcast = program.broadcasts.size() && program.broadcasts[op][k];
                own.push_back({trace.root[source], access[k], is_broadcast});
            }
            if (own.size() > 1) {
                std::sort(own.begin(), own.end(), is_before);
                own.erase(std::unique(own.begin(), own.end(), is_same), own.end());
            }
            for (const Read& read : own) trace.reads.append(read);
        }
        trace.reads.close();
        trace.last[op] = i;
    }
    return trace;
}

Trace trace_forward(const Program& program, Slice<int> sequence) { return trace_sequence(program, sequence, {}); }

std::vector<int> kept_values(const Program& program, Slice<int> backward, Slice<int> outputs) {
    std::vector<char> is_there(program.count, false), is_listed(program.count, false);
    std::vector<int> kept;
    const auto note = [&](int v) {
        if (!is_listed[v]) kept.push_back(v);
        is_listed[v] = true;
    };
    for (int op : backward) {
        for (int u : program.inputs[op]) {
            if (!is_there[u] && !program.is_tangent(u)) note(u);
        }
        is_there[op] = true;
    }
    for (int v : outputs) {
        if (!is_there[v] && !program.is_backward[v]) note(v);
    }
    return kept;
}

std::vector<int> kept_in_memory(const Program& program, Slice<int> backward) {
    std::vector<int> kept = kept_values(program, backward, program.backward_outputs);
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](int v) { return !program.is_paid(v); }), kept.end());
    return kept;
}

}  // namespace remat
