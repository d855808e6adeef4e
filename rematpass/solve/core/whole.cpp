#include "whole.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "groups.hpp"
#include "network.hpp"
#include "work.hpp"

namespace remat {

namespace {

// A size times a price, and sums of them.
using Wide = __int128;

// Choices looked at beside each other. Gaps of six traced models of 24 layers at 21 budgets each were 1.35 % on average
// with 1,500, 1.29 with 2,500 and 1.28 with 5,000, which take twice the time (2026-11).
constexpr std::size_t MOST_CHOICES = 2500;
// And one after the other: two tenths of a second. Of 21 programs of up to 3,600 ops at five budgets each, the most
// was 2.2 million (48 layers that all differ, 2026-11).
constexpr std::size_t MOST_LOOKED_AT = 4'000'000;
// What is between the line and the plan at hand is looked through in parts, the first one this small.
constexpr int FIRST_PART = 64;
// Groups that a choice can tell apart.
constexpr int MOST_OPEN = 64;
// Leaves room for sums of what is above a limit.
constexpr Int MOST_LIMIT = MAX_CAPACITY / 64;
// Choices whose kept bytes differ by this part of what the limit pays for become one first, then twice that.
constexpr int FINEST = 4096, COARSEST = 4;

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
        const Groups groups = find_groups(problem, arcs, cut.left, limit);
        const Wide most = static_cast<Wide>(limit) << capacities.shift;
        const std::optional<Wide> found = Knapsack(groups, room, spent, capacities.shift, most).least();
        if (!found) break;
        above = std::max(above, *found);
        if (above < most) break;
    }
    return std::min(known, static_cast<Int>((line + above + saved - 1) / saved));
}

}  // namespace remat
