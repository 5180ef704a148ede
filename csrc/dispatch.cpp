#include "dispatch.h"

#include <atomic>

#if defined(SIGHTLINE_HAS_AVXVNNI)
#include <cpuid.h>
#endif

#define SIGHTLINE_KERNELS(name)                             \
    namespace name {                                        \
    extern const sightline::TrainingKernels training;       \
    extern const sightline::EngineKernels engine;           \
    }
SIGHTLINE_KERNELS(portable)
SIGHTLINE_KERNELS(avx2)
SIGHTLINE_KERNELS(avxvnni)
SIGHTLINE_KERNELS(avx512)
SIGHTLINE_KERNELS(avx512vnni)
SIGHTLINE_KERNELS(neon)

namespace sightline {

#if defined(SIGHTLINE_HAS_AVXVNNI)
static bool has_avx_vnni() {  // leaf 7, subleaf 1, bit 4 of eax; older compilers lack it in __builtin_cpu_supports
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

struct InstructionSet {
    const char* name;
    bool supported;
    const TrainingKernels* training;
    const EngineKernels* engine;
};

// Best first.
static std::vector<InstructionSet> compiled_sets() {
    std::vector<InstructionSet> sets;
#if defined(SIGHTLINE_HAS_AVX2)
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    sets.push_back({"avx512vnni", has_avx512 && __builtin_cpu_supports("avx512vnni"), &avx512vnni::training, &avx512vnni::engine});
    sets.push_back({"avx512", has_avx512, &avx512::training, &avx512::engine});
#if defined(SIGHTLINE_HAS_AVXVNNI)
    sets.push_back({"avxvnni", has_avx2 && has_avx_vnni(), &avxvnni::training, &avxvnni::engine});
#endif
    sets.push_back({"avx2", has_avx2, &avx2::training, &avx2::engine});
#endif
#if defined(SIGHTLINE_HAS_NEON)
    sets.push_back({"neon", true, &neon::training, &neon::engine});
#endif
    sets.push_back({"portable", true, &portable::training, &portable::engine});
    return sets;
}

static const std::vector<InstructionSet>& all_sets() {
    static const std::vector<InstructionSet> sets = compiled_sets();
    return sets;
}
static std::atomic<const InstructionSet*> selected{nullptr};

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const InstructionSet& set : all_sets())
        if (set.supported) names.push_back(set.name);
    return names;
}

bool select_instruction_set(const std::string& name) {
    for (const InstructionSet& set : all_sets())
        if (set.supported && set.name == name) {
            selected = &set;
            return true;
        }
    return false;
}

std::string instruction_set() { return selected.load()->name; }
const TrainingKernels* training_kernels() { return selected.load(std::memory_order_acquire)->training; }
const EngineKernels* engine_kernels() { return selected.load(std::memory_order_acquire)->engine; }

bool is_amd() {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

}  // namespace sightline
