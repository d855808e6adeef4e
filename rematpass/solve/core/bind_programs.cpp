// Programs, their halves and what is tried on them, as Python classes.
//
// In: Python objects. Out: the core's answers as tuples and arrays. Never decides.
#include <iterator>
#include <limits>

#include "bind.hpp"
#include "bound.hpp"
#include "closure.hpp"
#include "hurry.hpp"
#include "lives.hpp"
#include "lowest.hpp"
#include "masks.hpp"
#include "order.hpp"
#include "read.hpp"
#include "repair.hpp"
#include "wait.hpp"

namespace remat {
namespace {

void bind_program(py::module_& m) {
    py::class_<Program>(m, "Program")
        .def(py::init(&read_program))
        .def("kept_values", [](const Program& p,
                               const Ops& backward) { return to_tuple(kept_values(p, backward, p.backward_outputs)); })
        .def("recompute_ns", [](const Program& p, const Ops& backward) { return recompute_ns(p, backward); })
        .def("drop_unread", [](const Program& p, const Ops& backward) { return to_tuple(drop_unread(p, backward)); })
        .def("drop_overtaken",
             [](const Program& p, Ops backward) { return to_tuple(drop_overtaken(p, std::move(backward))); })
        .def("best_order",
             [](const Program& p, const Ops& forward, const Ops& backward, bool hands_masks) {
                 const Ordered found = best_order(p, forward, backward, hands_masks);
                 return std::tuple(found.peak, to_tuple(found.backward), to_tuple(found.before));
             })
        .def("tidy_backward",
             [](const Program& p, const Ops& backward) { return to_tuple(tidy_backward(p, backward)); })
        .def("let_hurry", [](const Program& p, const Ops& backward) { return to_tuple(let_hurry(p, backward)); })
        .def("find_masks",
             [](const Program& p, const Ops& backward) {
                 return to_tuple(find_masks(p, find_backward(p, backward, kept_in_memory(p, backward))));
             })
        .def("let_wait", [](const Program& p, const Ops& backward) { return to_tuple(let_wait(p, backward)); })
        .def("let_wait_longer",
             [](const Program& p, const Ops& backward) { return to_tuple(let_wait_longer(p, backward)); })
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
        .def("keep_instead", [](const Program& p, const Ops& values) { return keep_instead(p, values); })
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
        .def_property_readonly("present", [](const LocalSearch& search) { return to_tuple(search.present()); })
        .def_property_readonly("present_ns", &LocalSearch::present_ns)
        .def_property_readonly("best_ns",
                               [](const LocalSearch& search) {
                                   const double none = std::numeric_limits<double>::infinity();
                                   return search.best() ? static_cast<double>(search.best_ns()) : none;
                               })
        .def_property_readonly("best", [](const LocalSearch& search) -> py::object {
            return search.best() ? py::object(to_tuple(*search.best())) : py::object(py::none());
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

}  // namespace

void bind_programs(py::module_& m) {
    bind_program(m);
    bind_half(m);
    bind_recorder(m);
    bind_moves(m);
    bind_moments(m);
}

}  // namespace remat
