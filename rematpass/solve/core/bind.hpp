// What the bindings share: Python's sequences and arrays from the core's, and back.
//
// In: values of the core or of Python. Out: copies of the other's. Never decides.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <vector>

#include "program.hpp"

namespace pybind11::detail {

// Ops of a schedule, thousands at a time. What pybind11 has for sequences asks Python for each element in several
// calls, which took a tenth of the time of planning (2026-11).
template <>
struct type_caster<std::vector<int>> {
    PYBIND11_TYPE_CASTER(std::vector<int>, const_name("Sequence[int]"));

    bool load(handle from, bool) {
        if (PyUnicode_Check(from.ptr()) || PyBytes_Check(from.ptr())) return false;
        const auto items = reinterpret_steal<object>(PySequence_Fast(from.ptr(), ""));
        if (!items) {
            PyErr_Clear();  // not iterable: pybind11 says which types it expected
            return false;
        }
        PyObject** const first = PySequence_Fast_ITEMS(items.ptr());
        value.resize(PySequence_Fast_GET_SIZE(items.ptr()));
        for (std::size_t i = 0; i < value.size(); ++i) {
            const long item = PyLong_AsLong(first[i]);
            value[i] = static_cast<int>(item);
            if (value[i] == item && (item != -1 || !PyErr_Occurred())) continue;
            PyErr_Clear();
            return false;
        }
        return true;
    }

    static handle cast(const std::vector<int>& values, return_value_policy, handle) {
        list found(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) found[i] = int_(values[i]);
        return found.release();
    }
};

}  // namespace pybind11::detail

namespace remat {

namespace py = pybind11;

using Ops = std::vector<int>;

inline py::tuple to_tuple(const Ops& values) {
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

inline py::array_t<bool> to_bools(const std::vector<char>& values) {
    py::array_t<bool> found(static_cast<py::ssize_t>(values.size()));
    std::copy(values.begin(), values.end(), found.mutable_data());
    return found;
}

template <class T>
std::vector<T> from_array(const py::array_t<T>& values) {
    return {values.data(), values.data() + values.size()};
}

inline std::vector<char> from_bools(const py::array_t<bool>& values) {
    return {values.data(), values.data() + values.size()};
}

void bind_programs(py::module_& m);
void bind_solvers(py::module_& m);

}  // namespace remat
