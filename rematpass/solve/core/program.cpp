#include "program.hpp"

namespace remat {

CombineWays::CombineWays(std::vector<Way> ways) : ways_(std::move(ways)) {
    for (std::size_t i = 0; i < ways_.size(); ++i) place_.emplace(ways_[i], static_cast<Int>(i));
}

Int CombineWays::operator()(Int inner, Int outer) {
    auto known = known_.find({inner, outer});
    if (known != known_.end()) return known->second;
    Way way = ways_[inner];
    const Way& more = ways_[outer];
    way.first.insert(way.first.end(), more.first.begin(), more.first.end());
    way.second *= more.second;
    auto [found, is_new] = place_.emplace(way, static_cast<Int>(ways_.size()));
    if (is_new) ways_.push_back(std::move(way));
    known_[{inner, outer}] = found->second;
    return found->second;
}

}  // namespace remat
