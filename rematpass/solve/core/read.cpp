#include "read.hpp"

#include <algorithm>
#include <map>

#include "bind.hpp"

namespace remat {

namespace {

template <class T>
std::vector<T> column(const py::object& program, const char* name) {
    std::vector<T> values;
    for (const py::handle& value : py::sequence(program.attr(name)))
        values.push_back(static_cast<T>(value.cast<Int>()));
    return values;
}

template <class T>
Rows<T> rows(const py::object& program, const char* name) {
    Rows<T> found;
    for (const py::handle& row : py::sequence(program.attr(name))) {
        for (const py::handle& value : row) found.append(value.cast<T>());
        found.close();
    }
    return found;
}

// Element for element where a program says nothing of it.
Rows<int> read_access(const py::object& program, const Rows<int>& inputs) {
    Rows<int> access = rows<int>(program, "access");
    if (access.size()) return access;
    for (int op = 0; op < inputs.size(); ++op) {
        for (int k = 0; k < inputs[op].size(); ++k) access.append(0);
        access.close();
    }
    return access;
}

Rows<int> read_parts(const py::object& program, int count) {
    std::vector<std::pair<int, int>> pairs;
    for (const auto& [op, parts] : program.attr("parts").cast<std::map<int, std::vector<int>>>()) {
        for (int part : parts) pairs.emplace_back(op, part);
    }
    return {pairs, count};
}

// Those that are ahead, and what the forward computes element by element of values that are all larger. Empty: none.
std::vector<char> mark_masks(const Program& program, std::vector<char> found) {
    found.resize(program.count, false);
    for (int v = 0; v < program.count; ++v) {
        const Slice<int> needs = program.needs[v];
        const bool is_of_forward = program.kind[v] == POINTWISE && program.in_forward[v] && !program.is_backward[v];
        const bool is_narrow = is_of_forward && !needs.empty() && std::all_of(needs.begin(), needs.end(), [&](int u) {
                                   return program.size_bytes[v] < program.size_bytes[program.root[u]];
                               });
        found[v] = program.may_keep[v] && (found[v] || is_narrow);
    }
    if (std::find(found.begin(), found.end(), true) == found.end()) found.clear();
    return found;
}

}  // namespace

Program read_program(const py::object& from) {
    Program program;
    program.kind = column<signed char>(from, "kind");
    program.count = static_cast<int>(program.kind.size());
    program.addend = column<signed char>(from, "addend");
    program.root = column<int>(from, "root");
    program.size_bytes = column<Int>(from, "size_bytes");
    program.duration_ns = column<Int>(from, "duration_ns");
    program.workspace_bytes = column<Int>(from, "workspace_bytes");
    program.is_backward = column<char>(from, "is_backward");
    program.in_forward = column<char>(from, "in_forward");
    program.may_recompute = column<char>(from, "may_recompute");
    program.may_keep = column<char>(from, "may_keep");
    program.is_fixed = column<char>(from, "is_fixed");
    program.is_heavy = column<char>(from, "is_heavy");
    program.is_drawn = column<char>(from, "is_drawn");
    program.is_summed = column<char>(from, "is_summed");
    program.is_scattered = column<char>(from, "is_scattered");
    program.is_joined = column<char>(from, "is_joined");
    program.reads_often = column<char>(from, "reads_often");
    program.is_anchor = column<char>(from.attr("urgency"), "is_anchor");
    program.is_late = column<char>(from.attr("urgency"), "is_late");
    program.may_wait = column<char>(from.attr("urgency"), "may_wait");
    program.may_join = column<char>(from.attr("urgency"), "may_join");
    program.from_inputs = column<char>(from, "from_inputs");
    program.inputs = rows<int>(from, "inputs");
    program.access = read_access(from, program.inputs);
    program.broadcasts = rows<int>(from, "broadcasts");
    program.needs = rows<int>(from, "needs");
    program.parts = read_parts(from, program.count);
    program.outside = rows<Int>(from, "outside");
    program.constants = rows<Int>(from, "constants");
    program.elements = column<Int>(from, "elements");
    program.cuts = column<Int>(from, "cuts");
    program.loops = column<Int>(from, "loops");
    program.operations = column<Int>(from, "operations");
    program.forward_outputs = column<int>(from, "forward_outputs");
    program.backward_outputs = column<int>(from, "backward_outputs");
    program.static_bytes = from.attr("static_bytes").cast<Int>();
    program.most_operations = from.attr("most_operations").cast<Int>();
    program.most_reads = from.attr("most_reads").cast<int>();
    program.is_fusing = from.attr("is_fusing").cast<bool>();
    program.is_broadcast_shared = from.attr("is_broadcast_shared").cast<bool>();
    program.is_mask = mark_masks(program, column<char>(from, "is_ahead"));
    program.combine = CombineWays(from.attr("ways").cast<std::vector<Way>>());
    return program;
}

}  // namespace remat
