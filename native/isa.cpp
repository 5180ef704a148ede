// All kernels, for one kind of processor. This file is compiled once for each kind, with its flags and a namespace of its own.
#include "activations.h"
#include "matmul.h"
#include "run.h"
#include "training_attention.h"
#include "training_norm.h"
#include "training_rotation.h"

namespace SIGHTLINE_ISA {

extern const sightline::TrainingKernels training{attention, attention_back, matmul, activate, activate_back, rms_norm, rms_norm_back, rotate};
extern const sightline::EngineKernels engine{run_program, pack, unpack_row, read_cache};

}  // namespace SIGHTLINE_ISA
