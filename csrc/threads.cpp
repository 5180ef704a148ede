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
static inline void breathe() { _mm_pause(); }
#elif defined(__aarch64__)
static inline void breathe() { asm volatile("yield"); }
#else
static inline void breathe() {}
#endif

namespace sightline {

void Barrier::wait(int count) {
    const int here = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
        arrived.store(0, std::memory_order_relaxed);
        round.store(here + 1, std::memory_order_release);
        return;
    }
    for (int spin = 0; round.load(std::memory_order_acquire) == here; spin++) spin < 4000 ? breathe() : (void)sched_yield();
}

namespace {

using Work = void (*)(void*, Member);

// Helpers of one thread, which wait for work first spinning, then asleep.
class Pool {
   public:
    explicit Pool(int wanted) : asked_for(wanted) {
        crew.reserve(wanted - 1);
        try {
            for (int n = 1; n < wanted; n++) crew.emplace_back([this, n] { live(n); });
        } catch (const std::system_error&) {  // no more threads to be had: fewer do the work
        }
        members = (int)crew.size() + 1;
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> held(door);
            leaving = true;
            turn.fetch_add(1);
        }
        bell.notify_all();
        for (auto& one : crew) one.join();
    }
    int wanted() const { return asked_for; }
    void run(Work work, void* state) {
        busy.store(members - 1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> held(door);
            now = work, with = state;
            turn.fetch_add(1, std::memory_order_release);
        }
        if (asleep.load() > 0) bell.notify_all();
        work(state, {0, members});
        for (int spin = 0; busy.load(std::memory_order_acquire) > 0; spin++) spin < 4000 ? breathe() : (void)sched_yield();
    }

   private:
    void live(int number) {
        long seen = 0;
        for (;;) {
            for (int spin = 0; spin < 30000 && turn.load(std::memory_order_acquire) == seen; spin++) breathe();
            if (turn.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> held(door);
                asleep.fetch_add(1);
                bell.wait(held, [&] { return turn.load() != seen; });
                asleep.fetch_sub(1);
            }
            seen = turn.load(std::memory_order_acquire);
            if (leaving) return;
            now(with, {number, members});
            busy.fetch_sub(1, std::memory_order_release);
        }
    }
    const int asked_for;
    int members = 1;
    std::vector<std::thread> crew;
    std::mutex door;
    std::condition_variable bell;
    alignas(64) std::atomic<long> turn{0};
    alignas(64) std::atomic<int> busy{0};
    std::atomic<int> asleep{0};
    bool leaving = false;
    Work now = nullptr;
    void* with = nullptr;
};

struct Team {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*number)();
    int (*size)();
};
std::atomic<const Team*> team{nullptr};
thread_local int wanted = 1;
thread_local std::unique_ptr<Pool> pool;

// A child of fork has no helpers, only their names: it forgets them, and makes its own when it needs them.
void forget() {
    (void)pool.release();  // left alone on purpose: its threads are not here to be joined
    team = nullptr;        // libgomp cannot be used in a child once its parent has used it
}
[[maybe_unused]] const int watching = pthread_atfork(nullptr, nullptr, forget);

Pool& helpers(int count) {
    if (!pool || pool->wanted() != count) {
        pool.reset();
        pool = std::make_unique<Pool>(count);
    }
    return *pool;
}

struct Pieces {
    void (*work)(void*, long);
    void* state;
    long count;
    alignas(64) std::atomic<long> next{0};
    void help() {
        for (long piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(state, piece);
    }
};

}  // namespace

void set_threads(int count) { wanted = count < 1 ? 1 : count; }
int threads() { return wanted; }
void set_team(void* parallel, void* number, void* of) {
    // never freed: another thread may be about to use the one that was there
    team = new Team{reinterpret_cast<decltype(Team::parallel)>(parallel), reinterpret_cast<decltype(Team::number)>(number),
                    reinterpret_cast<decltype(Team::size)>(of)};
}

void share_raw(long pieces, void (*work)(void*, long), void* state) {
    Pieces job{work, state, pieces};
    const int count = pieces <= 1 ? 1 : threads();
    together(count, [&](Member) { job.help(); });
}

void together_raw(int count, void (*work)(void*, Member), void* state) {
    if (count <= 1) return work(state, {0, 1});
    const Team* torch = team.load(std::memory_order_acquire);
    if (!torch) return helpers(count).run(work, state);
    struct Job {
        const Team* torch;
        Work work;
        void* state;
    } job{torch, work, state};
    auto member = [](void* one) {
        const Job& job = *static_cast<Job*>(one);
        job.work(job.state, {job.torch->number(), job.torch->size()});  // within another team there may be fewer than were wanted
    };
    torch->parallel(member, &job, (unsigned)count, 0);
}

}  // namespace sightline
