// The core as a Python module: `rematpass.solve._core`, described in _core.pyi.
//
// In: Python objects. Out: the core's answers as tuples and arrays. Never decides.
#include "bind.hpp"
#include "flow.hpp"
#include "order.hpp"
#include "spread.hpp"
#include "work.hpp"

namespace py = pybind11;

namespace remat {
namespace {

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
    remat::bind_programs(m);
    remat::bind_solvers(m);
    m.def("spread_cuts", [](const py::array_t<remat::Int>& widths, const py::array_t<remat::Int>& made, double distance,
                            double widening, double reach) {
        return remat::spread_cuts(remat::from_array(widths), remat::from_array(made), {distance, widening, reach});
    });
    m.def("work_done", [] {
        const remat::Work& work = remat::work_done();
        return std::tuple(work.cuts, work.arcs, work.ways);
    });
}
