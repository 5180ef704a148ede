// Which kernels this processor can run.
#include "choose.h"

namespace avx2 {
extern const sightline::TrainingKernels training;
extern const sightline::EngineKernels engine;
}
namespace portable {
extern const sightline::TrainingKernels training;
extern const sightline::EngineKernels engine;
}
namespace neon {
extern const sightline::TrainingKernels training;
extern const sightline::EngineKernels engine;
}

namespace sightline {

const TrainingKernels* training_kernels = nullptr;
const EngineKernels* engine_kernels = nullptr;
static std::string chosen;

std::vector<std::string> kinds() {
    std::vector<std::string> found;
#if defined(SIGHTLINE_HAS_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) found.push_back("avx2");
#endif
#if defined(SIGHTLINE_HAS_NEON)
    found.push_back("neon");
#endif
    found.push_back("portable");
    return found;
}

bool choose(const std::string& kind) {
    for (const auto& one : kinds())
        if (one == kind) {
#if defined(SIGHTLINE_HAS_AVX2)
            if (kind == "avx2") training_kernels = &avx2::training, engine_kernels = &avx2::engine;
#endif
#if defined(SIGHTLINE_HAS_NEON)
            if (kind == "neon") training_kernels = &neon::training, engine_kernels = &neon::engine;
#endif
            if (kind == "portable") training_kernels = &portable::training, engine_kernels = &portable::engine;
            chosen = kind;
            return true;
        }
    return false;
}

const std::string& kind() { return chosen; }

}  // namespace sightline
