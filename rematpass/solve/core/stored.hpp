// Which results reach memory under a fusing executor, and what is read for them in the end.
//
// In: a `Program` and a `Trace`. Out: `Stored`. Never counts bytes. The model is the one described in liveness.py.
#pragma once

#include <vector>

#include "trace.hpp"

namespace remat {

// A load is a storage + width * way, or -1 - value - count of ops * way for what is outside.
using Loads = std::vector<Int>;

struct Stored {
    std::vector<char> is_stored;  // per instance
    std::vector<char> is_source;  // pointwise and computed at its place, not in its readers

    // What an instance reads in the end, sorted, each once: of a source, and of what is fused into others.
    Slice<Int> loads(int i) const { return {all.data() + first[i], all.data() + last[i]}; }

    std::vector<int> first, last;  // per instance, where its loads stand in `all`
    Loads all;
};

Stored find_stored(const Program& program, const Trace& trace, const std::vector<char>& is_final);

// Whether `loads` address a storage element for element and in no other way.
bool is_straight(Slice<Int> loads, Int width, Int storage);

// Which instances an op reads that is not generated.
std::vector<char> read_by_externs(const Program& program, const Trace& trace);

}  // namespace remat
