// All kernels, for one kind of processor. This file is compiled once for each kind, with its flags and a namespace of its own.
#include "activations.h"
#include "training_attention.h"
#include "training_norm.h"

namespace SIGHTLINE_ISA {

extern const sightline::TrainingKernels training{attention, attention_back, activate, activate_back, rms_norm, rms_norm_back};

}  // namespace SIGHTLINE_ISA
