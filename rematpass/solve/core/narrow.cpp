#include "narrow.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace remat {

namespace {

class Walk {
public:
    explicit Walk(const Rows<int>& near)
        : near_(near), to_come_(near.size()), more_(near.size()), state_(near.size(), UNSEEN) {
        for (int g = 0; g < near.size(); ++g) to_come_[g] = near[g].size();
    }

    bool is_done(int g) const { return state_[g] == PLACED; }

    // All that is linked to the first one, itself or by way of others, in order.
    std::vector<int> part_from(int first) {
        std::vector<int> order;
        offer(first);
        while (!choices_.empty()) {
            order.push_back(choices_.begin()->second);
            choices_.erase(choices_.begin());
            place(order.back());
        }
        return order;
    }

private:
    enum State : char { UNSEEN, CHOICE, PLACED };

    // How many more wait once `g` is placed.
    int count_more(int g) const {
        int more = to_come_[g] > 0;
        for (int h : near_[g]) more -= state_[h] == PLACED && to_come_[h] == 1;
        return more;
    }

    void offer(int g) {
        state_[g] = CHOICE;
        more_[g] = count_more(g);
        choices_.emplace(more_[g], g);
    }

    void lower(int g) {
        choices_.erase({more_[g], g});
        choices_.emplace(--more_[g], g);
    }

    // `g` waits for one only: that one's turn ends its waiting.
    void favour_last_of(int g) {
        const auto is_last = [&](int h) { return state_[h] != PLACED; };
        const int last = *std::find_if(near_[g].begin(), near_[g].end(), is_last);
        if (state_[last] == CHOICE) lower(last);
    }

    void place(int g) {
        state_[g] = PLACED;
        for (int h : near_[g]) --to_come_[h];
        if (to_come_[g] == 1) favour_last_of(g);
        for (int h : near_[g]) {
            if (state_[h] == CHOICE && !to_come_[h]) lower(h);
            if (state_[h] == PLACED && to_come_[h] == 1) favour_last_of(h);
        }
        for (int h : near_[g]) {  // once all others are up to date
            if (state_[h] == UNSEEN) offer(h);
        }
    }

    const Rows<int>& near_;
    std::vector<int> to_come_;  // per node, how many that it is linked to are not placed
    std::vector<int> more_;     // per choice, how many more wait once it is placed
    std::vector<State> state_;
    std::set<std::pair<int, int>> choices_;  // linked to what is placed, the best first
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
