#include "whole.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "network.hpp"
#include "work.hpp"

namespace remat {

namespace {

// A size times a price, and sums of them.
using Wide = __int128;

// Choices looked at beside each other. Of 14 gaps on 24 traced layers, 1,500 left 11 at what an integer programme says
// and three 3 to 11 % larger; 500 left some a third larger (2026-11).
constexpr std::size_t MOST_CHOICES = 1500;
// And one after the other: two tenths of a second. Of 21 programs of up to 3,600 ops at five budgets each, the most
// was 2.2 million (48 layers that all differ, 2026-11).
constexpr std::size_t MOST_LOOKED_AT = 4'000'000;
// What is between the line and the plan at hand is looked through in parts, the first one this small.
constexpr int FIRST_PART = 8;
// Groups that a choice can tell apart.
constexpr int MOST_OPEN = 64;
// Leaves room for sums of what is above a limit.
constexpr Int MOST_LIMIT = MAX_CAPACITY / 64;
// Choices whose kept bytes differ by this part of what the limit pays for become one first, then twice that.
constexpr int FINEST = 4096, COARSEST = 4;

// Variables that are all 1 or all 0 in every solution within the limit.
struct Group {
    Int kept = 0;                 // bytes more where they are 1
    Int within = 0, without = 0;  // what it costs that they are 1, 0
    int last = -1;                // of the groups linked to it
};

// What it costs that only the other group, an earlier one, is 1; that only this one is.
struct Link {
    int other;
    Int other_only, this_only;
};

struct Groups {
    std::vector<Group> groups;
    Rows<Link> links;         // per group, to earlier ones
    Int kept = 0, slack = 0;  // of the variables that are decided

    int count() const { return static_cast<int>(groups.size()); }
};

// By how much a solution is above the minimum cut: what its own cut takes of the capacities that the flow left.
class Residual {
public:
    Residual(const ClosureProblem& problem, const std::vector<Arc>& arcs, const std::vector<Int>& left, Int limit)
        : problem_(problem), x_{problem.count()}, arcs_(arcs), left_(left), limit_(limit) {}

