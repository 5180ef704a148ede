// Runtime dispatch: the kernels are compiled for several instruction sets, and the best one that the processor supports is selected when
// the module is loaded.
#pragma once
#include <string>
#include <vector>

#include "engine/engine.h"
#include "training/kernels.h"

namespace sightline {

std::vector<std::string> instruction_sets();  // supported by this processor, best first
std::string instruction_set();                // the selected one
bool select_instruction_set(const std::string& name);
const TrainingKernels* training_kernels();
const EngineKernels* engine_kernels();
bool is_amd();  // whether the processor is from AMD

}  // namespace sightline
