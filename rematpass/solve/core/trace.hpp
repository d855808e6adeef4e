// Which execution of an op each read sees.
//
// In: a `Program` and a sequence of ops. Out: `Trace`, one instance per execution. Never counts bytes.
#pragma once

#include <vector>

#include "program.hpp"

namespace remat {

// A storage, in which way it is addressed, and whether each of its elements is read several times.
struct Read {
    int storage;
    int way;
    bool is_broadcast;
};

// One half as executed. Instances 0..given-1 are what it is handed, then one per executed op.
struct Trace {
    std::vector<int> ops;   // op of each instance
    int given = 0;          // how many are handed over
    std::vector<int> root;  // instance in whose storage each instance lives; -1 outside (graph inputs)
    Rows<Read> reads;       // per instance, each read once, by storage and way; views read nothing
    std::vector<int> last;  // per op, its last instance; -1: none

    int count() const { return static_cast<int>(ops.size()); }
    // Instances in whose storage the final computations of `values` live.
    std::vector<int> roots_of(Slice<int> values) const;
};

// Follow `sequence`, with `held` at hand from the start. Inputs and symbols are no instances.
Trace trace_sequence(const Program& program, Slice<int> sequence, Slice<int> held);
// A whole forward: nothing held.
Trace trace_forward(const Program& program, Slice<int> sequence);

// Of what a backward is handed, what takes memory: inputs of the forward and scalars left out.
std::vector<int> kept_in_memory(const Program& program, Slice<int> backward);

// What a backward sequence reads before computing it, inputs of the forward included, in order of first use. `outputs`
// are read at the end.
std::vector<int> kept_values(const Program& program, Slice<int> backward, Slice<int> outputs);

}  // namespace remat
