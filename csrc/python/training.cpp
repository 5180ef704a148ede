// Bindings of the training kernels: they read torch tensors and write to tensors that the caller allocates.
#include <nanobind/stl/optional.h>

#include "dispatch.h"
#include "python/bindings.h"
#include "python/tensor.h"

namespace sightline {

using namespace nb::literals;
using OptionalTensor = std::optional<Tensor>;

// [batch, heads, time, dim] with any strides, except that dim is contiguous.
static Heads heads_of(const Tensor& x, const char* name, const std::vector<long>& shape) {
    float* data = x.data<float>(name, shape, false);
    if (x.stride(3) != 1 && x.size(3) > 1) throw InputError(std::string(name) + ": " + x.describe(), "stride 1 in the last dimension");
    return {data, x.stride(0), x.stride(1), x.stride(2)};
}

static AttentionShape attention_shape(const Tensor& q, const Tensor& k, float scale, const OptionalTensor& first, const OptionalTensor& end) {
    q.data<float>("q", {ANY, ANY, ANY, ANY}, false);
    k.data<float>("k", {q.size(0), ANY, ANY, q.size(3)}, false);
    const long batch = q.size(0), heads = q.size(1), kv_heads = k.size(1), queries = q.size(2);
    if (kv_heads < 1 || heads % kv_heads) throw InputError(std::to_string(heads) + " heads", "a multiple of the " + std::to_string(kv_heads) + " kv heads");
    return {batch, heads, kv_heads, queries, k.size(2), q.size(3), scale, optional_data<int32_t>(first, "first", {batch, queries}),
            optional_data<int32_t>(end, "end", {batch, queries})};
}

static std::vector<long> query_shape(const AttentionShape& s) { return {s.batch, s.heads, s.queries, s.dim}; }
static std::vector<long> key_shape(const AttentionShape& s) { return {s.batch, s.kv_heads, s.keys, s.dim}; }

static void attention(const Tensor& q, const Tensor& k, const Tensor& v, float scale, const OptionalTensor& first, const OptionalTensor& end,
                      const Tensor& out, const Tensor& lse) {
    const AttentionShape shape = attention_shape(q, k, scale, first, end);
    const Heads query = heads_of(q, "q", query_shape(shape)), key = heads_of(k, "k", key_shape(shape)), value = heads_of(v, "v", key_shape(shape));
    const Heads output = heads_of(out, "out", query_shape(shape));
    float* sums = lse.data<float>("lse", {shape.batch, shape.heads, shape.queries});
    nb::gil_scoped_release release;
    training_kernels()->attention(shape, query, key, value, output, sums);
}

static void attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, float scale, const OptionalTensor& first,
                               const OptionalTensor& end, const Tensor& out, const Tensor& lse, const Tensor& gradient, const Tensor& dq,
                               const Tensor& dk, const Tensor& dv) {
    const AttentionShape shape = attention_shape(q, k, scale, first, end);
    const std::vector<long> queries = query_shape(shape), keys = key_shape(shape);
    const Heads query = heads_of(q, "q", queries), key = heads_of(k, "k", keys), value = heads_of(v, "v", keys);
    const Heads output = heads_of(out, "out", queries), upstream = heads_of(gradient, "gradient", queries);
    const Heads to_q = heads_of(dq, "dq", queries), to_k = heads_of(dk, "dk", keys), to_v = heads_of(dv, "dv", keys);
    const float* sums = lse.data<float>("lse", {shape.batch, shape.heads, shape.queries});
    nb::gil_scoped_release release;
    training_kernels()->attention_backward(shape, query, key, value, output, sums, upstream, to_q, to_k, to_v);
}

static const float* matrix_of(const Tensor& x, const char* name, long rows, long columns) {
    const float* data = x.data<float>(name, {rows, columns}, false);
    if (x.stride(0) != 1 && x.stride(1) != 1) throw InputError(std::string(name) + ": " + x.describe(), "stride 1 in one of its dimensions");
    return data;
}

