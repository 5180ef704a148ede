#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
static inline void cpu_pause() { _mm_pause(); }
#elif defined(__aarch64__)
static inline void cpu_pause() { asm volatile("yield"); }
#else
static inline void cpu_pause() {}
#endif

namespace sightline {

void Barrier::wait(int count) {
    const int here = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
        arrived.store(0, std::memory_order_relaxed);
        round.store(here + 1, std::memory_order_release);
        return;
    }
    for (int spin = 0; round.load(std::memory_order_acquire) == here; spin++) spin < 4000 ? cpu_pause() : (void)sched_yield();
}

namespace {

using Work = void (*)(void*, Worker);

// The workers of one calling thread. An idle worker spins first, then sleeps.
class Pool {
   public:
    explicit Pool(int requested_threads) : requested(requested_threads) {
        workers.reserve(requested_threads - 1);
        try {
            for (int n = 1; n < requested_threads; n++) workers.emplace_back([this, n] { work_loop(n); });
        } catch (const std::system_error&) {  // the system is out of threads: run with fewer
        }
        worker_count = (int)workers.size() + 1;
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stopping = true;
            generation.fetch_add(1);
        }
        wake.notify_all();
        for (auto& worker : workers) worker.join();
    }
    int requested_threads() const { return requested; }
    void run(Work work, void* state) {
        busy.store(worker_count - 1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex);
            work_now = work, state_now = state;
            generation.fetch_add(1, std::memory_order_release);
        }
        if (sleeping.load() > 0) wake.notify_all();
        work(state, {0, worker_count});
        for (int spin = 0; busy.load(std::memory_order_acquire) > 0; spin++) spin < 4000 ? cpu_pause() : (void)sched_yield();
    }

   private:
    void work_loop(int index) {
        long seen = 0;
        for (;;) {
            for (int spin = 0; spin < 30000 && generation.load(std::memory_order_acquire) == seen; spin++) cpu_pause();
            if (generation.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex);
                sleeping.fetch_add(1);
                wake.wait(lock, [&] { return generation.load() != seen; });
                sleeping.fetch_sub(1);
            }
            seen = generation.load(std::memory_order_acquire);
            if (stopping) return;
            work_now(state_now, {index, worker_count});
            busy.fetch_sub(1, std::memory_order_release);
        }
    }
    const int requested;
    int worker_count = 1;
    std::vector<std::thread> workers;
    std::mutex mutex;
    std::condition_variable wake;
    alignas(64) std::atomic<long> generation{0};
    alignas(64) std::atomic<int> busy{0};
    std::atomic<int> sleeping{0};
    bool stopping = false;
    Work work_now = nullptr;
    void* state_now = nullptr;
};

struct OpenMP {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*number)();
    int (*size)();
};
std::atomic<const OpenMP*> openmp{nullptr};
thread_local int requested_threads = 1;
thread_local std::unique_ptr<Pool> pool;

// A forked child does not inherit the threads: it drops the pool, and creates its own on demand.
void drop_threads() {
    (void)pool.release();  // leaked on purpose: its threads do not exist here and cannot be joined
    openmp = nullptr;      // libgomp cannot be used in a child once its parent has used it
}
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, drop_threads);

Pool& workers_of(int count) {
    if (!pool || pool->requested_threads() != count) {
        pool.reset();
        pool = std::make_unique<Pool>(count);
    }
    return *pool;
}

struct TaskQueue {
    void (*work)(void*, long);
    void* state;
    long count;
    alignas(64) std::atomic<long> next{0};
    void drain() {
        for (long task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(state, task);
    }
};

}  // namespace

void set_threads(int count) { requested_threads = count < 1 ? 1 : count; }
int threads() { return requested_threads; }
void use_openmp(void* parallel, void* thread_number, void* thread_count) {
    // never freed: another thread may still be using the previous one
    openmp = new OpenMP{reinterpret_cast<decltype(OpenMP::parallel)>(parallel), reinterpret_cast<decltype(OpenMP::number)>(thread_number),
                        reinterpret_cast<decltype(OpenMP::size)>(thread_count)};
}

void parallel_for_raw(long tasks, void (*work)(void*, long), void* state) {
    TaskQueue job{work, state, tasks};
    const int count = tasks <= 1 ? 1 : threads();
    parallel(count, [&](Worker) { job.drain(); });
}

void parallel_raw(int count, void (*work)(void*, Worker), void* state) {
    if (count <= 1) return work(state, {0, 1});
    const OpenMP* torch_openmp = openmp.load(std::memory_order_acquire);
    if (!torch_openmp) return workers_of(count).run(work, state);
    struct Job {
        const OpenMP* torch_openmp;
        Work work;
        void* state;
    } job{torch_openmp, work, state};
    auto run_job = [](void* argument) {
        const Job& job = *static_cast<Job*>(argument);
        job.work(job.state, {job.torch_openmp->number(), job.torch_openmp->size()});  // a nested parallel region may have fewer threads than requested
    };
    torch_openmp->parallel(run_job, &job, (unsigned)count, 0);
}

}  // namespace sightline
