// What each stage offers, and each run of stages taken as one: see frontier.py.
//
// In: a `Program` and its stages. Out: `StageModel`, equal structures modelled once. Never looks beyond a stage.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "closure.hpp"

namespace remat {

// Fields as in `StageOption` of frontier.py; `kept` by place among the members of the stage.
struct StageOption {
    std::vector<int> kept;
    Int kept_bytes, extra_ns, backward_peak_bytes, again_ns, forward_peak_bytes;
};

// Fields as in `StageModel` of frontier.py.
struct StageModel {
    std::vector<StageOption> options;
    StageOption alone;
    Int advance_ns, advance_peak_bytes, gradient_bytes;
};

// Per stage: ops of the forward side and of the backward, values at its start.
struct StageParts {
    std::vector<std::vector<int>> forward, backward, boundary;
};

class Modeller {
public:
    // `figures` as in `Program`; at most so many options per stage, and vertices of its hull as `sweep` of
    // `ClosureProblem` takes them.
    Modeller(const Program& program, StageParts parts, std::vector<int> figures, int most_options, int resolution);

    // The kind of stages start..stop-1 taken as one, modelled if it is new, and every value in and around them in an
    // order that is the same for all of this kind.
    std::pair<int, std::vector<int>> kind_of(int start, int stop);
    const StageModel& model(int kind) const { return models_[kind]; }
    // Ops of all that was really modelled.
    Int computed_ops() const { return computed_ops_; }

private:
    struct Scope;

    Scope find_scope(int start, int stop) const;
    std::vector<int> find_signature(Scope& scope);
    void find_surroundings(Scope& scope) const;
    StageModel make_model(const Scope& scope) const;
    std::vector<std::vector<int>> kept_sets(const Scope& scope) const;
    std::vector<int> forward_again(const Scope& scope, Slice<int> kept) const;
    StageOption find_option(const Scope& scope, std::vector<int> kept, Int advance_peak_bytes, bool is_alone) const;
    Int duration(Slice<int> ops) const;

    const Program& program_;
    const StageParts parts_;
    const std::vector<int> figures_;
    const int most_options_, resolution_;
    Rows<int> users_;  // per value, the backward ops that read it
    std::vector<char> is_returned_;
    Marks seen_;
    std::vector<int> place_;  // of each member seen
    std::map<std::vector<int>, int> kinds_;
    std::vector<StageModel> models_;
    Int computed_ops_ = 0;
};

}  // namespace remat
