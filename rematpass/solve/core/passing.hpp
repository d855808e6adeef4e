// Which results only the very next kernel reads, element for element: the two become one.
//
// In: a half whose stored results are known, from the last instance to the first. Out: a yes or no. Never counts bytes.
#pragma once

#include <vector>

#include "lives.hpp"

namespace remat {

// Not where one of the two reads elements in another order, or what both read of fewer elements they read differently:
// their loops are others, then. What is written part by part is a kernel for each part.
class PassingOn {
public:
    PassingOn(const Program& program, const Half& half);

    // To be asked of the last instance first; of those behind, it is known when they run and end.
    bool is_one_with_next(int i);

private:
    bool is_join(int i) const;
    bool may_be_one_with_next(int i);
    bool find_readers(int i);
    bool note_reader(int i, int reader);
    bool note_parts(int i, int join);

    const Program& program_;
    const Half& half_;
    const Int width_;
    std::vector<int> one_;  // what becomes one kernel, the last first
    std::vector<int> readers_;
};

}  // namespace remat
