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
