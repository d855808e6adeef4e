#include "passing.hpp"

#include <algorithm>
#include <utility>

namespace remat {

namespace {

// What is no larger is read alike in any loops.
constexpr Int SCALAR_BYTES = 8;

// What distinguishes the loops of a kernel: how often it goes through what is smaller (0, times), how small that is (1,
// size), or how much of a part of something larger lies together (2, elements).
struct Loops {
    bool is_known = true;  // false where something is read in another order than it lies in
    std::vector<std::pair<int, Int>> special;
};

bool is_share(Int size, Int made) {
    for (Int n : {1, 2, 4, 8, 16}) {
        if (size == made * n / 4) return true;
    }
    return false;
}

// How much lies together of what is addressed in `way`, at most one part of something: -1 where nobody knows, 0 for
// all.
Int find_cut(const Program& program, const Way& way) {
    Int cut = 0;
    for (Int turn : way.first) {
        const std::size_t place = turn / TURN_KINDS;
        const Int own = turn >= 0 && place < program.cuts.size() ? program.cuts[place] : -1;
        if (own < 0 || (own && cut)) return -1;
        cut = std::max(cut, own);
    }
    return cut;
}

Loops find_loops(const Program& program, Slice<Int> loads, const std::vector<Int>& sizes, int made) {
    const Int width = static_cast<Int>(sizes.size()) + 1;
    Loops found;
    for (Int u : loads) {
        const Way& way = program.combine.way(u >= 0 ? u / width : (-1 - u) / program.count);
        const Int cut = find_cut(program, way), size = u >= 0 ? sizes[u % width] : 0;
        if (cut < 0 || (cut && way.second > 1)) {
            found.is_known = false;
            return found;
        }
        if (cut) {
            found.special.emplace_back(2, cut);
        } else if (way.second > 1) {
            found.special.emplace_back(0, way.second);
        } else if (size > SCALAR_BYTES && !is_share(size, sizes[made])) {
            found.special.emplace_back(1, size);
        }
    }
    std::sort(found.special.begin(), found.special.end());
    found.special.erase(std::unique(found.special.begin(), found.special.end()), found.special.end());
    return found;
}

// Those that go through all alike fit to any others.
bool have_same_loops(const std::vector<Loops>& all) {
    const Loops* first = nullptr;
    for (const Loops& loops : all) {
        if (!loops.is_known) return false;
        if (loops.special.empty()) continue;
        if (first && first->special != loops.special) return false;
        first = &loops;
    }
    return true;
}

}  // namespace

PassingOn::PassingOn(const Program& program, const Half& half)
    : program_(program), half_(half), width_(half.count() + 1) {}

bool PassingOn::is_one_with_next(int i) {
    if (i < half_.trace.given || !half_.is_stored[i] || half_.trace.root[i] != i) return false;
    const bool is_one = may_be_one_with_next(i);
    if (!is_one) one_.clear();
    if (is_one || half_.fusion.is_source[i] || is_join(i)) one_.push_back(i);
    return is_one;
}

bool PassingOn::is_join(int i) const { return !program_.is_joined.empty() && program_.is_joined[half_.trace.ops[i]]; }

bool PassingOn::may_be_one_with_next(int i) {
    const Stored& fusion = half_.fusion;
    if (one_.empty() || !fusion.is_source[i] || half_.end[i] != one_[0] || !find_readers(i)) return false;
    std::vector<Loops> loops{find_loops(program_, fusion.loads(i), half_.size, i)};
    const auto elements = [&](int r) { return program_.elements_of(half_.trace.ops[r]); };
    for (int r : readers_) {
        if (elements(i) != elements(r)) return false;
        if (program_.have_other_loops(half_.trace.ops[i], half_.trace.ops[r])) return false;
        loops.push_back(find_loops(program_, fusion.loads(r), half_.size, r));
    }
    // Loops that are not merged are those of their results: sizes tell all, if not of what is read in two other orders.
    const auto is_turned = [](const Loops& own) { return !own.is_known; };
    const bool is_unmerged = !program_.loops.empty();
    return is_unmerged ? std::count_if(loops.begin(), loops.end(), is_turned) <= 1 : have_same_loops(loops);
}

// Those of the next kernel that load instance `i`; whether there are any, and all do it element for element.
bool PassingOn::find_readers(int i) {
    readers_.clear();
    for (int r : one_) {
        if (!(is_join(r) ? note_parts(i, r) : note_reader(i, r))) return false;
    }
    return !readers_.empty();
}

// False where it reads `i` otherwise than element for element.
bool PassingOn::note_reader(int i, int reader) {
    bool is_read = false;
    for (Int u : half_.fusion.loads(reader)) {
        if (u < 0 || u % width_ != i) continue;
        if (u != i) return false;
        is_read = true;
    }
    if (is_read) readers_.push_back(reader);
    return true;
}

// The same of all parts of `join`; what is copied into it as it is, is stored.
bool PassingOn::note_parts(int i, int join) {
    for (const Read& part : half_.trace.reads[join]) {
        if (part.storage == i) return false;
        if (half_.is_stored[part.storage]) continue;
        const std::size_t before = readers_.size();
        if (!note_reader(i, part.storage)) return false;
        if (part.way && readers_.size() > before) return false;
    }
    return true;
}

}  // namespace remat