static void matmul(const Tensor& a, const Tensor& b, const OptionalTensor& bias, const Tensor& out) {
    const float* left = matrix_of(a, "a", ANY, ANY);
    const long rows = a.size(0), depth = a.size(1);
    const float* right = matrix_of(b, "b", depth, ANY);
    const long columns = b.size(1);
    float* to = out.data<float>("out", std::vector<long>(out.view.dimensions, ANY));
    if (out.count() != rows * columns)
        throw InputError("out: " + out.describe(), std::to_string(rows) + " rows of " + std::to_string(columns) + " numbers");
    const Product product{rows,        columns,     depth,       a.stride(0), a.stride(1), b.stride(0), b.stride(1), optional_data<float>(bias, "bias", {columns}),
                          to,          columns};
    nb::gil_scoped_release release;
    training_kernels()->matmul(product, left, right);
}

static void check_differentiable(Activation activation) {
    const bool supported = activation == Activation::relu || activation == Activation::gelu || activation == Activation::gelu_tanh || activation == Activation::silu;
    if (!supported) throw InputError("an activation without a training kernel", "relu, gelu, gelu_tanh or silu", "use torch's function");
}

static std::vector<long> shape_of(const Tensor& x) { return {x.view.shape, x.view.shape + x.view.dimensions}; }

static void activate(Activation activation, const Tensor& x, const OptionalTensor& up, const Tensor& y) {
    const std::vector<long> shape = shape_of(x);
    const float *input = x.data<float>("x", shape), *gate = optional_data<float>(up, "up", shape);
    float* output = y.data<float>("y", shape);
    check_differentiable(activation);
    nb::gil_scoped_release release;
    training_kernels()->activate(activation, x.count(), input, gate, output);
}

static void activate_backward(Activation activation, const Tensor& x, const OptionalTensor& up, const Tensor& gradient, const Tensor& dx,
                              const OptionalTensor& dup) {
    const std::vector<long> shape = shape_of(x);
    const float *input = x.data<float>("x", shape), *gate = optional_data<float>(up, "up", shape);
    const float* upstream = gradient.data<float>("gradient", shape);
    float *to_x = dx.data<float>("dx", shape), *to_up = optional_data<float>(dup, "dup", shape);
    if (up.has_value() != dup.has_value()) throw InputError("only one of up and dup", "both or neither");
    check_differentiable(activation);
    nb::gil_scoped_release release;
    training_kernels()->activate_backward(activation, x.count(), input, gate, upstream, to_x, to_up);
}

static void rotate(const Tensor& x, const Tensor& cosines, const Tensor& sines, float direction, const Tensor& y) {
    x.data<float>("x", {ANY, ANY, ANY, ANY}, false);
    const long batch = x.size(0), heads = x.size(1), time = x.size(2), dim = x.size(3);
    const Heads from = heads_of(x, "x", {batch, heads, time, dim}), to = heads_of(y, "y", {batch, heads, time, dim});
    const long rows = cosines.view.dimensions == 4 && cosines.size(0) == 1 ? 1 : batch;
    const float* cosine = cosines.data<float>("cosines", {rows, 1, time, ANY});
    const long pairs = cosines.size(3);
    if (2 * pairs > dim) throw InputError("cosines: " + cosines.describe(), "at most " + std::to_string(dim / 2) + " pairs");
    const float* sine = sines.data<float>("sines", {rows, 1, time, pairs});
    nb::gil_scoped_release release;
    training_kernels()->rotate({batch, heads, time, dim, pairs, cosine, sine, rows == 1 ? 0 : time * pairs, direction}, from, to);
}

struct Rows {
    long count, width;
    std::vector<long> shape;
};
static Rows rows_of(const Tensor& x) {
    const std::vector<long> shape = shape_of(x);
    if (shape.empty() || shape.back() < 1) throw InputError("x: " + x.describe(), "rows of at least one number");
    return {x.count() / shape.back(), shape.back(), shape};
}

static void rms_norm(const Tensor& x, const OptionalTensor& gain, float epsilon, const Tensor& y, const Tensor& inverse) {
    const Rows rows = rows_of(x);
    const float *input = x.data<float>("x", rows.shape), *gains = optional_data<float>(gain, "gain", {rows.width});
    float *output = y.data<float>("y", rows.shape), *inverses = inverse.data<float>("inverse", {rows.count});
    nb::gil_scoped_release release;
    training_kernels()->rms_norm(rows.count, rows.width, input, gains, epsilon, output, inverses);
}

