// The problem as Python has it: `Program` of program.py, read off its attributes.
//
// In: the Python object. Out: the core's `Program`. Never checks: program.py and its makers did.
#pragma once

#include <pybind11/pybind11.h>

#include "program.hpp"

namespace remat {

Program read_program(const pybind11::object& from);

}  // namespace remat
