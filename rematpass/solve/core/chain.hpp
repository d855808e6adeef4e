// The tables of the chain programme: see chain.py.
//
// In: what each run of stages offers, in slots of memory. Out: least time per stretch of stages and slot, and the way
// that takes it. Never looks inside a stage.
#pragma once

#include <vector>

#include "rows.hpp"

namespace remat {

// One way through a run of stages, in slots and ns; fields as in `StageOption` of frontier.py.
struct ChainOption {
    Int extra_ns, again_ns;
    int kept, backward_peak, forward_peak;
};

// Stages start..stop-1 taken as one; `passing`: gradients that cross it untouched.
struct ChainRun {
    int stop, kind, passing;
    Int alone_ns;
    int alone_peak;  // with what passes
    std::vector<ChainOption> options;
};

struct ChainFigures {
    int width;                                // slots of the tables
    std::vector<std::vector<ChainRun>> runs;  // by their first stage; the stage itself first
    std::vector<std::vector<int>> added;      // [i][k]: of the boundary of k what is not in the boundary of i
    std::vector<int> gradients;               // [i]: of stages 0..i-1
    std::vector<Int> advance_ns;              // [i]: of stages 0..i-1
    std::vector<int> advance_peak;            // per stage
};

// How a stretch of stages is run with so much memory: an option of a run (`run`, `option`; -1: the run alone), or,
// where `run` is -1, a split after `split` stages. What comes later and earlier is run as its row says with its slots.
struct ChainStep {
    int run, option, split;
    int later, later_slot, earlier, earlier_slot;
};

// Rows of least times: `first` covers stages 0.. in the first forward.
class ChainTables {
public:
    explicit ChainTables(ChainFigures figures);

    int first_row() const { return first_[0]; }
    // Per slot, ns; `NEVER` where it does not fit.
    const std::vector<Int>& times(int row) const { return rows_[row].time; }
    ChainStep step(int row, int slot) const;

    static constexpr Int NEVER = Int{1} << 60;

private:
    // time(m) = spent + later(m - hold) + earlier(m - below), m >= floor.
    struct Way {
        Int spent;
        int floor, hold, later, below, earlier;
        int run, option, split;
    };
    struct Row {
        std::vector<Int> time;
        std::vector<int> choice;
        std::vector<Way> ways;
    };

    int stages() const { return static_cast<int>(figures_.runs.size()); }
    std::vector<Way> list_ways(int i, int j, bool is_first) const;
    void add_run(const ChainRun& run, int r, int i, int j, bool is_first, std::vector<Way>& ways) const;
    int solve(std::vector<Way> ways);
    void fill_again();

    ChainFigures figures_;
    std::vector<Row> rows_;                // row 0 costs nothing and needs nothing
    std::vector<std::vector<int>> again_;  // [i][j]: row of stages i..j run once more
    std::vector<int> first_;
};

}  // namespace remat
