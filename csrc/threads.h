// Persistent worker threads: the matrices of a step follow each other within microseconds.
//
//     parallel_for(tasks, work)     work(task) for every task; threads take tasks one by one, so a busy core does not delay the others
//     parallel(count, work)         work(worker) once on each of at most `count` threads, which may synchronize at a `Barrier`
//
// Calling threads share nothing: each has its own thread count and its own workers, as in OpenMP.
#pragma once
#include <atomic>
#include <cstdint>

namespace sightline {

struct Worker {
    int index, count;
};

void parallel_for_raw(long tasks, void (*work)(void* state, long task), void* state);
void parallel_raw(int count, void (*work)(void* state, Worker worker), void* state);

template <class Body>
inline void parallel_for(long tasks, const Body& body) {
    parallel_for_raw(tasks, [](void* state, long task) { (*static_cast<const Body*>(state))(task); }, const_cast<Body*>(&body));
}
template <class Body>
inline void parallel(int count, const Body& body) {
    parallel_raw(count, [](void* state, Worker worker) { (*static_cast<const Body*>(state))(worker); }, const_cast<Body*>(&body));
}

// The thread count of the calling thread. It is thread-local, so it cannot change during a call.
void set_threads(int count);
int threads();

// Run on torch's OpenMP threads, given the addresses of its GOMP_parallel, omp_get_thread_num and omp_get_num_threads: idle OpenMP
// threads spin, and a second pool would compete with them for the cores.
void use_openmp(void* parallel, void* thread_number, void* thread_count);

// All threads wait for each other: spinning first, then yielding, in case there are more threads than cores.
class Barrier {
   public:
    void wait(int count);

   private:
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> round{0};
};

}  // namespace sightline
