// Which kernels this processor can run.
#include "dispatch.h"

#include <atomic>

#if defined(SIGHTLINE_HAS_AVXVNNI)
#include <cpuid.h>
#endif

#define SIGHTLINE_KIND(kind)                                \
    namespace kind {                                        \
    extern const sightline::TrainingKernels training;       \
    extern const sightline::EngineKernels engine;           \
    }
SIGHTLINE_KIND(portable)
SIGHTLINE_KIND(avx2)
SIGHTLINE_KIND(avxvnni)
SIGHTLINE_KIND(avx512)
SIGHTLINE_KIND(avx512vnni)
SIGHTLINE_KIND(neon)

namespace sightline {

#if defined(SIGHTLINE_HAS_AVXVNNI)
static bool has_avx_vnni() {  // leaf 7, part 1, bit 4 of eax; compilers' own question knows it only since 2022
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

struct Known {
    const char* name;
    bool runs;
    const TrainingKernels* training;
    const EngineKernels* engine;
};

// The best first.
static std::vector<Known> listed() {
    std::vector<Known> found;
#if defined(SIGHTLINE_HAS_AVX2)
    const bool eight = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool wide = eight && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    found.push_back({"avx512vnni", wide && __builtin_cpu_supports("avx512vnni"), &avx512vnni::training, &avx512vnni::engine});
    found.push_back({"avx512", wide, &avx512::training, &avx512::engine});
#if defined(SIGHTLINE_HAS_AVXVNNI)
    found.push_back({"avxvnni", eight && has_avx_vnni(), &avxvnni::training, &avxvnni::engine});
#endif
    found.push_back({"avx2", eight, &avx2::training, &avx2::engine});
#endif
#if defined(SIGHTLINE_HAS_NEON)
    found.push_back({"neon", true, &neon::training, &neon::engine});
#endif
    found.push_back({"portable", true, &portable::training, &portable::engine});
    return found;
}

static const std::vector<Known>& known() {
    static const std::vector<Known> all = listed();
    return all;
}
static std::atomic<const Known*> chosen{nullptr};

std::vector<std::string> kinds() {
    std::vector<std::string> found;
    for (const Known& one : known())
        if (one.runs) found.push_back(one.name);
    return found;
}

bool choose(const std::string& kind) {
    for (const Known& one : known())
        if (one.runs && one.name == kind) {
            chosen = &one;
            return true;
        }
    return false;
}

std::string kind() { return chosen.load()->name; }
const TrainingKernels* training_kernels() { return chosen.load(std::memory_order_acquire)->training; }
const EngineKernels* engine_kernels() { return chosen.load(std::memory_order_acquire)->engine; }

bool by_amd() {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

}  // namespace sightline
