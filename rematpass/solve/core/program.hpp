// The problem as the core sees it: `Program` of program.py in flat arrays.
//
// In: what the binding reads off a `Program`. Out: the same for all other files of the core. Never decides.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rows.hpp"

namespace remat {

enum Kind : signed char { INPUT, SYMBOL, VIEW, PART, POINTWISE, REDUCTION, EXTERN };
enum Addend : signed char { BY_OP, BY_POINTWISE, BY_READERS };

// How a storage is addressed: what picks or reorders elements, and how often all of it is repeated; see program.py.
using Way = std::pair<std::vector<Int>, Int>;
constexpr Int TURN_KINDS = 4, CLOSED_UP = 2;
constexpr Int DEPTHS = 64;

// Numbers for ways: those of a program first, then what they combine to, as it is met.
class CombineWays {
public:
    explicit CombineWays(std::vector<Way> ways = {});
    // Addressing in way `outer` what addresses its storage in way `inner`.
    Int operator()(Int inner, Int outer);
    const Way& way(Int place) const { return ways_[place]; }

private:
    std::vector<Way> ways_;
    std::map<Way, Int> place_;
    std::unordered_map<std::uint64_t, Int> known_;  // by inner and outer
};

// Fields as in `Program`; `from_inputs`, `outside`, `needs`, `parts`: its properties of that name.
struct Program {
    int count = 0;
    std::vector<signed char> kind, addend;
    std::vector<int> root;
    std::vector<Int> size_bytes, duration_ns, workspace_bytes;
    std::vector<char> is_backward, in_forward, may_recompute, may_keep, is_fixed, is_heavy, is_drawn;
    std::vector<char> is_summed, is_scattered, is_joined, reads_often;  // of all ops, or empty
    std::vector<char> is_mask;                                          // see `find_masks`; of all ops, or empty
    std::vector<char> is_anchor, is_late, may_wait, may_join;           // of `Urgency`
    std::vector<char> from_inputs;
    Rows<int> inputs, access, needs, parts;
    Rows<int> broadcasts;  // of all ops, or empty
    Rows<Int> outside, constants;
    std::vector<Int> operations;  // empty: 1 each
    std::vector<Int> elements;    // empty: as many as bytes
    std::vector<Int> cuts;        // by turn, of `TURN_KINDS`
    std::vector<Int> loops;       // empty: all fit
    std::vector<int> forward_outputs, backward_outputs;
    Int static_bytes = 0, most_operations = 0;
    int most_reads = 0;
    bool is_fusing = false, is_broadcast_shared = false;
    mutable CombineWays combine;

    bool is_view(int op) const { return kind[op] == VIEW; }
    bool is_paid(int op) const { return kind[op] != INPUT && kind[op] != SYMBOL; }
    bool is_tangent(int op) const { return is_backward[op] && kind[op] == INPUT; }
    bool is_extern(int op) const { return kind[op] == EXTERN || kind[op] == PART; }
    // Stored whoever reads it.
    bool is_put_down(int op) const { return is_drawn[op] || (!is_summed.empty() && is_summed[op]); }
    bool is_scatter(int op) const { return !is_scattered.empty() && is_scattered[op]; }
    // Whether no result of its half may be written over it.
    bool is_guarded(int op) const { return is_scatter(op) || (!is_joined.empty() && is_joined[op]); }
    Int operations_of(int op) const { return operations.empty() ? 1 : operations[op]; }
    Int elements_of(int op) const { return elements.empty() ? size_bytes[op] : elements[op]; }
    bool have_other_loops(int a, int b) const {
        return !loops.empty() && loops[a] != loops[b] && loops[a] % DEPTHS == loops[b] % DEPTHS;
    }
    // Operations and constants.
    Int length(int op) const { return operations_of(op) + (constants.size() ? constants[op].size() : 0); }
    // The same of what readers still do to what is stored of a reduction, or of one of its results.
    Int tail_of(int op) const {
        const bool is_reduced = kind[op] == REDUCTION || kind[op] == PART;
        return is_reduced && !operations.empty() ? length(op) : 0;
    }
};

// What is marked in one pass is forgotten in the next without touching every place.
class Marks {
public:
    void begin(int count) {
        if (static_cast<int>(stamp_.size()) < count) stamp_.resize(count, 0);
        ++now_;
    }
    bool has(int i) const { return stamp_[i] == now_; }
    // Whether it was new.
    bool add(int i) {
        if (has(i)) return false;
        stamp_[i] = now_;
        return true;
    }

private:
    std::vector<std::uint32_t> stamp_;
    std::uint32_t now_ = 0;
};

}  // namespace remat
