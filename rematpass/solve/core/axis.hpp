// A plan on one axis of moments: the forward's executions, then the backward's.
//
// In: a `Program` and a plan. Out: `Axis`: who reads what, when each storage dies, live bytes.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "lives.hpp"

namespace remat {

// Executions 0..n-1 in order; `n` as a reader means "needed when the step is over".
struct Axis {
    // `forward` is of `trace_forward`.
    Axis(const Program& program, Trace forward, Slice<int> backward);

    const Program* program;
    std::vector<int> ops;      // op of each execution
    int split = 0;             // executions of the forward
    std::vector<char> stored;  // whether its result reaches memory
    std::vector<int> end;      // last moment its storage is needed
    std::vector<int> runs_at;  // moment its reads happen (later than its place when it is fused into a reader)
    std::vector<int> before;   // the previous execution of the same op; -1: none
    std::vector<Int> live;     // bytes at each moment, the graph's inputs left out

    // Highest of `live`; 0 where nothing runs.
    Int peak_bytes() const { return live.empty() ? 0 : *std::max_element(live.begin(), live.end()); }
    int count() const { return static_cast<int>(ops.size()); }
    // Executions it reads, views included.
    Slice<int> reads(int i) const;
    // Executions that read it, each once.
    Slice<int> readers(int i) const;
    std::vector<int>& edit_reads(int i);
    std::vector<int>& edit_readers(int i);
    // The last execution of `op` before a moment; -1: none.
    int latest(int op, int moment) const;
    // Executions of its parts, for an op that returns several tensors.
    std::vector<int> parts(int i) const;
    // Bytes of the storage execution `i` allocates; 0 for a view.
    Int size(int i) const { return program->is_view(ops[i]) ? 0 : program->size_bytes[ops[i]]; }
    // The execution in whose storage `i` lives; -1 for a view of a graph input.
    int owner(int i) const;
    // Last moment somebody whom `removed` does not mark reads the storage of `owner`, through views as well.
    int last_need(int owner, const Marks& removed) const;

private:
    using Edits = std::unordered_map<int, std::vector<int>>;

    void link();

    Rows<int> reads_, readers_;
    Edits own_reads_, own_readers_;  // of executions that were edited
    std::vector<int> last_;          // per op, its last execution; -1: none
};

}  // namespace remat
