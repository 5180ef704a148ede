// The bindings of the Python module, one function per subject.
#pragma once
#include <nanobind/nanobind.h>

namespace sightline {

void bind_enums(nanobind::module_&);
void bind_training(nanobind::module_&);
void bind_operations(nanobind::module_&);
void bind_engine(nanobind::module_&);

}  // namespace sightline
