// A timeline that answers "the highest in this range" and takes "so much more in that range" in logarithmic time.
//
// In: values, then additions to ranges. Out: maxima. A segment tree without propagation: a node holds the highest of
// its part, what was added to parts around it left out.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "rows.hpp"

namespace remat {

class RangeMax {
public:
    explicit RangeMax(const std::vector<Int>& values) : count_(static_cast<int>(values.size())) {
        while (leaves_ < count_) leaves_ *= 2;
        highest_.assign(2 * leaves_, LOWEST);
        added_.assign(2 * leaves_, 0);
        std::copy(values.begin(), values.end(), highest_.begin() + leaves_);
        for (int node = leaves_ - 1; node; --node)
            highest_[node] = std::max(highest_[2 * node], highest_[2 * node + 1]);
    }

    // To first..last; what lies outside is left out.
    void add(int first, int last, Int more) {
        first = std::max(first, 0);
        last = std::min(last, count_ - 1);
        if (first <= last) add(1, 0, leaves_ - 1, first, last, more);
    }

    // Of first..last, all inside; `LOWEST` where that is nothing. From the two leaves up to where their ways meet, with
    // what lies between them, then on to the root.
    Int highest(int first, int last) const {
        if (first > last) return LOWEST;
        int left = first + leaves_, right = last + leaves_;
        Int of_left = highest_[left], of_right = highest_[right];
        for (; left / 2 < right / 2; of_left += added_[left], of_right += added_[right]) {
            if (left % 2 == 0) of_left = std::max(of_left, highest_[left + 1]);
            if (right % 2 == 1) of_right = std::max(of_right, highest_[right - 1]);
            left /= 2;
            right /= 2;
        }
        Int found = std::max(of_left, of_right);
        while (left /= 2) found += added_[left];
        return found;
    }
    Int highest() const { return highest_[1]; }
    int count() const { return count_; }

    static constexpr Int LOWEST = std::numeric_limits<Int>::min() / 4;

private:
    void add(int node, int low, int high, int first, int last, Int more) {
        if (first <= low && high <= last) {
            highest_[node] += more;
            added_[node] += more;
            return;
        }
        const int middle = (low + high) / 2;
        if (first <= middle) add(2 * node, low, middle, first, last, more);
        if (last > middle) add(2 * node + 1, middle + 1, high, first, last, more);
        highest_[node] = std::max(highest_[2 * node], highest_[2 * node + 1]) + added_[node];
    }

    const int count_;
    int leaves_ = 1;
    std::vector<Int> highest_, added_;
};

}  // namespace remat
