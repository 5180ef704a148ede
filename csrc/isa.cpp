// All kernels, for one kind of processor. This file is compiled once for each kind, with its flags and a namespace of its own.
#include "simd/activations.h"
#include "training/matmul.h"
#include "engine/run.h"
#include "training/attention.h"
#include "training/rms_norm.h"
#include "training/rotary.h"

namespace SIGHTLINE_ISA {

extern const sightline::TrainingKernels training{attention, attention_back, matmul, activate, activate_back, rms_norm, rms_norm_back, rotate};
extern const sightline::EngineKernels engine{run_program, pack, unpack_row, read_cache};

}  // namespace SIGHTLINE_ISA
