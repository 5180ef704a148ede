// The processor's kinds of kernels, best first; the best is chosen when the module is loaded.
#pragma once
#include <string>
#include <vector>

#include "engine/engine.h"
#include "training/kernels.h"

namespace sightline {

std::vector<std::string> kinds();
bool choose(const std::string& kind);
std::string kind();
const TrainingKernels* training_kernels();
const EngineKernels* engine_kernels();
bool by_amd();  // the processor

}  // namespace sightline
