// How each execution uses memory, and the bytes live at every moment.
//
// In: a `Program` and schedules. Out: `Half`, live bytes. Never chooses. The model is the one described in liveness.py.
#pragma once

#include <utility>
#include <vector>

#include "stored.hpp"

namespace remat {

// Forward or backward as executed, with the lives of its instances; fields as in `Half` of liveness.py.
struct Half {
    Trace trace;
    std::vector<Int> size;
    std::vector<char> is_stored;
    std::vector<int> runs_at;
    std::vector<int> end;
    std::vector<Int> taken;
    Stored fusion;  // before what only the next kernel reads became one with it; empty where nothing is fused

    int count() const { return trace.count(); }
};

// First moment a storage is there, and the first it is not any more; not there at all: no storage in memory.
struct Span {
    bool is_there;
    int start, stop;
};

using Takeover = std::pair<int, std::vector<int>>;

// `forward` is of `trace_forward`.
Half find_forward(const Program& program, Trace forward, Slice<int> kept);
// `kept`: `kept_in_memory` of it.
Half find_backward(const Program& program, Slice<int> sequence, Slice<int> kept);
Span find_span(const Half& half, int i);
// Per executed op, graph inputs left out.
std::vector<Int> live_bytes(const Program& program, const Half& half);
// Pointwise results in memory, each with the dying inputs whose place it takes if one is as large as itself.
std::vector<Takeover> find_heirs(const Program& program, const Half& half);
// Which of the executed ops an executor may compute later than the schedule says.
std::vector<char> find_put_off(const Program& program, const Half& half);
// Highest bytes live while `sequence` runs on its own.
Int local_peak(const Program& program, Slice<int> sequence, Slice<int> returned, Slice<int> outside);
// Highest bytes live in both halves, graph inputs left out, and the first op with so many; -1 where nothing runs.
std::pair<Int, int> peak_above_inputs(const Program& program, const Half& forward, const Half& backward);
std::pair<Int, int> peak_above_inputs(const Program& program, Trace forward, Slice<int> backward);

}  // namespace remat
