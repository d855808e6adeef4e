// What was done so far in this process, for benches that count work instead of time. Nothing here reads it.
#pragma once

#include "rows.hpp"

namespace remat {

struct Work {
    Int cuts = 0, arcs = 0;  // minimum cuts, and the arcs in them
    Int ways = 0;            // ways that the chain programme compared
};

inline Work& work_done() {
    static Work work;
    return work;
}

}  // namespace remat
