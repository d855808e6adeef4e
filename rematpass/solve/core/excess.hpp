// How much of what is too much at each moment a smaller holding would take away.
//
// In: bytes above the budget per moment. Out: sums over ranges of moments. Works through blocks of moments, so that a
// look at a long range costs little.
#pragma once

#include <algorithm>
#include <vector>

#include "rows.hpp"

namespace remat {

class Excess {
public:
    explicit Excess(std::vector<Int> bytes) : bytes_(std::move(bytes)) {
        const int count = static_cast<int>(bytes_.size());
        for (int first = 0; first < count; first += WIDTH) {
            Block block;
            for (int m = first; m < std::min(first + WIDTH, count); ++m) block.add(bytes_[m]);
            blocks_.push_back(block);
        }
    }

    bool is_none() const {
        return std::all_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return !block.overfull; });
    }
    int fullest() const { return static_cast<int>(std::max_element(bytes_.begin(), bytes_.end()) - bytes_.begin()); }
    Int at(int moment) const { return bytes_[moment]; }

    std::vector<int> overfull() const {
        std::vector<int> found;
        for (std::size_t m = 0; m < bytes_.size(); ++m) {
            if (bytes_[m]) found.push_back(static_cast<int>(m));
        }
        return found;
    }

    // Of moments first..stop-1: at each what is too much, but at most `most`; or `most` wherever anything is.
    Int freed(int first, int stop, Int most, bool counts_all) const {
        stop = std::min(stop, static_cast<int>(bytes_.size()));
        Int sum = 0;
        int m = first;
        while (m < stop) {
            const Block& block = blocks_[m / WIDTH];
            const bool is_whole = m % WIDTH == 0 && m + WIDTH <= stop;
            if (is_whole && (counts_all || most <= block.least || block.highest <= most)) {
                sum += counts_all || most <= block.least ? most * block.overfull : block.sum;
                m += WIDTH;
                continue;
            }
            sum += counts_all ? (bytes_[m] > 0 ? most : 0) : std::min(bytes_[m], most);
            ++m;
        }
        return sum;
    }

private:
    static constexpr int WIDTH = 64;

    struct Block {
        Int sum = 0, highest = 0, least = 0;  // least: of those that are too full
        int overfull = 0;

        void add(Int bytes) {
            if (!bytes) return;
            least = overfull ? std::min(least, bytes) : bytes;
            highest = std::max(highest, bytes);
            sum += bytes;
            ++overfull;
        }
    };

    std::vector<Int> bytes_;
    std::vector<Block> blocks_;
};

}  // namespace remat
