// Runtime dispatch: the kernels were compiled for several instruction sets, and the best that this processor has is selected when the
// module is loaded.
#pragma once
#include <string>
#include <vector>

#include "engine/engine.h"
#include "training/kernels.h"

namespace sightline {

std::vector<std::string> instruction_sets();  // that this processor can run, best first
std::string instruction_set();                // the selected one
bool select_instruction_set(const std::string& name);
const TrainingKernels* training_kernels();
const EngineKernels* engine_kernels();
bool is_amd();  // the processor

}  // namespace sightline
