// The Python module `_native`: threads, instruction sets, and the bindings in python/.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dispatch.h"
#include "errors.h"
#include "python/bindings.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace sightline;

// Raise a C++ InputError as sightline.errors.InputError.
static void translate_errors() {
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const InputError& error) {
            nb::object type = nb::module_::import_("sightline.errors").attr("InputError");
            nb::object raised = type(error.what(), "expected"_a = error.expected, "fix"_a = error.fix);
            PyErr_SetObject(type.ptr(), raised.ptr());
        }
    });
}

NB_MODULE(_native, m) {
    select_instruction_set(instruction_sets().front());
    translate_errors();
    m.attr("INTERFACE") = 2;  // compared by sightline/kernels/library.py, which refuses a module built from other sources
    m.def("instruction_sets", &instruction_sets, "The instruction sets that this processor supports, best first.");
    m.def("instruction_set", &instruction_set, "The selected instruction set.");
    m.def("select_instruction_set", &select_instruction_set, "name"_a);
    m.def("is_amd", &is_amd, "Whether the processor is from AMD.");
    m.def("set_threads", &set_threads, "count"_a, "Set the number of threads for calls from this thread.");
    m.def("threads", &threads);
    m.def(
        "use_openmp",
        [](uintptr_t parallel, uintptr_t thread_number, uintptr_t thread_count) {
            use_openmp((void*)parallel, (void*)thread_number, (void*)thread_count);
        },
        "parallel"_a, "thread_number"_a, "thread_count"_a,
        "Run on OpenMP's threads, given the addresses of three functions of libgomp.");
    bind_enums(m);
    bind_training(m);
    bind_operations(m);
    bind_engine(m);
}
