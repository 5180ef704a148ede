// All kernels for one instruction set. This file is compiled once per instruction set, with its own flags and namespace.
#include "engine/run.h"
#include "training/activate.h"
#include "training/attention.h"
#include "training/matmul.h"
#include "training/rms_norm.h"
#include "training/rotary.h"

namespace SIGHTLINE_ISA {

extern const sightline::TrainingKernels training{attention, attention_backward, matmul, activate, activate_backward, rms_norm, rms_norm_backward, rotate};
extern const sightline::EngineKernels engine{run_program, pack, unpack_row, read_cache};

}  // namespace SIGHTLINE_ISA
