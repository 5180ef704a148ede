// The door to Python. Tensors come as addresses and strides: whoever calls keeps them alive and has checked them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "dispatch.h"
#include "threads.h"

namespace nb = nanobind;
using namespace sightline;

using Strided = std::tuple<uintptr_t, long, long, long>;  // address, strides of batch, head, time

using Standing = std::tuple<uintptr_t, long, long>;  // a matrix: address, steps of row and column

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

template <class T>
static T of(const nb::dict& d, const char* name, T otherwise) {
    return d.contains(name) ? nb::cast<T>(d[name]) : otherwise;
}
static const float* floats_of(const nb::dict& d, const char* name) { return at(of<uintptr_t>(d, name, 0)); }

static Norm norm_of(const nb::dict& d, const char* name) {
    if (!d.contains(name)) return {};
    nb::dict n = nb::cast<nb::dict>(d[name]);
    return {(NormKind)of<int>(n, "kind", 0), of<float>(n, "epsilon", 0), floats_of(n, "gain"), floats_of(n, "bias")};
}

// An operation as Python writes it: what is not said is as `Operation` has it.
static Operation operation_of(const nb::dict& d) {
    Operation op;
    op.kind = (Kind)nb::cast<int>(d["kind"]);
    op.in = of(d, "in", 0), op.out = of(d, "out", 0), op.norm = norm_of(d, "norm"), op.matrix = of(d, "matrix", -1);
    op.bias = floats_of(d, "bias"), op.scale = of(d, "scale", 1.0f), op.curve = (Curve)of(d, "curve", 0);
    op.gated = of(d, "gated", false), op.adds = of(d, "adds", false), op.last = of(d, "last", false);
    op.factor = floats_of(d, "factor"), op.softcap = of(d, "softcap", 0.0f);
    op.positions = floats_of(d, "positions"), op.types = floats_of(d, "types");
    op.layer = of(d, "layer", 0), op.heads = of(d, "heads", 0), op.kv_heads = of(d, "kv_heads", 0), op.dim = of(d, "dim", 0);
    op.work.query = norm_of(d, "query_norm"), op.work.key = norm_of(d, "key_norm");
    op.work.pairs = of(d, "pairs", 0), op.work.frequencies = floats_of(d, "frequencies"), op.work.amplitude = of(d, "amplitude", 1.0f);
    op.work.unit = of(d, "unit", false), op.work.query_scale = floats_of(d, "query_scale"), op.work.key_scale = floats_of(d, "key_scale");
    op.score_scale = of(d, "score_scale", 1.0f), op.score_cap = of(d, "score_cap", 0.0f), op.window = of(d, "window", 0L);
    op.causal = of(d, "causal", true), op.cross = of(d, "cross", false), op.distance_bias = floats_of(d, "distance_bias"), op.reach = of(d, "reach", 0L);
    op.sinks = floats_of(d, "sinks"), op.step = floats_of(d, "step");
    return op;
}

static void share_angles(Engine& e, HeadWork& work) {
    if (!work.pairs) return;
    while (work.angles < (int)e.angles.size()) {
        const Angles& known = e.angles[work.angles];
        if (known.pairs == work.pairs && known.amplitude == work.amplitude && !std::memcmp(known.frequencies, work.frequencies, work.pairs * 4)) return;
        work.angles++;
    }
    e.angles.push_back({work.pairs, work.frequencies, work.amplitude, {}});
}

static Cache cache_of(const std::vector<int>& kv_heads, const std::vector<int>& dims, bool half) {
    Cache cache;
    cache.kv_heads = kv_heads, cache.dims = dims, cache.half = half;
    for (size_t n = 0; n < dims.size(); n++) cache.offset.push_back(cache.numbers), cache.numbers += 2L * BLOCK_POSITIONS * kv_heads[n] * dims[n];
    return cache;
}

// A refusal is raised as the package's own InputError, so that it is told like any other.
static void raise_refusals() {
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const Refusal& refusal) {
            nb::object kind = nb::module_::import_("sightline.errors").attr("InputError");
            nb::object error = kind(refusal.what(), nb::arg("expected") = refusal.expected, nb::arg("fix") = refusal.fix);
            PyErr_SetObject(kind.ptr(), error.ptr());
        }
    });
}

static const Packed& matrix_of(const Engine& e, int number, long row = 0) {
    if (number < 0 || number >= (int)e.matrices.size())
        throw Refusal("matrix " + std::to_string(number), std::to_string(e.matrices.size()) + " matrices, counted from 0");
    const Packed& found = e.matrices[number];
    if (row < 0 || row >= found.rows) throw Refusal("row " + std::to_string(row), std::to_string(found.rows) + " rows, counted from 0");
    return found;
}

