#include "groups.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "narrow.hpp"
#include "network.hpp"

namespace remat {

namespace {

// By how much a solution is above the minimum cut: what its own cut takes of the capacities that the flow left.
class Residual {
public:
    Residual(const ClosureProblem& problem, const std::vector<Arc>& arcs, const std::vector<Int>& left, Int limit)
        : problem_(problem), x_{problem.count()}, arcs_(arcs), left_(left), limit_(limit) {}

    Groups groups() {
        settle();
        gather();
        put_in_order();
        link();
        return std::move(found_);
    }

private:
    // Arcs that no solution within the limit cuts decide most variables.
    void settle() {
        std::vector<std::pair<int, int>> out, in;
        const auto add = [&](int tail, int head) {
            out.emplace_back(tail, head);
            in.emplace_back(head, tail);
        };
        for (std::size_t k = 0; k < arcs_.size(); ++k) {
            if (left_[2 * k] > limit_) add(arcs_[k].tail, arcs_[k].head);
            if (left_[2 * k + 1] > limit_) add(arcs_[k].head, arcs_[k].tail);
        }
        out_ = Rows<int>(out, x_.sink() + 1);
        in_ = Rows<int>(in, x_.sink() + 1);
        group_.assign(x_.sink() + 1, OPEN);
        mark(out_, x_.source(), ONE);
        mark(in_, x_.sink(), ZERO);
    }

    void mark(const Rows<int>& next, int from, int as) {
        std::vector<int> stack{from};
        group_[from] = as;
        while (!stack.empty()) {
            const int x = stack.back();
            stack.pop_back();
            for (int y : next[x]) {
                if (group_[y] != OPEN) continue;
                group_[y] = as;
                stack.push_back(y);
            }
        }
    }

    // Variables that such arcs tie both ways form a group (strongly connected, Kosaraju).
    void gather() {
        const std::vector<int> finished = finish_all();
        int count = 0;
        for (std::size_t k = finished.size(); k-- > 0;) {
            if (group_[finished[k]] == OPEN) mark(in_, finished[k], count++);
        }
        std::vector<int> place(count, OPEN);
        for (int v = 0; v < x_.count; ++v) {
            enter(x_.available(v), problem_.keep_bytes[v], place);
            enter(x_.recomputed(v), -problem_.keep_bytes[v], place);
        }
    }

    void enter(int x, Int bytes, std::vector<int>& place) {
        if (group_[x] == ONE) found_.kept += bytes;
        if (group_[x] < 0) return;
        int& at = place[group_[x]];
        if (at == OPEN) {
            at = found_.count();
            found_.groups.emplace_back();
        }
        group_[x] = at;
        found_.groups[at].kept += bytes;
    }

    // Variables that are not decided, each behind those it reaches unless they reach it.
    std::vector<int> finish_all() const {
        std::vector<int> finished;
        std::vector<char> is_met(group_.size());
        std::vector<std::pair<int, int>> stack;  // with the arc to look at next
        const auto meet = [&](int x) {
            if (group_[x] != OPEN || is_met[x]) return;
            is_met[x] = true;
            stack.emplace_back(x, 0);
        };
        for (int first = 0; first < x_.source(); ++first) {
            meet(first);
            while (!stack.empty()) {
                auto& [x, k] = stack.back();
                if (k < out_[x].size()) {
                    meet(out_[x][k++]);
                } else {
                    finished.push_back(x);
                    stack.pop_back();
                }
            }
        }
        return finished;
    }

    // While little is decided, what choices keep should differ little, and few groups should be open.
    void put_in_order() {
        std::vector<std::pair<int, int>> pairs;
        for (std::size_t k = 0; k < arcs_.size(); ++k) {
            const int from = group_[arcs_[k].tail], to = group_[arcs_[k].head];
            if (from < 0 || to < 0 || from == to || (!left_[2 * k] && !left_[2 * k + 1])) continue;
            pairs.emplace_back(from, to);
            pairs.emplace_back(to, from);
        }
        std::sort(pairs.begin(), pairs.end());
        pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
        std::vector<Int> bytes;
        for (const Group& group : found_.groups) bytes.push_back(std::abs(group.kept));
        std::vector<int> place(found_.count());
        std::vector<Group> groups;
        for (int g : narrow_order(bytes, Rows<int>(pairs, found_.count()))) {
            place[g] = static_cast<int>(groups.size());
            groups.push_back(found_.groups[g]);
        }
        found_.groups.swap(groups);
        for (int& g : group_) g = g < 0 ? g : place[g];
    }

    void link() {
        std::vector<std::pair<int, Link>> links;
        for (std::size_t k = 0; k < arcs_.size(); ++k) {
            charge(arcs_[k].tail, arcs_[k].head, left_[2 * k], links);
            charge(arcs_[k].head, arcs_[k].tail, left_[2 * k + 1], links);
        }
        found_.links = Rows<Link>(links, found_.count());
    }

    void charge(int tail, int head, Int left, std::vector<std::pair<int, Link>>& links) {
        const int from = group_[tail], to = group_[head];
        if (!left || from == to || from == ZERO || to == ONE) return;
        const auto add = [&](Int& sum) { sum = std::min(limit_ + 1, sum + std::min(left, limit_ + 1)); };
        if (from == ONE && to == ZERO) {
            add(found_.slack);
        } else if (from == ONE) {
            add(found_.groups[to].without);
        } else if (to == ZERO) {
            add(found_.groups[from].within);
        } else {
            const int early = std::min(from, to), late = std::max(from, to);
            found_.groups[early].last = std::max(found_.groups[early].last, late);
            Link one{early, 0, 0};
            add(from == early ? one.other_only : one.this_only);
            links.emplace_back(late, one);
        }
    }

    static constexpr int OPEN = -1, ONE = -2, ZERO = -3;

    const ClosureProblem& problem_;
    const Variables x_;
    const std::vector<Arc>& arcs_;
    const std::vector<Int>& left_;
    const Int limit_;
    Rows<int> out_, in_;      // arcs above the limit
    std::vector<int> group_;  // per variable
    Groups found_;
};

}  // namespace

Groups find_groups(const ClosureProblem& problem, const std::vector<Arc>& arcs, const std::vector<Int>& left,
                   Int limit) {
    return Residual(problem, arcs, left, limit).groups();
}

}  // namespace remat
