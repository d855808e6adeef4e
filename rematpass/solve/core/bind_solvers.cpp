// Cuts, closures, stages and the chain programme, as Python classes.
//
// In: Python objects. Out: the core's answers as tuples and arrays. Never decides.
#include <numeric>

#include "bind.hpp"
#include "chain.hpp"
#include "closure.hpp"
#include "flow.hpp"
#include "stage.hpp"
#include "whole.hpp"

namespace remat {
namespace {

ClosureProblem read_closure_problem(const py::array_t<Int>& keep_bytes, const py::array_t<Int>& recompute_ns,
                                    const py::array_t<bool>& wanted, const py::array_t<bool>& may_keep,
                                    const py::array_t<bool>& may_recompute, const py::array_t<Int>& tails,
                                    const py::array_t<Int>& heads) {
    ClosureProblem problem;
    problem.keep_bytes = from_array(keep_bytes);
    problem.recompute_ns = from_array(recompute_ns);
    problem.wanted = from_bools(wanted);
    problem.may_keep = from_bools(may_keep);
    problem.may_recompute = from_bools(may_recompute);
    for (py::ssize_t k = 0; k < tails.size(); ++k) {
        problem.arcs.emplace_back(static_cast<int>(tails.data()[k]), static_cast<int>(heads.data()[k]));
    }
    problem.find_forced();
    return problem;
}

std::vector<Arc> read_arcs(const py::array_t<Int>& tails, const py::array_t<Int>& heads,
                           const py::array_t<Int>& capacities) {
    std::vector<Arc> arcs;
    for (py::ssize_t k = 0; k < tails.size(); ++k) {
        const Int capacity = capacities.data()[k];
        if (capacity < 0 || capacity > MAX_CAPACITY) {
            throw Unsolvable{"capacity " + std::to_string(capacity) + " does not fit: 0..2**60 do"};
        }
        arcs.push_back({static_cast<int>(tails.data()[k]), static_cast<int>(heads.data()[k]), capacity});
    }
    return arcs;
}

Int common_divisor(const std::vector<Int>& values) {
    Int found = 0;
    for (Int value : values) found = std::gcd(found, value);
    return std::max<Int>(1, found);
}

void bind_closures(py::module_& m) {
    py::class_<Closure>(m, "Closure")
        .def_readonly("kept_bytes", &Closure::kept_bytes)
        .def_readonly("extra_ns", &Closure::extra_ns)
        .def_property_readonly("available", [](const Closure& closure) { return to_bools(closure.available); })
        .def_property_readonly("recomputed", [](const Closure& closure) { return to_bools(closure.recomputed); })
        .def_property_readonly("kept", [](const Closure& closure) {
            std::vector<char> kept = closure.available;
            for (std::size_t v = 0; v < kept.size(); ++v) kept[v] &= !closure.recomputed[v];
            return to_bools(kept);
        });
    py::class_<ClosureProblem>(m, "ClosureProblem")
        .def(py::init(&read_closure_problem), py::kw_only(), py::arg("keep_bytes"), py::arg("recompute_ns"),
             py::arg("wanted"), py::arg("may_keep"), py::arg("may_recompute"), py::arg("tails"), py::arg("heads"))
        .def_property_readonly("keep_bytes", [](const ClosureProblem& p) { return to_ints(p.keep_bytes); })
        .def_property_readonly("recompute_ns", [](const ClosureProblem& p) { return to_ints(p.recompute_ns); })
        .def_property_readonly("wanted", [](const ClosureProblem& p) { return to_bools(p.wanted); })
        .def_property_readonly("may_keep", [](const ClosureProblem& p) { return to_bools(p.may_keep); })
        .def_property_readonly("may_recompute", [](const ClosureProblem& p) { return to_bools(p.may_recompute); })
        .def("least_of_whole", &least_of_whole)
        .def_property_readonly("tails",
                               [](const ClosureProblem& p) {
                                   std::vector<int> tails;
                                   for (const auto& arc : p.arcs) tails.push_back(arc.first);
                                   return to_ints(tails);
                               })
        .def_property_readonly("heads",
                               [](const ClosureProblem& p) {
                                   std::vector<int> heads;
                                   for (const auto& arc : p.arcs) heads.push_back(arc.second);
                                   return to_ints(heads);
                               })
        .def_property_readonly("keep_unit", [](const ClosureProblem& p) { return common_divisor(p.keep_bytes); })
        .def_property_readonly("recompute_unit", [](const ClosureProblem& p) { return common_divisor(p.recompute_ns); })
        .def("with_sides",
             [](ClosureProblem p, const py::array_t<bool>& wanted, const py::array_t<bool>& may_keep,
                const py::array_t<bool>& may_recompute) {
                 p.wanted = from_bools(wanted);
                 p.may_keep = from_bools(may_keep);
                 p.may_recompute = from_bools(may_recompute);
                 p.find_forced();
                 return p;
             })
        .def("solve", &ClosureProblem::solve)
        .def("vertex_between", &ClosureProblem::vertex_between)
        .def("sweep", &ClosureProblem::sweep)
        .def("fill_between", &ClosureProblem::fill_between);
    m.attr("MAX_CAPACITY") = py::int_(MAX_CAPACITY);
    m.def("minimum_cut", [](int nodes, const py::array_t<Int>& tails, const py::array_t<Int>& heads,
                            const py::array_t<Int>& capacities, int source, int sink) {
        return to_bools(minimum_cut(nodes, read_arcs(tails, heads, capacities), source, sink).side);
    });
    m.def("certify_cut", [](const py::array_t<Int>& tails, const py::array_t<Int>& heads,
                            const py::array_t<Int>& capacities, const py::array_t<bool>& side, int sink, Int flow) {
        certify_cut(read_arcs(tails, heads, capacities), from_bools(side), sink, flow);
    });
}

py::tuple to_row(const StageOption& o) {
    return py::make_tuple(to_tuple(o.kept), o.kept_bytes, o.extra_ns, o.backward_peak_bytes, o.again_ns,
                          o.forward_peak_bytes);
}

void bind_stages(py::module_& m) {
    py::class_<Modeller>(m, "Modeller")
        .def(py::init([](const Program& p, std::vector<Ops> forward, std::vector<Ops> backward,
                         std::vector<Ops> boundary, Ops figures, int most_options, int resolution) {
                 return Modeller(p, {std::move(forward), std::move(backward), std::move(boundary)}, std::move(figures),
                                 most_options, resolution);
             }),
             py::keep_alive<1, 2>())
        .def("kind_of",
             [](Modeller& modeller, int start, int stop) {
                 const auto [kind, members] = modeller.kind_of(start, stop);
                 return std::tuple(kind, to_tuple(members));
             })
        .def("model",
             [](const Modeller& modeller, int kind) {
                 const StageModel& model = modeller.model(kind);
                 std::vector<py::tuple> options;
                 for (const StageOption& option : model.options) options.push_back(to_row(option));
                 return py::make_tuple(options, to_row(model.alone), model.advance_ns, model.advance_peak_bytes,
                                       model.gradient_bytes);
             })
        .def_property_readonly("computed_ops", &Modeller::computed_ops);
}

using OptionRow = std::tuple<Int, Int, int, int, int>;
using RunRow = std::tuple<int, int, int, Int, int, std::vector<OptionRow>>;

ChainTables read_chain(int width, const std::vector<std::vector<RunRow>>& runs, std::vector<std::vector<int>> added,
                       std::vector<int> gradients, std::vector<Int> advance_ns, std::vector<int> advance_peak) {
    ChainFigures figures{
        width, {}, std::move(added), std::move(gradients), std::move(advance_ns), std::move(advance_peak)};
    for (const auto& from_stage : runs) {
        std::vector<ChainRun>& found = figures.runs.emplace_back();
        for (const auto& [stop, kind, passing, alone_ns, alone_peak, rows] : from_stage) {
            ChainRun& run = found.emplace_back(ChainRun{stop, kind, passing, alone_ns, alone_peak, {}});
            for (const auto& [extra, again, kept, backward, forward] : rows) {
                run.options.push_back({extra, again, kept, backward, forward});
            }
        }
    }
    return ChainTables(std::move(figures));
}

void bind_chain(py::module_& m) {
    py::class_<ChainStep>(m, "ChainStep")
        .def_readonly("run", &ChainStep::run)
        .def_readonly("option", &ChainStep::option)
        .def_readonly("split", &ChainStep::split)
        .def_readonly("later", &ChainStep::later)
        .def_readonly("later_slot", &ChainStep::later_slot)
        .def_readonly("earlier", &ChainStep::earlier)
        .def_readonly("earlier_slot", &ChainStep::earlier_slot);
    py::class_<ChainTables> tables(m, "ChainTables");
    tables.def(py::init(&read_chain))
        .def_property_readonly("first_row", &ChainTables::first_row)
        .def("times", [](const ChainTables& chain, int row) { return to_ints(chain.times(row)); })
        .def("step", &ChainTables::step);
    tables.attr("NEVER") = py::int_(ChainTables::NEVER);
}

}  // namespace

void bind_solvers(py::module_& m) {
    bind_closures(m);
    bind_stages(m);
    bind_chain(m);
}

}  // namespace remat
