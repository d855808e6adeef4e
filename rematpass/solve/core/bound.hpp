// What is certain while one op of the backward runs, in any order of the others: see bound.py.
//
// In: a `Program` and an op. Out: which ops are still to come, which bytes of gradients are live. Never looks at a
// plan.
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
    // Bytes of gradients that are certainly live, tangents included, the op's own result left out: the smallest cut
    // between what is over and what is to come or returned. On every way from the one to the other something is there.
    Int live_gradients(const Around& around) const;

private:
    bool is_certain(int v) const { return program_.kind[v] == EXTERN || !program_.is_fusing; }

    const Program& program_;
    Rows<int> sources_;                          // per op of the backward, the storages of gradients that it reads
    std::vector<char> is_returned_, is_stored_;  // per storage: stored in any plan, also under fusion
};

}  // namespace remat
