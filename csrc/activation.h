// The activations of feed-forward layers, shared by the training kernels, the engine and Python.
#pragma once

namespace sightline {

enum class Activation { none, relu, gelu, gelu_tanh, silu, relu_squared, tanh };

}  // namespace sightline
