// A Python class for each operation, with the fields of engine/operations.h as keyword arguments. An unknown keyword is a TypeError. An
// operation keeps its tensors alive.
#include <nanobind/stl/optional.h>

#include "python/bindings.h"
#include "python/tensor.h"

namespace sightline {

using namespace nb::literals;
using OptionalTensor = std::optional<Tensor>;
using OptionalNorm = std::optional<Norm>;

static Norm norm_or_none(const OptionalNorm& norm) { return norm ? *norm : Norm{}; }

static void bind_norm(nb::module_& m) {
    nb::class_<Norm>(m, "Norm")
        .def(
            "__init__",
            [](Norm* self, NormKind kind, float epsilon, const OptionalTensor& gain, const OptionalTensor& bias) {
                new (self) Norm{kind, epsilon, keep_floats(gain, "gain"), keep_floats(bias, "bias")};
            },
            nb::kw_only(), "kind"_a, "epsilon"_a = 0.0f, "gain"_a = nb::none(), "bias"_a = nb::none());
}

static void bind_rows(nb::module_& m) {
    nb::class_<Embed>(m, "Embed", "norm(scale · E[token] + positions[position] + types)")
        .def(
            "__init__",
            [](Embed* self, int output, int matrix, float scale, const OptionalTensor& positions, const OptionalTensor& types,
               const OptionalNorm& norm) {
                new (self) Embed{output, matrix, scale, keep_floats(positions, "positions"), keep_floats(types, "types"), norm_or_none(norm)};
            },
            nb::kw_only(), "output"_a, "matrix"_a, "scale"_a = 1.0f, "positions"_a = nb::none(), "types"_a = nb::none(), "norm"_a = nb::none());
    nb::class_<Normalize>(m, "Normalize", "The norm of elements offset … offset + width − 1 of each row.")
        .def(
            "__init__",
            [](Normalize* self, int input, int output, const Norm& norm, int width, int offset) {
                new (self) Normalize{input, output, offset, width, norm};
            },
            nb::kw_only(), "input"_a, "output"_a, "norm"_a, "width"_a, "offset"_a = 0);
    nb::class_<Blend>(m, "Blend", "output = unit(output + step ⊙ (unit(input) − output))")
        .def(
            "__init__", [](Blend* self, int input, int output, const Tensor& step) { new (self) Blend{input, output, keep_floats(step, "step")}; },
            nb::kw_only(), "input"_a, "output"_a, "step"_a);
    nb::class_<Add>(m, "Add", "output += input")
        .def("__init__", [](Add* self, int input, int output) { new (self) Add{input, output}; }, nb::kw_only(), "input"_a, "output"_a);
}

static void bind_linear(nb::module_& m) {
    nb::class_<Linear>(m, "Linear", "column_scale ⊙ act(W norm(scale · input) + bias); gated if gated_width > 0.")
        .def(
            "__init__",
            [](Linear* self, int input, int matrix, int output, const OptionalNorm& norm, float scale, const OptionalTensor& bias,
               Activation activation, int gated_width, const OptionalTensor& gate_scale, const OptionalTensor& column_scale, float softcap,
               bool accumulate, bool logits) {
                new (self) Linear{input,      output,      matrix,
                                  norm_or_none(norm), scale, keep_floats(bias, "bias"),
                                  activation, gated_width, keep_floats(gate_scale, "gate_scale"),
                                  keep_floats(column_scale, "column_scale"), softcap, accumulate, logits};
            },
            nb::kw_only(), "input"_a, "matrix"_a, "output"_a = 0, "norm"_a = nb::none(), "scale"_a = 1.0f, "bias"_a = nb::none(),
            "activation"_a = Activation::none, "gated_width"_a = 0, "gate_scale"_a = nb::none(), "column_scale"_a = nb::none(),
            "softcap"_a = 0.0f, "accumulate"_a = false, "logits"_a = false);
}

static void bind_attention(nb::module_& m) {
    nb::class_<HeadTransform>(m, "HeadTransform", "Applied to q and k before their product: norms, RoPE, the unit sphere.")
        .def(
            "__init__",
            [](HeadTransform* self, const OptionalNorm& query_norm, const OptionalNorm& key_norm, const OptionalTensor& frequencies,
               float amplitude, bool unit, const OptionalTensor& query_scale, const OptionalTensor& key_scale) {
                new (self) HeadTransform{norm_or_none(query_norm), norm_or_none(key_norm), keep_floats(frequencies, "frequencies"), amplitude, unit,
                                         keep_floats(query_scale, "query_scale"), keep_floats(key_scale, "key_scale")};
            },
            nb::kw_only(), "query_norm"_a = nb::none(), "key_norm"_a = nb::none(), "frequencies"_a = nb::none(), "amplitude"_a = 1.0f,
            "unit"_a = false, "query_scale"_a = nb::none(), "key_scale"_a = nb::none());
    nb::class_<Attend>(m, "Attend", "softmax(cap(q kᵀ · scale) + bias) v over the KV cache; with `cross`, over the encoder's.")
        .def(
            "__init__",
            [](Attend* self, int input, int output, int layer, int heads, int kv_heads, int head_dim, const HeadTransform& transform, float scale,
               float softcap, long window, bool causal, bool cross, const OptionalTensor& distance_bias, long max_distance,
               const OptionalTensor& sinks) {
                new (self) Attend{input,  output,  layer,  heads,  kv_heads, head_dim,
                                  transform, scale, softcap, window, causal, cross,
                                  keep_floats(distance_bias, "distance_bias"), max_distance, keep_floats(sinks, "sinks")};
            },
            nb::kw_only(), "input"_a, "output"_a, "layer"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "transform"_a, "scale"_a = 1.0f,
            "softcap"_a = 0.0f, "window"_a = 0, "causal"_a = true, "cross"_a = false, "distance_bias"_a = nb::none(), "max_distance"_a = 0,
            "sinks"_a = nb::none());
    nb::class_<StoreKeyValue>(m, "StoreKeyValue", "Write k and v of a source to the cache, for a decoder's cross-attention.")
        .def(
            "__init__",
            [](StoreKeyValue* self, int input, int layer, int kv_heads, int head_dim, const HeadTransform& transform) {
                new (self) StoreKeyValue{input, layer, kv_heads, head_dim, transform};
            },
            nb::kw_only(), "input"_a, "layer"_a, "kv_heads"_a, "head_dim"_a, "transform"_a);
}

void bind_operations(nb::module_& m) {
    bind_norm(m);
    bind_rows(m);
    bind_linear(m);
    bind_attention(m);
}

}  // namespace sightline
