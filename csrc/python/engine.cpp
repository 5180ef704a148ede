// Bindings of the engine, and of the functions that read and pack weights.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "checksum.h"
#include "dispatch.h"
#include "python/bindings.h"
#include "python/tensor.h"

namespace sightline {

using namespace nb::literals;
using OptionalTensor = std::optional<Tensor>;

// ------------------------------------------------------------------------------------------------------------- construction

static Cache make_cache(const std::vector<int>& kv_heads, const std::vector<int>& dims, bool half) {
    if (kv_heads.size() != dims.size())
        throw InputError(std::to_string(kv_heads.size()) + " kv head counts and " + std::to_string(dims.size()) + " head sizes", "one of each per layer");
    for (size_t n = 0; n < dims.size(); n++)
        if (kv_heads[n] < 1 || dims[n] < 1) throw InputError("a layer with " + std::to_string(kv_heads[n]) + " kv heads of " + std::to_string(dims[n]), "at least 1");
    Cache cache;
    cache.kv_heads = kv_heads, cache.dims = dims, cache.half = half;
    for (size_t n = 0; n < dims.size(); n++) cache.offset.push_back(cache.elements), cache.elements += 2L * BLOCK_POSITIONS * kv_heads[n] * dims[n];
    return cache;
}

static void construct(Engine* e, const std::vector<long>& widths, const std::vector<int>& kv_heads, const std::vector<int>& head_dims,
                      bool half_cache, long max_positions) {
    Cache cache = make_cache(kv_heads, head_dims, half_cache);
    for (long width : widths)
        if (width < 1) throw InputError("a buffer of " + std::to_string(width) + " numbers", "at least 1");
    if (widths.empty()) throw InputError("an engine without buffers", "at least the residual stream");
    new (e) Engine();
    e->widths = widths, e->cache = std::move(cache);
    e->max_positions = std::min<long>(max_positions, INT32_MAX);
}

static void check_bytes(const Tensor& x, const char* name, long needed) {
    x.data<uint8_t>(name, {ANY});
    if (x.count() < needed) throw InputError(std::string(name) + ": " + x.describe(), "at least " + std::to_string(needed) + " bytes");
}

static int add_matrix(Engine& e, Precision precision, long rows, long inputs, const Tensor& data, const Tensor& scales) {
    if (rows < 1 || inputs < 1) throw InputError("a matrix of " + std::to_string(rows) + " by " + std::to_string(inputs), "at least 1 by 1");
    const long tiles = (rows + 2 * TILE - 1) / (2 * TILE) * 2, depth = (inputs + GROUP - 1) / GROUP * GROUP;
    check_bytes(data, "data", tiles * Packed::bytes_of(precision, depth));
    check_bytes(scales, "scales", tiles * Packed::scale_bytes_of(precision, depth));
    e.matrices.push_back({precision, rows, inputs, tiles, depth, data.data<uint8_t>("data", {ANY}), scales.data<uint8_t>("scales", {ANY})});
    e.owners.push_back(reference_to(data));
    e.owners.push_back(reference_to(scales));
    e.max_inputs = std::max(e.max_inputs, depth);
    return (int)e.matrices.size() - 1;
}

// Layers with the same frequencies share one table of angles.
static void share_angles(Engine& e, HeadTransform& transform) {
    if (!transform.pairs()) return;
    const int pairs = transform.pairs();
    while (transform.angles < (int)e.angles.size()) {
        const Angles& table = e.angles[transform.angles];
        if (table.pairs == pairs && table.amplitude == transform.amplitude && !std::memcmp(table.frequencies, transform.frequencies.data, pairs * 4)) return;
        transform.angles++;
    }
    e.angles.push_back({pairs, transform.frequencies.data, transform.amplitude, {}});
}

static void add_operation(Engine& e, Operation op) {
    check_operation(e, op);
    if (!e.program.empty() && is_logits(e.program.back())) throw InputError("an operation after the logits", "the logits last");
    if (auto* attend = std::get_if<Attend>(&op)) {
        share_angles(e, attend->transform);
        e.query_widths.push_back((long)attend->heads * attend->head_dim);
        e.has_cross_attention |= attend->cross;
    }
    e.program.push_back(std::move(op));
}

static void set_encoder(Engine& e, Engine& encoder) {
    for (const Operation& op : e.program)
        if (auto* attend = std::get_if<Attend>(&op); attend && attend->cross) {
            const Cache& cache = encoder.cache;
            const bool fits = attend->layer < (int)cache.dims.size() && cache.kv_heads[attend->layer] == attend->kv_heads && cache.dims[attend->layer] == attend->head_dim;
            if (!fits) throw InputError("an encoder without keys for cross-attention layer " + std::to_string(attend->layer), "the encoder of the same model");
        }
    e.encoder_cache = &encoder.cache;
}

static const Packed& matrix_at(const Engine& e, int number, long first = 0, long rows = 1) {
    if (number < 0 || number >= (int)e.matrices.size())
        throw InputError("matrix " + std::to_string(number), std::to_string(e.matrices.size()) + " matrices, counted from 0");
    const Packed& matrix = e.matrices[number];
    if (first < 0 || first + rows > matrix.rows)
        throw InputError("row " + std::to_string(first < 0 ? first : first + rows - 1), std::to_string(matrix.rows) + " rows, counted from 0");
    return matrix;
}

static std::tuple<long, long> pack(Engine& e, int number, const Tensor& weights) {
    const Packed& matrix = matrix_at(e, number);
    const float* data = weights.data<float>("weights", {matrix.rows, matrix.inputs});
    nb::gil_scoped_release release;
    const PackingDamage damage = engine_kernels()->pack(data, matrix.inputs, matrix);
    return {damage.rows, damage.first};
}

static void unpack(const Engine& e, int number, long first, const Tensor& out) {
    const Packed& matrix = matrix_at(e, number, first, std::max(1L, out.view.dimensions ? out.size(0) : 0));
    float* to = out.data<float>("out", {ANY, matrix.inputs});
    for (long row = 0; row < out.size(0); row++) engine_kernels()->unpack_row(matrix, first + row, to + row * matrix.inputs);
}

// ------------------------------------------------------------------------------------------------------------------ running

static const int32_t* find_slots(const Cache& cache, const Handle* handles, long rows, std::vector<int32_t>& slots) {
    if (!handles) return nullptr;
    slots.resize(rows);
    for (long row = 0; row < rows; row++)
        slots[row] = row && handles[row] == handles[row - 1] ? slots[row - 1] : slot_of(cache, handles[row]);
    return slots.data();
}

static void check_and_run(Engine& e, const Step& step) {
    check_step(e, step);
    engine_kernels()->run(e, step);
}

static long vocabulary_of(const Engine& e) {
    auto* head = e.program.empty() ? nullptr : std::get_if<Linear>(&e.program.back());
    return head && head->logits ? e.matrices[head->matrix].rows : 0;
}

static std::vector<float*> query_outputs(const Engine& e, const std::vector<OptionalTensor>& queries, long rows) {
    if (!queries.empty() && queries.size() != e.query_widths.size())
        throw InputError("queries: tensors for " + std::to_string(queries.size()) + " layers", std::to_string(e.query_widths.size()) + " layers");
    std::vector<float*> outputs;
    for (size_t n = 0; n < queries.size(); n++) outputs.push_back(optional_data<float>(queries[n], "queries", {rows, e.query_widths[n]}));
    return outputs;
}

static void run(Engine& e, const Tensor& positions, const OptionalTensor& tokens, const OptionalTensor& sequences, const OptionalTensor& sources,
                const OptionalTensor& logit_rows, const OptionalTensor& logits, const std::vector<OptionalTensor>& queries,
                const OptionalTensor& hidden, const OptionalTensor& start, long first) {
    const int32_t* at = positions.data<int32_t>("positions", {ANY});
    const long rows = positions.size(0), width = e.widths[0];
    const int32_t* ids = optional_data<int32_t>(tokens, "tokens", {rows});
    const Handle* handles = optional_data<Handle>(sequences, "sequences", {rows});
    const Handle* source_handles = optional_data<Handle>(sources, "sources", {rows});
    const int32_t* rows_with_logits = optional_data<int32_t>(logit_rows, "logit_rows", {ANY});
    const long count = logit_rows ? logit_rows->size(0) : 0;
    float* to = optional_data<float>(logits, "logits", {count, vocabulary_of(e)});
    const std::vector<float*> to_queries = query_outputs(e, queries, rows);
    float* to_hidden = optional_data<float>(hidden, "hidden", {rows, width});
    const float* from = optional_data<float>(start, "start", {rows, width});
    nb::gil_scoped_release release;
    const int32_t* slots = find_slots(e.cache, handles, rows, e.slots);
    const int32_t* source_slots = e.encoder_cache ? find_slots(*e.encoder_cache, source_handles, rows, e.source_slots) : nullptr;
    check_and_run(e, {rows, ids, slots, at, source_slots, rows_with_logits, count, to, to_queries.empty() ? nullptr : to_queries.data(), to_hidden, from, first});
}

// Appends one token to one sequence and computes its logits: the fast path of decoding.
static void next(Engine& e, Handle sequence, int32_t token, const Tensor& logits) {
    float* to = logits.data<float>("logits", {1, vocabulary_of(e)});
    nb::gil_scoped_release release;
    const int32_t slot = slot_of(e.cache, sequence), position = (int32_t)e.cache.lengths[slot], row = 0;
    check_and_run(e, {1, &token, &slot, &position, nullptr, &row, 1, to, nullptr, nullptr, nullptr, 0});
}

static void read_cache(const Engine& e, Handle sequence, int layer, const Tensor& keys, const Tensor& values) {
    const int slot = slot_of(e.cache, sequence);
    check_read(e.cache, slot, layer, 0, 0);
    const long heads = e.cache.kv_heads[layer], dim = e.cache.dims[layer];
    float* to_keys = keys.data<float>("keys", {heads, ANY, dim});
    const long length = keys.size(1);
    float* to_values = values.data<float>("values", {heads, length, dim});
    check_read(e.cache, slot, layer, 0, length);
    for (long head = 0; head < heads; head++)
        engine_kernels()->read_cache(e.cache, slot, layer, (int)head, length, to_keys + head * length * dim, to_values + head * length * dim);
}

// ------------------------------------------------------------------------------------------------------------------- memory

static bool use_huge_pages(const Tensor& memory) {
    [[maybe_unused]] uint8_t* start = memory.data<uint8_t>("memory", {ANY});
#if defined(__linux__)
    return madvise(start, memory.count(), MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

// Returns the first damaged block, or −1.
static long read_file(int descriptor, long start, const Tensor& memory, const std::vector<uint32_t>& sums, long block) {
    uint8_t* to = memory.data<uint8_t>("memory", {ANY});
    if (block < 1 || (long)sums.size() != (memory.count() + block - 1) / block)
        throw InputError(std::to_string(sums.size()) + " checksums of blocks of " + std::to_string(block) + " bytes", "one per block of " + memory.describe());
    ReadResult result;
    {
        nb::gil_scoped_release release;
        result = read_verified(descriptor, start, to, memory.count(), sums.data(), block);
    }
    if (result.error) {
        errno = result.error;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    if (result.too_short) throw nb::value_error("the file was truncated while it was read");
    return result.damaged_block;
}

void bind_engine(nb::module_& m) {
    nb::class_<Engine>(m, "Engine", "Packed matrices, a program over them, and the KV cache of its sequences.")
        .def("__init__", &construct, nb::kw_only(), "widths"_a, "kv_heads"_a, "head_dims"_a, "half_cache"_a, "max_positions"_a = (long)INT32_MAX)
        .def("add_matrix", &add_matrix, nb::kw_only(), "precision"_a, "rows"_a, "inputs"_a, "data"_a, "scales"_a, "Returns the index of the matrix.")
        .def("add_operation", &add_operation, "operation"_a)
        .def("pack", &pack, "matrix"_a, "weights"_a, "Returns the number of destroyed rows, and the first of them.")
        .def("unpack", &unpack, "matrix"_a, "first"_a, "out"_a, "Unpack rows to float32, starting at row `first`.")
        .def("run", &run, nb::kw_only(), "positions"_a, "tokens"_a = nb::none(), "sequences"_a = nb::none(), "sources"_a = nb::none(),
             "logit_rows"_a = nb::none(), "logits"_a = nb::none(), "queries"_a = std::vector<OptionalTensor>(), "hidden"_a = nb::none(),
             "start"_a = nb::none(), "first"_a = 0)
        .def("next", &next, "sequence"_a, "token"_a, "logits"_a, "Append one token to one sequence and write its logits.")
        .def("read_cache", &read_cache, "sequence"_a, "layer"_a, "keys"_a, "values"_a)
        .def("set_encoder", &set_encoder, "encoder"_a, nb::keep_alive<1, 2>())
        .def("new_sequence", [](Engine& e) { return new_sequence(e.cache); })
        .def("copy_sequence", [](Engine& e, Handle sequence) { return copy_sequence(e.cache, sequence); }, "sequence"_a)
        .def("free_sequence", [](Engine& e, Handle sequence) { free_sequence(e.cache, sequence); }, "sequence"_a)
        .def("truncate_sequence", [](Engine& e, Handle sequence, long length) { truncate_sequence(e.cache, sequence, length); }, "sequence"_a, "length"_a)
        .def("length", [](const Engine& e, Handle sequence) { return e.cache.lengths[slot_of(e.cache, sequence)]; }, "sequence"_a)
        .def("cache_bytes", [](const Engine& e) { return (long)(e.cache.blocks.size() - e.cache.free_blocks.size()) * e.cache.bytes_of_block(); });
    m.def("tile_bytes", &Packed::bytes_of, "precision"_a, "depth"_a, "Size of a tile of 8 rows, in bytes.");
    m.def("scale_bytes", &Packed::scale_bytes_of, "precision"_a, "depth"_a, "Size of the scales of a tile, in bytes.");
    m.def("use_huge_pages", &use_huge_pages, "memory"_a, "Request huge pages for memory; returns whether the request succeeded.");
    m.def("read_verified", &read_file, "descriptor"_a, "start"_a, "memory"_a, "sums"_a, "block"_a,
          "Fill memory from a file and verify each CRC-32; returns the first damaged block, or -1.");
    m.def("crc32", [](const Tensor& data) { return crc32(data.data<uint8_t>("data", {ANY}), data.count()); }, "data"_a);
}

}  // namespace sightline