static void add_operation(Engine& e, const nb::dict& said) {
    e.program.push_back(operation_of(said));
    Operation& op = e.program.back();
    share_angles(e, op.work);
    if (op.kind == Kind::attend) e.attends++, e.crosses |= op.cross;
}

static const int32_t* slots_of(const Cache& cache, const Handle* handles, long rows, std::vector<int32_t>& slots) {
    if (!handles) return nullptr;
    slots.resize(rows);
    for (long row = 0; row < rows; row++)
        slots[row] = row && handles[row] == handles[row - 1] ? slots[row - 1] : slot_of(cache, handles[row]);
    return slots.data();
}

static void run(Engine& e, const Step& step) {
    check_step(e, step);
    engine_kernels()->run(e, step);
}

static void add_engine(nb::module_& m) {
    nb::class_<Engine>(m, "Engine")
        .def(
            "__init__",
            [](Engine* e, const std::vector<long>& widths, const std::vector<int>& kv_heads, const std::vector<int>& dims, bool half,
               long max_positions) {
                new (e) Engine();
                e->widths = widths, e->cache = cache_of(kv_heads, dims, half);
                e->max_positions = std::min<long>(max_positions, INT32_MAX);
            },
            nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("max_positions") = (long)INT32_MAX)
        .def("matrix",
             [](Engine& e, int precision, long rows, long inputs, long tiles, long depth, uintptr_t data, uintptr_t scales) {
                 e.matrices.push_back({(Precision)precision, rows, inputs, tiles, depth, at<const uint8_t>(data), at<const void>(scales)});
                 e.most_inputs = std::max(e.most_inputs, depth);
                 return (int)e.matrices.size() - 1;
             })
        .def("operation", &add_operation)
        .def("pack",  // how many rows it destroyed, and the first of them
             [](Engine& e, int matrix, uintptr_t weights, long stride) {
                 nb::gil_scoped_release free;
                 const Damage damage = engine_kernels()->pack(at(weights), stride, matrix_of(e, matrix));
                 return std::tuple(damage.rows, damage.first);
             })
        .def("unpack_row",
             [](Engine& e, int matrix, long row, uintptr_t to) { engine_kernels()->unpack_row(matrix_of(e, matrix, row), row, at(to)); })
        .def("run",
             [](Engine& e, long rows, uintptr_t tokens, uintptr_t sequences, uintptr_t positions, uintptr_t sources, long wanted_count,
                uintptr_t wanted, uintptr_t logits, const std::vector<uintptr_t>& queries, uintptr_t hidden, uintptr_t from, long first) {
                 nb::gil_scoped_release free;
                 std::vector<float*> kept;
                 for (uintptr_t one : queries) kept.push_back(at(one));
                 if (!kept.empty() && (int)kept.size() != e.attends)
                     throw Refusal("room for the queries of " + std::to_string(kept.size()) + " layers", std::to_string(e.attends) + " layers");
                 const int32_t* slots = slots_of(e.cache, at<const Handle>(sequences), rows, e.slots);
                 const int32_t* looked_at = e.looked_at ? slots_of(*e.looked_at, at<const Handle>(sources), rows, e.source_slots) : nullptr;
                 run(e, {rows, at<int32_t>(tokens), slots, at<int32_t>(positions), looked_at, at<int32_t>(wanted), wanted_count, at(logits),
                         kept.empty() ? nullptr : kept.data(), at(hidden), at(from), first});
             })
        .def("next",  // one more token of one sequence, and the logits after it
             [](Engine& e, Handle sequence, int32_t token, uintptr_t logits) {
                 nb::gil_scoped_release free;
                 const int32_t slot = slot_of(e.cache, sequence), position = (int32_t)e.cache.lengths[slot], wanted = 0;
                 run(e, {1, &token, &slot, &position, nullptr, &wanted, 1, at(logits), nullptr, nullptr, nullptr, 0});
             })
        .def("read_cache",
             [](Engine& e, Handle sequence, int layer, int kv_head, long positions, uintptr_t keys, uintptr_t values) {
                 const int slot = slot_of(e.cache, sequence);
                 check_read(e.cache, slot, layer, kv_head, positions);
                 engine_kernels()->read_cache(e.cache, slot, layer, kv_head, positions, at(keys), at(values));
             })
        .def("look_at", [](Engine& e, Engine& encoder) { e.looked_at = &encoder.cache; }, nb::keep_alive<1, 2>())
        .def("new_sequence", [](Engine& e) { return new_sequence(e.cache); })
        .def("copy_sequence", [](Engine& e, Handle from) { return copy_sequence(e.cache, from); })
        .def("forget_sequence", [](Engine& e, Handle sequence) { forget_sequence(e.cache, sequence); })
        .def("truncate_sequence", [](Engine& e, Handle sequence, long length) { truncate_sequence(e.cache, sequence, length); })
        .def("length", [](Engine& e, Handle sequence) { return e.cache.lengths[slot_of(e.cache, sequence)]; })
        .def("cache_bytes", [](Engine& e) { return (long)(e.cache.blocks.size() - e.cache.unused.size()) * e.cache.bytes_of_block(); });
    m.def("advise_huge", [](uintptr_t start, long bytes) {
#if defined(__linux__)
        return madvise(at<void>(start), bytes, MADV_HUGEPAGE) == 0;
#else
        (void)start, (void)bytes;
        return false;
#endif
    });
    m.def("tile_bytes", [](int precision, long depth) { return Packed::bytes_of((Precision)precision, depth); });
    m.def("scale_bytes", [](int precision, long depth) { return Packed::scale_bytes_of((Precision)precision, depth); });
}

