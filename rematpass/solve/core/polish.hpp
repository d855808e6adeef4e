// Use the memory a plan leaves: take recomputations back, one by one.
//
// In: a plan on its `Axis`. Out: the plan with more and more recomputations left out, the ones that raise the peak
// least first. Never adds a recomputation.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "axis.hpp"
#include "range_max.hpp"

namespace remat {

// Peak in bytes above the graph's inputs after a step, ns saved by it.
using Taken = std::pair<Int, Int>;

// Steps from one plan, found by estimate; what they lead to is simulated before it counts. Which results reach memory
// is taken as in the plan at hand. Steps change the axis.
class Polisher {
public:
    explicit Polisher(Axis axis);

    // The next step; nothing when there is nothing left to take back. What raises the peak not at all goes first, most
    // time saved first; then what raises it least.
    std::optional<Taken> next();
    Int peak_bytes() const { return std::max<Int>(0, live_.highest()); }
    int steps_taken() const { return static_cast<int>(removed_.size()); }
    // Executions that cost time and repeat an earlier one.
    std::vector<int> repeated() const;
    // Up to `most` of these, those first that save most time for each byte they would lift the peak above the budget.
    std::vector<int> promising(Int budget_bytes, std::size_t most);
    // The backward without some repeated executions and what goes with each.
    std::vector<int> without(const std::vector<int>& executions);
    // The backward after the first `count` steps.
    std::vector<int> backward(int count) const;

private:
    struct Change {
        int start, stop;  // first and last moment
        Int size;         // bytes added to the timeline there
    };
    struct End {
        int storage, moment;  // it is now needed last
    };
    // One recomputation left out.
    struct Step {
        int again;                 // the execution left out
        std::vector<int> removed;  // with all that goes with it
        Int saved_ns;
        Int peak_bytes;  // highest live bytes afterwards
        std::vector<Change> changes;
        std::vector<End> ends;
    };
    // A step waiting, by its figures alone: it is worked out anew when its turn comes.
    struct Waiting {
        Int peak_bytes, saved_ns;
        int again;
    };

    void fill_queue();
    std::optional<Waiting> pop_waiting();
    bool find_step(int again);
    void find_group(int again);
    bool may_leave_out() const;
    void find_removed();
    bool is_unread(int i) const;
    void find_changes();
    Int peak_after(const std::vector<Change>& changes);
    void take();
    std::vector<int> leave_out(const std::vector<char>& is_gone) const;
    Int duration(int execution) const { return axis_.program->duration_ns[axis_.ops[execution]]; }

    Axis axis_;
    RangeMax live_;
    bool is_filled_ = false;
    std::vector<Waiting> free_, dear_;  // heaps: those that do not raise the peak, the others
    std::vector<char> is_gone_;
    std::vector<std::vector<int>> removed_;
    Marks in_removed_, in_group_, in_owners_;
    // Of the last call of `find_step`, and what it works with: thousands of calls share their memory.
    Step step_;
    std::vector<int> group_, stack_, owners_;
    std::vector<std::pair<int, Int>> turns_;
};

}  // namespace remat
