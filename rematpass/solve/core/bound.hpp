// What is certain while one op of the backward runs, in any order of the others: see bound.py.
//
// In: a `Program` and an op. Out: which ops are still to come, which gradients are live. Never looks at a plan.
#pragma once

#include <vector>

#include "program.hpp"

namespace remat {

// Per op of the backward: over before a moment, tangents included; to come then or later.
struct Around {
    std::vector<char> is_over, to_come;
};

class Moments {
public:
    explicit Moments(const Program& program);

    // While op k runs, if besides `before` are over by then and `after` to come; neither depends on k, or k on them.
    Around around(int k, const std::vector<int>& before, const std::vector<int>& after) const;
    // Bytes of gradients that are certainly live, tangents included, the op's own result left out.
    Int live_gradients(const Around& around) const;

private:
    Int live_of(int r, const Around& around) const;
    bool is_certain(int v) const { return program_.kind[v] == EXTERN || !program_.is_fusing; }
    int first_gradient_of(int v) const;

    const Program& program_;
    Rows<int> readers_;              // per storage of a gradient, the ops that read it
    std::vector<char> is_returned_;  // per storage
};

}  // namespace remat