NB_MODULE(_native, m) {
    raise_refusals();
    add_engine(m);
    choose(kinds().front());
    m.def("kinds", &kinds);
    m.def("kind", &kind);
    m.def("choose", &choose);
    m.def("by_amd", &by_amd);
    m.def("set_threads", &set_threads);
    m.def("threads", &threads);
    m.def("set_team", [](uintptr_t parallel, uintptr_t number, uintptr_t of) { set_team(at<void>(parallel), at<void>(number), at<void>(of)); });
    m.def("attention", [](const Sizes& sizes, float scale, uintptr_t first, uintptr_t end, const Strided& q, const Strided& k, const Strided& v,
                          const Strided& o, uintptr_t lse) {
        nb::gil_scoped_release free;
        training_kernels()->attention(attending(sizes, scale, first, end), heads(q), heads(k), heads(v), heads(o), at(lse));
    });
    m.def("attention_back", [](const Sizes& sizes, float scale, uintptr_t first, uintptr_t end, const Strided& q, const Strided& k,
                               const Strided& v, const Strided& o, uintptr_t lse, const Strided& slope, const Strided& dq, const Strided& dk,
                               const Strided& dv) {
        nb::gil_scoped_release free;
        training_kernels()->attention_back(attending(sizes, scale, first, end), heads(q), heads(k), heads(v), heads(o), at(lse), heads(slope),
                                         heads(dq), heads(dk), heads(dv));
    });
    m.def("matmul", [](const std::tuple<long, long, long>& sizes, const Standing& a, const Standing& b, uintptr_t bias, uintptr_t out, long under) {
        nb::gil_scoped_release free;
        auto [rows, columns, depth] = sizes;
        auto [a_at, a_row, a_column] = a;
        auto [b_at, b_row, b_column] = b;
        training_kernels()->matmul({rows, columns, depth, a_row, a_column, b_row, b_column, at(bias), at(out), under}, at(a_at), at(b_at));
    });
    m.def("activate", [](int act, long count, uintptr_t x, uintptr_t up, uintptr_t y) {
        nb::gil_scoped_release free;
        training_kernels()->activate((Activation)act, count, at(x), at(up), at(y));
    });
    m.def("activate_back", [](int act, long count, uintptr_t x, uintptr_t up, uintptr_t slope, uintptr_t dx, uintptr_t dup) {
        nb::gil_scoped_release free;
        training_kernels()->activate_back((Activation)act, count, at(x), at(up), at(slope), at(dx), at(dup));
    });
    m.def("rotate", [](const std::tuple<long, long, long, long, long>& sizes, uintptr_t cosines, uintptr_t sines, long row, float turn,
                       const Strided& x, const Strided& y) {
        nb::gil_scoped_release free;
        auto [batch, count, time, dim, pairs] = sizes;
        training_kernels()->rotate({batch, count, time, dim, pairs, at(cosines), at(sines), row, turn}, heads(x), heads(y));
    });
    m.def("rms_norm", [](long rows, long width, uintptr_t x, uintptr_t gain, float epsilon, uintptr_t y, uintptr_t inverse) {
        nb::gil_scoped_release free;
        training_kernels()->rms_norm(rows, width, at(x), at(gain), epsilon, at(y), at(inverse));
    });
    m.def("rms_norm_back", [](long rows, long width, uintptr_t x, uintptr_t gain, uintptr_t inverse, uintptr_t slope, uintptr_t dx,
                              uintptr_t dgain, uintptr_t scratch) {
        nb::gil_scoped_release free;
        training_kernels()->rms_norm_back(rows, width, at(x), at(gain), at(inverse), at(slope), at(dx), at(dgain), at(scratch));
    });
}