    Groups groups() {
        settle();
        gather();
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

    // Variables that such arcs tie both ways form a group (strongly connected, Kosaraju); groups in order of values.
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

// What the groups so far add up to.
struct Choice {
    std::uint64_t open;  // which groups that later ones are linked to are 1, by slot
    Int kept;
    Wide above;  // the line, were all of `kept` paid for
};

// The knapsack over groups: a dynamic programme, group by group.
class Knapsack {
public:
    Knapsack(const Groups& groups, Int room, Int spent, int shift, Wide limit)
        : all_(groups), room_(room), spent_(spent), shift_(shift), limit_(limit), slot_(groups.count(), -1) {}

    // Least that a solution of whole values takes above the line, or the limit; nothing for too many choices.
    std::optional<Wide> least() {
        Choice first{0, all_.kept, static_cast<Wide>(all_.slack) << shift_};
        std::vector<Choice> choices, next;
        std::size_t middle = 0, looked_at = 0;
        if (first.above < limit_) choices.push_back(first);
        find_range();
        find_slots();
        if (is_too_wide_) return std::nullopt;
        for (int g = 0; g < all_.count() && !choices.empty(); ++g) {
            looked_at += 2 * choices.size();
            if (looked_at > MOST_LOOKED_AT) return std::nullopt;
            next.clear();
            for (bool is_one : {false, true}) {
                middle = next.size();
                for (const Choice& choice : choices) extend(choice, g, is_one, next);
            }
            put_in_order(next, middle);
            keep_best(next);
            if (!thin_out(next)) return std::nullopt;
            choices.swap(next);
        }
        Wide best = limit_;
        for (const Choice& choice : choices) best = std::min(best, choice.above + priced(room_ - choice.kept));
        return best;
    }

private:
    Wide priced(Int bytes) const { return static_cast<Wide>(bytes) * spent_; }

    // Bytes that later groups add at most, at least.
    void find_range() {
        most_.assign(all_.count() + 1, 0);
        least_ = most_;
        for (int g = all_.count(); g-- > 0;) {
            most_[g] = most_[g + 1] + std::max<Int>(0, all_.groups[g].kept);
            least_[g] = least_[g + 1] + std::min<Int>(0, all_.groups[g].kept);
        }
    }

    // A group has a slot until the last one linked to it is decided.
    void find_slots() {
        std::vector<int> free;
        for (int s = MOST_OPEN; s-- > 0;) free.push_back(s);
        std::vector<std::vector<int>> closing(all_.count());
        over_.assign(all_.count(), 0);
        for (int g = 0; g < all_.count(); ++g) {
            const int last = all_.groups[g].last;
            if (last >= 0) {
                is_too_wide_ |= free.empty();
                if (is_too_wide_) return;
                slot_[g] = free.back();
                free.pop_back();
                closing[last].push_back(slot_[g]);
            }
            for (int slot : closing[g]) {
                over_[g] |= std::uint64_t{1} << slot;
                free.push_back(slot);
            }
        }
    }

    void extend(const Choice& choice, int g, bool is_one, std::vector<Choice>& next) const {
        const Group& group = all_.groups[g];
        Wide cost = is_one ? group.within : group.without;
        for (const Link& link : all_.links[g]) {
            const bool is_other_one = choice.open >> slot_[link.other] & 1;
            if (is_other_one != is_one) cost += is_other_one ? link.other_only : link.this_only;
        }
        Choice made = choice;
        made.above += cost << shift_;
        if (is_one) made.kept += group.kept;
        if (is_one && slot_[g] >= 0) made.open |= std::uint64_t{1} << slot_[g];
        made.open &= ~over_[g];
        const bool is_within = made.above + std::max<Wide>(0, priced(room_ - made.kept - most_[g + 1])) < limit_;
        if (is_within && made.kept + least_[g + 1] <= room_) next.push_back(made);
    }

    static bool is_before(const Choice& a, const Choice& b) {
        if (a.open != b.open) return a.open < b.open;
        return a.kept != b.kept ? a.kept < b.kept : a.above < b.above;
    }

    // Either half mostly is in order already, as the choices it was made from are.
    static void put_in_order(std::vector<Choice>& choices, std::size_t middle) {
        const auto begin = choices.begin(), half = begin + static_cast<std::ptrdiff_t>(middle), end = choices.end();
        if (!std::is_sorted(begin, half, is_before)) std::sort(begin, half, is_before);
        if (!std::is_sorted(half, end, is_before)) std::sort(half, end, is_before);
        std::inplace_merge(begin, half, end, is_before);
    }

    // Extra time, but for a constant.
    Wide time(const Choice& choice) const { return choice.above - priced(choice.kept); }

    // Of two that later groups cannot tell apart, not the one that keeps more and takes no less time.
    void keep_best(std::vector<Choice>& choices) const {
        std::size_t count = 0;
        for (const Choice& choice : choices) {
            const bool is_new = !count || choices[count - 1].open != choice.open;
            if (is_new || time(choice) < time(choices[count - 1])) choices[count++] = choice;
        }
        choices.resize(count);
    }

    // Where too many are left, those that keep about the same become one that is no worse than any; whether that helps.
    bool thin_out(std::vector<Choice>& choices) {
        const Int all = static_cast<Int>(limit_ / spent_);
        Int step = std::max(all / FINEST + 1, last_step_ / 2);  // what sufficed for the group before mostly does again
        for (; choices.size() > MOST_CHOICES; step *= 2) {
            if (step > all / COARSEST) return false;
            merge(choices, step);
            last_step_ = step;
        }
        return true;
    }

    void merge(std::vector<Choice>& choices, Int step) const {
        std::size_t count = 0;
        Int part = 0, last_part = 0;
        for (const Choice& choice : choices) {
            Choice* last = count ? &choices[count - 1] : nullptr;
            last_part = std::exchange(part, choice.kept / step);
            if (last && last->open == choice.open && last_part == part) {
                last->above = time(choice) + priced(last->kept);
            } else {
                choices[count++] = choice;
            }
        }
        choices.resize(count);
    }

    const Groups& all_;
    const Int room_, spent_;
    const int shift_;
    const Wide limit_;
    std::vector<int> slot_;
    std::vector<std::uint64_t> over_;  // per group, slots of groups that no later one is linked to
    std::vector<Int> most_, least_;
    Int last_step_ = 0;
    bool is_too_wide_ = false;
};

}  // namespace

Int least_of_whole(const ClosureProblem& problem, const Closure& upper, const Closure& lower, Int room, Int known) {
    const Int saved = upper.kept_bytes - lower.kept_bytes, spent = lower.extra_ns - upper.extra_ns;
    if (saved <= 0 || spent <= 0) return 0;
    const Capacities capacities = find_capacities(problem, Price{{saved, spent}}, Rounding::DOWN);
    std::vector<Arc> arcs;
    each_arc(problem, capacities, [&](const Arc& arc) { arcs.push_back(arc); });
    const Variables x{problem.count()};
    const Cut cut = minimum_cut(x.sink() + 1, arcs, x.source(), x.sink());
    ++work_done().cuts;
    work_done().arcs += static_cast<Int>(arcs.size());
    // All that follows is extra time multiplied by `saved`.
    Wide line = (static_cast<Wide>(cut.flow) << capacities.shift) - static_cast<Wide>(room) * spent;
    for (int v = 0; v < problem.count(); ++v) {
        if (problem.is_forced[v]) line += static_cast<Wide>(problem.recompute_ns[v]) * saved;
    }
    const Wide all = (static_cast<Wide>(known) * saved - line) >> capacities.shift;
    Wide above = 0;
    for (int part = FIRST_PART; part >= 1 && all >= part; part /= 2) {
        const Int limit = static_cast<Int>(std::min<Wide>(MOST_LIMIT, all / part));
        const Groups groups = Residual(problem, arcs, cut.left, limit).groups();
        const Wide most = static_cast<Wide>(limit) << capacities.shift;
        const std::optional<Wide> found = Knapsack(groups, room, spent, capacities.shift, most).least();
        if (!found) break;
        above = std::max(above, *found);
        if (above < most) break;
    }
    return std::min(known, static_cast<Int>((line + above + saved - 1) / saved));
}

}  // namespace remat
