// The core as a Python module: `rematpass.solve._core`, described in _core.pyi.
//
// In: Python objects. Out: the core's answers as tuples and arrays. Never decides.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "bound.hpp"
#include "chain.hpp"
#include "closure.hpp"
#include "flow.hpp"
#include "lives.hpp"
#include "order.hpp"
#include "read.hpp"
#include "repair.hpp"
#include "spread.hpp"
#include "stage.hpp"
#include "wait.hpp"
#include "work.hpp"

namespace py = pybind11;

namespace remat {
namespace {

using Ops = std::vector<int>;

py::tuple to_tuple(const Ops& values) {
    py::tuple found(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) found[i] = py::int_(values[i]);
    return found;
}

template <class T>
py::array_t<Int> to_ints(const std::vector<T>& values) {
    py::array_t<Int> found(static_cast<py::ssize_t>(values.size()));
    std::copy(values.begin(), values.end(), found.mutable_data());
    return found;
}

py::array_t<bool> to_bools(const std::vector<char>& values) {
    py::array_t<bool> found(static_cast<py::ssize_t>(values.size()));
    std::copy(values.begin(), values.end(), found.mutable_data());
    return found;
}

void bind_program(py::module_& m) {
    py::class_<Program>(m, "Program")
        .def(py::init(&read_program))
        .def("kept_values", [](const Program& p,
                               const Ops& backward) { return to_tuple(kept_values(p, backward, p.backward_outputs)); })
        .def("recompute_ns", [](const Program& p, const Ops& backward) { return recompute_ns(p, backward); })
        .def("drop_unread", [](const Program& p, const Ops& backward) { return to_tuple(drop_unread(p, backward)); })
        .def("tidy_backward",
             [](const Program& p, const Ops& backward) { return to_tuple(tidy_backward(p, backward)); })
        .def("let_wait", [](const Program& p, const Ops& backward) { return to_tuple(let_wait(p, backward)); })
        .def("find_forward", [](const Program& p, const Ops& ops,
                                const Ops& kept) { return find_forward(p, trace_forward(p, ops), kept); })
        .def("find_backward",
             [](const Program& p, const Ops& ops) { return find_backward(p, ops, kept_in_memory(p, ops)); })
        .def("peak_above_inputs",
             [](const Program& p, const Ops& forward, const Ops& backward) {
                 return peak_above_inputs(p, trace_forward(p, forward), backward);
             })
        .def("closure_problem", [](const Program& p, const Ops& scope, const Ops& wanted,
                                   const Ops& free) { return closure_problem(p, scope, wanted, free); })
        .def("must_keep",
             [](const Program& p, const Ops& values) {
                 Ops found;
                 std::copy_if(values.begin(), values.end(), std::back_inserter(found),
                              [&](int v) { return must_keep(p, v); });
                 return found;
             })
        .def("local_peak", [](const Program& p, const Ops& ops, const Ops& returned, const Ops& outside) {
            return local_peak(p, ops, returned, outside);
        });
}

void bind_half(py::module_& m) {
    py::class_<Half>(m, "Half")
        .def_property_readonly("given", [](const Half& half) { return half.trace.given; })
        .def("ops", [](const Half& half) { return to_ints(half.trace.ops); })
        .def("root", [](const Half& half) { return to_ints(half.trace.root); })
        .def("size", [](const Half& half) { return to_ints(half.size); })
        .def("is_stored", [](const Half& half) { return to_bools(half.is_stored); })
        .def("runs_at", [](const Half& half) { return to_ints(half.runs_at); })
        .def("end", [](const Half& half) { return to_ints(half.end); })
        .def("taken", [](const Half& half) { return to_ints(half.taken); })
        .def("spans",
             [](const Half& half) {
                 std::vector<char> is_there;
                 std::vector<int> start, stop;
                 for (int i = 0; i < half.count(); ++i) {
                     const Span span = find_span(half, i);
                     is_there.push_back(span.is_there);
                     start.push_back(span.start);
                     stop.push_back(span.stop);
                 }
                 return std::tuple(to_bools(is_there), to_ints(start), to_ints(stop));
             })
        .def("live_bytes", [](const Half& half, const Program& p) { return to_ints(live_bytes(p, half)); })
        .def("find_heirs", [](const Half& half, const Program& p) { return find_heirs(p, half); })
        .def("find_put_off", [](const Half& half, const Program& p) { return to_bools(find_put_off(p, half)); });
}

void bind_recorder(py::module_& m) {
    py::class_<Recorder>(m, "Recorder")
        .def(py::init([](const Program& p, const Ops& kept) { return Recorder(p, kept); }), py::keep_alive<1, 2>())
        .def("demand", [](Recorder& r, const Ops& values) { return r.demand(values); })
        .def("run", [](Recorder& r, const Ops& ops) { return r.run(ops); })
        .def("drop", [](Recorder& r, const Ops& values) { r.drop(values); })
        .def_property_readonly("sequence", [](const Recorder& r) { return to_tuple(r.sequence()); });
}

void bind_moves(py::module_& m) {
    py::class_<Axis>(m, "Axis")
        .def(py::init([](const Program& p, const Ops& forward, const Ops& backward) {
                 return Axis(p, trace_forward(p, forward), backward);
             }),
             py::keep_alive<1, 2>())
        .def_property_readonly("ops", [](const Axis& axis) { return axis.ops; })
        .def_readonly("split", &Axis::split)
        .def_property_readonly("live", [](const Axis& axis) { return to_ints(axis.live); });
    py::class_<Eviction>(m, "Eviction")
        .def_readonly("execution", &Eviction::execution)
        .def_readonly("freed_bytes", &Eviction::freed_bytes)
        .def_readonly("extra_ns", &Eviction::extra_ns)
        .def_property_readonly("again", [](const Eviction& eviction) { return to_tuple(eviction.again); });
    m.def("list_evictions", &list_evictions);
    m.def("take_together", &take_together);
    m.def("apply_evictions", [](const Axis& axis, const std::vector<Eviction>& evictions) {
        return to_tuple(apply_evictions(axis, evictions));
    });
    py::class_<Polisher>(m, "Polisher")
        .def(py::init([](const Program& p, const Ops& forward, const Ops& backward) {
                 return Polisher(Axis(p, trace_forward(p, forward), backward));
             }),
             py::keep_alive<1, 2>())
        .def("next", &Polisher::next)
        .def_property_readonly("steps_taken", &Polisher::steps_taken)
        .def("repeated", &Polisher::repeated)
        .def("without",
             [](Polisher& polisher, const Ops& executions) { return to_tuple(polisher.without(executions)); })
        .def("backward", [](const Polisher& polisher, int count) { return to_tuple(polisher.backward(count)); });
    py::class_<LocalSearch>(m, "LocalSearch")
        .def(py::init([](const Program& p, const Ops& forward, const Ops& backward, Int budget_bytes,
                         double enough_ns) { return LocalSearch(p, forward, backward, budget_bytes, enough_ns); }),
             py::keep_alive<1, 2>())
        .def("step", &LocalSearch::step)
        .def_property_readonly("best_ns",
                               [](const LocalSearch& search) {
                                   const double none = std::numeric_limits<double>::infinity();
                                   return search.best() ? static_cast<double>(search.best_ns()) : none;
                               })
        .def_property_readonly("best", [](const LocalSearch& search) -> py::object {
            return search.best() ? py::object(to_tuple(*search.best())) : py::object(py::none());
        });
}

template <class T>
std::vector<T> from_array(const py::array_t<T>& values) {
    return {values.data(), values.data() + values.size()};
}

std::vector<char> from_bools(const py::array_t<bool>& values) { return {values.data(), values.data() + values.size()}; }

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
        return to_bools(minimum_cut(nodes, read_arcs(tails, heads, capacities), source, sink));
    });
    m.def("certify_cut", [](const py::array_t<Int>& tails, const py::array_t<Int>& heads,
                            const py::array_t<Int>& capacities, const py::array_t<bool>& side, int sink, Int flow) {
        certify_cut(read_arcs(tails, heads, capacities), from_bools(side), sink, flow);
    });
}

