// The door to Python. Tensors come as addresses and strides: whoever calls keeps them alive and has checked them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "choose.h"
#include "threads.h"

namespace nb = nanobind;
using namespace sightline;

using Strided = std::tuple<uintptr_t, long, long, long>;  // address, strides of batch, head, time

static Heads heads(const Strided& x) { return {reinterpret_cast<float*>(std::get<0>(x)), std::get<1>(x), std::get<2>(x), std::get<3>(x)}; }
template <class T = float>
static T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

using Sizes = std::tuple<long, long, long, long, long, long>;  // batch, heads, kv_heads, queries, keys, dim

static Attending attending(const Sizes& s, float scale, uintptr_t first, uintptr_t end) {
    auto [batch, heads, kv_heads, queries, keys, dim] = s;
    return {batch, heads, kv_heads, queries, keys, dim, scale, at<int32_t>(first), at<int32_t>(end)};
}

NB_MODULE(_native, m) {
    choose(kinds().front());
    m.def("kinds", &kinds);
    m.def("kind", &kind);
    m.def("choose", &choose);
    m.def("set_threads", &set_threads);
    m.def("threads", &threads);
    m.def("set_team", [](uintptr_t address) { set_team(at<void>(address)); });
    m.def("attention", [](const Sizes& sizes, float scale, uintptr_t first, uintptr_t end, const Strided& q, const Strided& k, const Strided& v,
                          const Strided& o, uintptr_t lse) {
        nb::gil_scoped_release free;
        training_kernels->attention(attending(sizes, scale, first, end), heads(q), heads(k), heads(v), heads(o), at(lse));
    });
    m.def("attention_back", [](const Sizes& sizes, float scale, uintptr_t first, uintptr_t end, const Strided& q, const Strided& k,
                               const Strided& v, const Strided& o, uintptr_t lse, const Strided& slope, const Strided& dq, const Strided& dk,
                               const Strided& dv) {
        nb::gil_scoped_release free;
        training_kernels->attention_back(attending(sizes, scale, first, end), heads(q), heads(k), heads(v), heads(o), at(lse), heads(slope),
                                         heads(dq), heads(dk), heads(dv));
    });
    m.def("activate", [](int act, long count, uintptr_t x, uintptr_t up, uintptr_t y) {
        nb::gil_scoped_release free;
        training_kernels->activate((Activation)act, count, at(x), at(up), at(y));
    });
    m.def("activate_back", [](int act, long count, uintptr_t x, uintptr_t up, uintptr_t slope, uintptr_t dx, uintptr_t dup) {
        nb::gil_scoped_release free;
        training_kernels->activate_back((Activation)act, count, at(x), at(up), at(slope), at(dx), at(dup));
    });
    m.def("rms_norm", [](long rows, long width, uintptr_t x, uintptr_t gain, float epsilon, uintptr_t y, uintptr_t inverse) {
        nb::gil_scoped_release free;
        training_kernels->rms_norm(rows, width, at(x), at(gain), epsilon, at(y), at(inverse));
    });
    m.def("rms_norm_back", [](long rows, long width, uintptr_t x, uintptr_t gain, uintptr_t inverse, uintptr_t slope, uintptr_t dx,
                              uintptr_t dgain, uintptr_t scratch) {
        nb::gil_scoped_release free;
        training_kernels->rms_norm_back(rows, width, at(x), at(gain), at(inverse), at(slope), at(dx), at(dgain), at(scratch));
    });
}
