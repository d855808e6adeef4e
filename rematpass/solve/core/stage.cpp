#include "stage.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "lives.hpp"
#include "order.hpp"

namespace remat {

namespace {

std::vector<int> without(Slice<int> sorted, const std::vector<char>& is_left_out) {
    std::vector<int> left;
    std::copy_if(sorted.begin(), sorted.end(), std::back_inserter(left), [&](int v) { return !is_left_out[v]; });
    return left;
}

// What another option beats in kept bytes, peak and time at once is dropped.
std::vector<StageOption> prune(std::vector<StageOption> options) {
    const auto order = [](const StageOption& o) { return std::tuple(o.extra_ns, o.kept_bytes, o.backward_peak_bytes); };
    std::stable_sort(options.begin(), options.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
    std::vector<StageOption> chosen;
    for (StageOption& o : options) {
        const bool is_beaten = std::any_of(chosen.begin(), chosen.end(), [&](const StageOption& c) {
            return c.kept_bytes <= o.kept_bytes && c.backward_peak_bytes <= o.backward_peak_bytes;
        });
        if (!is_beaten) chosen.push_back(std::move(o));
    }
    return chosen;
}

}  // namespace

// One stage with what surrounds it.
struct Modeller::Scope {
    std::vector<int> forward, backward;  // its ops
    std::vector<int> before, after;      // values at its start and at its end
    std::vector<int> made;               // of those at its end, its own
    std::vector<int> wanted;             // of the forward side, what its backward reads
    std::vector<int> leaving;            // of its backward, what is read elsewhere or returned
    std::vector<int> must;               // of its forward, what can only be kept
    std::vector<int> elsewhere;          // read from outside itself and its boundaries: taken to be at hand
    std::vector<int> outside;            // roots of what stands at its start
    std::vector<int> members;            // every value in and around it
    Int gradient_bytes = 0;
};

Modeller::Modeller(const Program& program, StageParts parts, std::vector<int> figures, int most_options, int resolution)
    : program_(program),
      parts_(std::move(parts)),
      figures_(std::move(figures)),
      most_options_(most_options),
      resolution_(resolution),
      is_returned_(program.count, false),
      place_(program.count, 0) {
    for (int v : program.backward_outputs) is_returned_[v] = true;
    std::vector<std::pair<int, int>> reads;
    for (int v = 0; v < program.count; ++v) {
        if (!program.is_backward[v]) continue;
        for (int u : program.inputs[v]) reads.emplace_back(u, v);
    }
    users_ = Rows<int>(reads, program.count);
}

std::pair<int, std::vector<int>> Modeller::kind_of(int start, int stop) {
    Scope scope = find_scope(start, stop);
    const auto [known, is_new] = kinds_.try_emplace(find_signature(scope), static_cast<int>(models_.size()));
    if (is_new) {
        find_surroundings(scope);
        models_.push_back(make_model(scope));
        computed_ops_ += static_cast<Int>(scope.forward.size() + scope.backward.size());
    }
    return {known->second, std::move(scope.members)};
}

Modeller::Scope Modeller::find_scope(int start, int stop) const {
    Scope scope;
    for (int s = start; s < stop; ++s) {
        const auto& forward = parts_.forward[s];
        const auto& backward = parts_.backward[stop - 1 - (s - start)];
        scope.forward.insert(scope.forward.end(), forward.begin(), forward.end());
        scope.backward.insert(scope.backward.end(), backward.begin(), backward.end());
    }
    std::sort(scope.forward.begin(), scope.forward.end());
    scope.before = parts_.boundary[start];
    if (stop < static_cast<int>(parts_.boundary.size())) scope.after = parts_.boundary[stop];
    std::sort(scope.before.begin(), scope.before.end());
    std::vector<char> is_inside(program_.count, false), is_met(program_.count, false);
    for (int v : scope.backward) is_inside[v] = true;
    for (int v : scope.backward) {
        for (int u : program_.inputs[v]) {
            if (program_.is_backward[u] || !program_.is_paid(u) || is_met[u]) continue;
            is_met[u] = true;
            scope.wanted.push_back(u);
        }
        const Slice<int> users = users_[v];
        const bool is_read_outside = std::any_of(users.begin(), users.end(), [&](int w) { return !is_inside[w]; });
        if (is_returned_[v] || is_read_outside) scope.leaving.push_back(v);
        const int root = program_.root[v];
        if (is_returned_[v] && program_.is_backward[root] && !is_met[root]) {
            is_met[root] = true;
            scope.gradient_bytes += program_.size_bytes[root];
        }
    }
    return scope;
}

// Equal for stages of equal structure and cost. The members are numbered in the order in which they are met.
std::vector<int> Modeller::find_signature(Scope& scope) {
    std::vector<char> is_after(program_.count, false), is_marked(program_.count, false);
    for (int v : scope.after) is_after[v] = true;
    for (int v : scope.leaving) is_marked[v] = true;
    for (int v : scope.forward) is_marked[v] |= is_returned_[v];
    seen_.begin(program_.count);
    const auto number = [&](int v) {
        if (seen_.add(v)) {
            place_[v] = static_cast<int>(scope.members.size());
            scope.members.push_back(v);
        }
        return place_[v];
    };
    std::vector<int> signature;
    for (const auto* ops : {&scope.before, &scope.forward, &scope.backward}) {
        for (int v : *ops) {
            signature.push_back(figures_[v]);  // says how many reads follow
            for (int u : program_.inputs[v]) signature.push_back(number(u));
            signature.insert(signature.end(), {number(v), is_after[v], is_marked[v]});
        }
    }
    for (int v : scope.members) signature.push_back(figures_[v]);
    return signature;
}

void Modeller::find_surroundings(Scope& scope) const {
    std::vector<char> is_inside(program_.count, false);
    for (int v : scope.forward) {
        is_inside[v] = true;
        if (must_keep(program_, v)) scope.must.push_back(v);
    }
    std::vector<int> reads;
    for (const auto* ops : {&scope.forward, &scope.backward}) {
        for (int v : *ops) {
            for (int u : program_.inputs[v]) {
                if (!program_.is_backward[u]) reads.push_back(u);
            }
        }
    }
    scope.elsewhere = without(held_values(program_, reads, is_inside), is_inside);
    for (int v : scope.before) scope.outside.push_back(program_.root[v]);
    std::copy_if(scope.after.begin(), scope.after.end(), std::back_inserter(scope.made),
                 [&](int v) { return is_inside[v]; });
}

StageModel Modeller::make_model(const Scope& scope) const {
    const std::vector<int> sequence = forward_again(scope, {});
    const Int advance_peak = local_peak(program_, sequence, scope.made, scope.outside);
    std::vector<StageOption> options;
    for (std::vector<int>& kept : kept_sets(scope)) {
        options.push_back(find_option(scope, std::move(kept), advance_peak, false));
    }
    StageModel model{prune(std::move(options)), find_option(scope, {}, advance_peak, true), duration(sequence),
                     advance_peak, scope.gradient_bytes};
    for (StageOption& option : model.options) {
        for (int& v : option.kept) v = place_[v];
    }
    return model;
}

// Kept sets of the stage's closures, from fastest to smallest: at most so many, both ends among them.
std::vector<std::vector<int>> Modeller::kept_sets(const Scope& scope) const {
    std::vector<int> free = scope.before;
    free.insert(free.end(), scope.after.begin(), scope.after.end());
    const auto [problem, values] = closure_problem(program_, scope.forward, scope.wanted, free);
    const std::vector<Closure> hull = problem.sweep(resolution_);
    std::vector<Closure> closures;
    for (std::size_t k = 0; k < hull.size(); ++k) {
        closures.push_back(hull[k]);
        if (k + 1 == hull.size()) break;
        for (Closure& between : problem.fill_between(hull[k], hull[k + 1], 0)) closures.push_back(std::move(between));
    }
    std::vector<char> is_own(program_.count, false);  // outputs of the forward are free to keep wherever they are made
    for (int v : scope.members) is_own[v] = true;
    for (int v : free) is_own[v] = false;
    std::vector<std::vector<int>> found;
    const Int last = static_cast<Int>(closures.size()) - 1, steps = std::min<Int>(last, most_options_ - 1);
    for (Int k = 0; k <= steps; ++k) {
        const Closure& closure = closures[steps ? (2 * k * last + steps) / (2 * steps) : 0];
        std::vector<int>& kept = found.emplace_back();
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (closure.available[i] && !closure.recomputed[i] && is_own[values[i]]) kept.push_back(values[i]);
        }
    }
    return found;
}

// A forward of the stage that computes `kept` and the values at its end.
std::vector<int> Modeller::forward_again(const Scope& scope, Slice<int> kept) const {
    std::vector<int> at_hand = scope.before;
    at_hand.insert(at_hand.end(), scope.must.begin(), scope.must.end());
    at_hand.insert(at_hand.end(), scope.elsewhere.begin(), scope.elsewhere.end());
    std::vector<int> made = scope.made;
    made.insert(made.end(), kept.begin(), kept.end());
    Recorder recorder(program_, at_hand);
    recorder.demand(made);
    return recorder.sequence();
}

// Figures of running the stage's backward with `kept` at hand. The forward that makes them once more is taken to need
// what advancing needs, and what is kept.
StageOption Modeller::find_option(const Scope& scope, std::vector<int> kept, Int advance_peak_bytes,
                                  bool is_alone) const {
    std::vector<int> at_hand = scope.before;
    for (const Slice<int> more :
         {Slice<int>(kept), Slice<int>(is_alone ? scope.must : scope.after), Slice<int>(scope.elsewhere)}) {
        at_hand.insert(at_hand.end(), more.begin(), more.end());
    }
    Recorder recorder(program_, at_hand);
    recorder.run(scope.backward);
    StageOption option{};
    option.backward_peak_bytes = local_peak(program_, recorder.sequence(), scope.leaving, scope.outside);
    for (int v : recorder.sequence()) option.extra_ns += program_.in_forward[v] ? program_.duration_ns[v] : 0;
    for (int v : kept) option.kept_bytes += program_.size_bytes[v];
    option.again_ns = duration(forward_again(scope, kept));
    option.forward_peak_bytes = option.kept_bytes + advance_peak_bytes;
    option.kept = std::move(kept);
    return option;
}

Int Modeller::duration(Slice<int> ops) const {
    Int total = 0;
    for (int v : ops) total += program_.duration_ns[v];
    return total;
}

}  // namespace remat
