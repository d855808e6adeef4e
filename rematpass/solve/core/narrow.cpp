#include "narrow.hpp"

#include <algorithm>
#include <tuple>

namespace remat {

namespace {

class Walk {
public:
    explicit Walk(const Rows<int>& near) : near_(near), to_come_(near.size()), state_(near.size(), UNSEEN) {
        for (int g = 0; g < near.size(); ++g) to_come_[g] = near[g].size();
    }

    bool is_done(int g) const { return state_[g] == PLACED; }

    // All that is linked to the first one, itself or by way of others, in order.
    std::vector<int> part_from(int first) {
        std::vector<int> order;
        choices_.assign(1, first);
        while (!choices_.empty()) {
            const auto next = std::min_element(choices_.begin(), choices_.end(),
                                               [&](int a, int b) { return more_waiting(a) < more_waiting(b); });
            order.push_back(*next);
            choices_.erase(next);
            place(order.back());
        }
        return order;
    }

private:
    enum State : char { UNSEEN, CHOICE, PLACED };

    // How many more wait once `g` is placed, and itself.
    std::pair<int, int> more_waiting(int g) const {
        int more = to_come_[g] > 0;
        for (int h : near_[g]) more -= state_[h] == PLACED && to_come_[h] == 1;
        return {more, g};
    }

    void place(int g) {
        state_[g] = PLACED;
        for (int h : near_[g]) {
            --to_come_[h];
            if (state_[h] != UNSEEN) continue;
            state_[h] = CHOICE;
            choices_.push_back(h);
        }
    }

    const Rows<int>& near_;
    std::vector<int> to_come_;  // per node, how many that it is linked to are not placed
    std::vector<State> state_;
    std::vector<int> choices_;  // linked to what is placed
};

}  // namespace

std::vector<int> narrow_order(const std::vector<Int>& weight, const Rows<int>& near) {
    struct Part {
        Int weight;
        std::vector<int> order;
    };
    std::vector<Part> parts;
    Walk walk(near);
    for (int g = 0; g < near.size(); ++g) {
        if (walk.is_done(g)) continue;
        parts.push_back({0, walk.part_from(g)});
        for (int h : parts.back().order) parts.back().weight += weight[h];
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.weight < b.weight; });
    std::vector<int> order;
    for (const Part& part : parts) order.insert(order.end(), part.order.begin(), part.order.end());
    return order;
}

}  // namespace remat
