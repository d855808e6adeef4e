// The backward sequence: recomputation just in time, once or several times, and in which order the rest runs.
//
// In: a `Program`, what is at hand, ops. Out: ops in the order they run. Never prices, never counts bytes.
#pragma once

#include <vector>

#include "program.hpp"

namespace remat {

// A value that is needed, was not kept, and must not be computed again.
struct Unavailable {
    int value;
};

// Writes a backward sequence while keeping track of what is available.
class Recorder {
public:
    Recorder(const Program& program, Slice<int> kept);

    // Compute what is missing of `values`, and what that needs, in the given order; returns what was computed.
    // Throws `Unavailable`.
    std::vector<int> demand(Slice<int> values);
    // Run backward ops, each right after what it misses was computed; returns what was. Throws `Unavailable`.
    std::vector<int> run(Slice<int> ops);
    // Forget recomputed values; a later use computes them again.
    void drop(Slice<int> values);
    const std::vector<int>& sequence() const { return sequence_; }

private:
    const Program& program_;
    std::vector<char> is_kept_, is_live_;
    std::vector<int> sequence_;
    Marks missing_;
};

// Whether the backward can only have a value by keeping it: not recomputable, or part of an op that is not.
bool must_keep(const Program& program, int v);

// What to keep so that `values` can be had, in order: what must not be kept is computed again from what may be.
std::vector<int> keep_instead(const Program& program, Slice<int> values);

// Without recomputations that nothing reads; what has effects stays.
std::vector<int> drop_unread(const Program& program, Slice<int> backward);

// Of executions of one op that moved past each other, only those that are read.
std::vector<int> drop_overtaken(const Program& program, std::vector<int> backward);

// Time of every op of a backward executed beyond once.
Int recompute_ns(const Program& program, Slice<int> backward);

// The same executions, repeated ones included, in an order that mostly holds less.
//
// A greedy list schedule: everything runs as late as it can, unless running it frees memory. Ops of the backward that
// free what they allocate, and those nobody reads, run in the given order (see `Urgency`); whatever else they need runs
// right before. So a value is computed again when its reader is next, not when its stage begins, and the gradient of a
// weight, which sets an activation free, goes before that of the activation, which is yet another. Gradients larger
// than all they are made from wait for the end: nobody but the optimizer reads them. An execution all of whose inputs
// are there runs at once if, as their last reader, it frees what it allocates. Sums of what products read run beside
// the next generated kernel, or after all else that reads it. Nothing moves past what has effects.
std::vector<int> tidy_backward(const Program& program, Slice<int> backward);

}  // namespace remat
