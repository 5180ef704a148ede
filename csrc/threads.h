// Threads that stay: a step of a model hands them one matrix after the other, microseconds apart.
//
//     share(pieces, work)       work(piece) for every piece; pieces are taken one by one, so a disturbed core does not hold the others back
//     together(count, work)     work(member) once on each of at most `count` threads; members meet at `Barrier`s
//
// Nothing here is shared between threads that call: each has its own count and its own helpers, as OpenMP has it.
#pragma once
#include <atomic>
#include <cstdint>

namespace sightline {

struct Member {
    int number, of;
};

void share_raw(long pieces, void (*work)(void* state, long piece), void* state);
void together_raw(int count, void (*work)(void* state, Member member), void* state);

template <class Body>
inline void share(long pieces, const Body& body) {
    share_raw(pieces, [](void* state, long piece) { (*static_cast<const Body*>(state))(piece); }, const_cast<Body*>(&body));
}
template <class Body>
inline void together(int count, const Body& body) {
    together_raw(count, [](void* state, Member member) { (*static_cast<const Body*>(state))(member); }, const_cast<Body*>(&body));
}

// How many threads the calling thread works with. It belongs to that thread alone, so it cannot change while a call runs; what is sized
// by it is still to be sized by one reading, which `together` is given.
void set_threads(int count);
int threads();

// torch's own OpenMP team, given as the addresses of its GOMP_parallel, omp_get_thread_num and omp_get_num_threads: its threads wait by
// spinning, so a second team would fight with them.
void set_team(void* parallel, void* number, void* of);

// Everyone waits for everyone: by spinning, and by letting others run where there are more threads than cores.
class Barrier {
   public:
    void wait(int count);

   private:
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int> round{0};
};

}  // namespace sightline
