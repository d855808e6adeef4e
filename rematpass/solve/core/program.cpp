#include "program.hpp"

namespace remat {

CombineWays::CombineWays(std::vector<Way> ways) : ways_(std::move(ways)) {
    for (std::size_t i = 0; i < ways_.size(); ++i) place_.emplace(ways_[i], static_cast<Int>(i));
}

Int CombineWays::operator()(Int inner, Int outer) {
    const std::uint64_t pair = static_cast<std::uint64_t>(inner) << 32 | static_cast<std::uint64_t>(outer);
    const auto known = known_.find(pair);
    if (known != known_.end()) return known->second;
    Way way = ways_[inner];
    if (!way.second) return inner;
    const Way& more = ways_[outer];
    for (Int turn : more.first) {
        const bool is_first = way.first.empty();
        const Int last = is_first ? -1 : way.first.back();
        const bool is_of_slice = last >= 0 && last % TURN_KINDS == 0;
        if (!is_first && turn == ~last && (last < 0 || is_of_slice))
            way.first.pop_back();
        else if (is_of_slice || turn < 0 || turn % TURN_KINDS != CLOSED_UP)
            way.first.push_back(turn);
    }
    way.second *= more.second;
    auto [found, is_new] = place_.emplace(way, static_cast<Int>(ways_.size()));
    if (is_new) ways_.push_back(std::move(way));
    known_[pair] = found->second;
    return found->second;
}

}  // namespace remat