static void rms_norm_backward(const Tensor& x, const OptionalTensor& gain, const Tensor& inverse, const Tensor& gradient, const Tensor& dx,
                              const OptionalTensor& dgain, const OptionalTensor& scratch) {
    const Rows rows = rows_of(x);
    const float *input = x.data<float>("x", rows.shape), *gains = optional_data<float>(gain, "gain", {rows.width});
    const float *inverses = inverse.data<float>("inverse", {rows.count}), *upstream = gradient.data<float>("gradient", rows.shape);
    float *to_x = dx.data<float>("dx", rows.shape), *to_gain = optional_data<float>(dgain, "dgain", {rows.width});
    float* memory = optional_data<float>(scratch, "scratch", {(rows.count + RMS_ROWS_PER_TASK - 1) / RMS_ROWS_PER_TASK, rows.width});
    if (to_gain && !memory) throw InputError("dgain without scratch memory", "scratch, one row per " + std::to_string(RMS_ROWS_PER_TASK) + " rows of x");
    nb::gil_scoped_release release;
    training_kernels()->rms_norm_backward(rows.count, rows.width, input, gains, inverses, upstream, to_x, to_gain, memory);
}

void bind_enums(nb::module_& m) {
    nb::enum_<Activation>(m, "Activation", "The activations of feed-forward layers.")
        .value("none", Activation::none)
        .value("relu", Activation::relu)
        .value("gelu", Activation::gelu)
        .value("gelu_tanh", Activation::gelu_tanh)
        .value("silu", Activation::silu)
        .value("relu_squared", Activation::relu_squared)
        .value("tanh", Activation::tanh);
    nb::enum_<NormKind>(m, "NormKind", "Kinds of normalization; `unit` scales to length 1.")
        .value("none", NormKind::none)
        .value("layer", NormKind::layer)
        .value("rms", NormKind::rms)
        .value("unit", NormKind::unit);
    nb::enum_<Precision>(m, "Precision", "How a packed matrix stores its weights.")
        .value("float32", Precision::float32)
        .value("float16", Precision::float16)
        .value("int8", Precision::int8)
        .value("int8_groups", Precision::int8_groups)
        .value("int4", Precision::int4)
        .value("int4_min", Precision::int4_min);
}

void bind_training(nb::module_& m) {
    m.def("attention", &attention, "q"_a, "k"_a, "v"_a, "scale"_a, "first"_a.none(), "end"_a.none(), "out"_a, "lse"_a,
          "out = softmax(q kᵀ · scale) v; query i attends to keys first[i] … end[i] − 1; lse = log Σ exp.");
    m.def("attention_backward", &attention_backward, "q"_a, "k"_a, "v"_a, "scale"_a, "first"_a.none(), "end"_a.none(), "out"_a, "lse"_a,
          "gradient"_a, "dq"_a, "dk"_a, "dv"_a);
    m.def("matmul", &matmul, "a"_a, "b"_a, "bias"_a.none(), "out"_a, "out = a b + bias");
    m.def("activate", &activate, "activation"_a, "x"_a, "up"_a.none(), "y"_a, "y = act(x), or act(x) ⊙ up");
    m.def("activate_backward", &activate_backward, "activation"_a, "x"_a, "up"_a.none(), "gradient"_a, "dx"_a, "dup"_a.none());
    m.def("rotate", &rotate, "x"_a, "cosines"_a, "sines"_a, "direction"_a, "y"_a,
          "RoPE: pairs (x_i, x_{i + pairs}) rotated by their angles, backwards if direction is −1.");
    m.def("rms_norm", &rms_norm, "x"_a, "gain"_a.none(), "epsilon"_a, "y"_a, "inverse"_a, "y = x · inverse · gain, inverse = 1 / √(mean x² + ε)");
    m.def("rms_norm_backward", &rms_norm_backward, "x"_a, "gain"_a.none(), "inverse"_a, "gradient"_a, "dx"_a, "dgain"_a.none(), "scratch"_a.none());
}

}  // namespace sightline