void bind_moments(py::module_& m) {
    py::class_<Around>(m, "Around")
        .def_property_readonly("is_over", [](const Around& around) { return to_bools(around.is_over); })
        .def_property_readonly("to_come", [](const Around& around) { return to_bools(around.to_come); });
    py::class_<Moments>(m, "Moments")
        .def(py::init<const Program&>(), py::keep_alive<1, 2>())
        .def("around", &Moments::around, py::arg("k"), py::arg("before") = std::vector<int>{},
             py::arg("after") = std::vector<int>{})
        .def("live_gradients", &Moments::live_gradients);
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

void raise_solver_error(const std::string& text) {
    PyErr_SetString(py::module_::import("rematpass.errors").attr("SolverError").ptr(), text.c_str());
}

}  // namespace
}  // namespace remat

PYBIND11_MODULE(_core, m) {
    py::register_exception_translator([](std::exception_ptr raised) {
        try {
            if (raised) std::rethrow_exception(raised);
        } catch (const remat::Unavailable& error) {
            const std::string value = "value " + std::to_string(error.value);
            remat::raise_solver_error(value + " is needed, was not kept, and must not be recomputed");
        } catch (const remat::Unsolvable& error) {
            remat::raise_solver_error(error.why);
        }
    });
    m.attr("SOURCES") = REMATPASS_SOURCES;
    remat::bind_program(m);
    remat::bind_half(m);
    remat::bind_recorder(m);
    remat::bind_moves(m);
    remat::bind_closures(m);
    remat::bind_stages(m);
    remat::bind_chain(m);
    m.def("spread_cuts", [](const py::array_t<remat::Int>& widths, const py::array_t<remat::Int>& made, double distance,
                            double widening, double reach) {
        return remat::spread_cuts(remat::from_array(widths), remat::from_array(made), {distance, widening, reach});
    });
    m.def("work_done", [] {
        const remat::Work& work = remat::work_done();
        return std::tuple(work.cuts, work.arcs, work.ways);
    });
    remat::bind_moments(m);
}
