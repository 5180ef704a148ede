#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
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

// Helpers wait for work first spinning, then asleep.
class Pool {
   public:
    explicit Pool(int members) : members(members) {
        for (int n = 1; n < members; n++) crew.emplace_back([this, n] { live(n); });
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> held(door);
            leaving = true, turn.fetch_add(1);
        }
        bell.notify_all();
        for (auto& one : crew) one.join();
    }
    void run(Work work, void* state) {
        std::lock_guard<std::mutex> alone(one_at_a_time);
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
    const int members;
    std::vector<std::thread> crew;
    std::mutex door, one_at_a_time;
    std::condition_variable bell;
    alignas(64) std::atomic<long> turn{0};
    alignas(64) std::atomic<int> busy{0};
    std::atomic<int> asleep{0};
    bool leaving = false;
    Work now = nullptr;
    void* with = nullptr;
};

using Gomp = void (*)(void (*)(void*), void*, unsigned, unsigned);
using Asked = int (*)();
Gomp team = nullptr;
Asked team_number = nullptr, team_size = nullptr;
std::atomic<int> wanted{1};
std::mutex making;
std::shared_ptr<Pool> pool;

// A child of fork has no helpers, only their names: it forgets them, and makes its own when it needs them.
void forget() {
    new std::shared_ptr<Pool>(std::move(pool));  // left alone on purpose: its threads are not here to be joined
    new (&making) std::mutex;
    team = nullptr;  // libgomp cannot be used in a child once its parent has used it
}
[[maybe_unused]] const int watching = pthread_atfork(nullptr, nullptr, forget);

std::shared_ptr<Pool> helpers() {
    std::lock_guard<std::mutex> held(making);
    if (!pool) pool = std::make_shared<Pool>(wanted.load());
    return pool;
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

void set_threads(int count) {
    if (count == wanted.load()) return;
    std::lock_guard<std::mutex> held(making);
    pool.reset();
    wanted = count < 1 ? 1 : count;
}
int threads() { return wanted.load(); }
void set_team(void* parallel, void* number, void* of) {
    team = reinterpret_cast<Gomp>(parallel), team_number = reinterpret_cast<Asked>(number), team_size = reinterpret_cast<Asked>(of);
}

void share_raw(long pieces, void (*work)(void*, long), void* state) {
    Pieces job{work, state, pieces};
    if (wanted.load() == 1 || pieces <= 1) return job.help();
    if (team) return team([](void* one) { static_cast<Pieces*>(one)->help(); }, &job, (unsigned)wanted.load(), 0);
    helpers()->run([](void* one, Member) { static_cast<Pieces*>(one)->help(); }, &job);
}

void together_raw(void (*work)(void*, Member), void* state) {
    if (wanted.load() == 1) return work(state, {0, 1});
    if (!team) return helpers()->run(work, state);
    struct Job {
        Work work;
        void* state;
    } job{work, state};
    // within another team there may be fewer than were wanted
    auto member = [](void* one) { static_cast<Job*>(one)->work(static_cast<Job*>(one)->state, {team_number(), team_size()}); };
    team(member, &job, (unsigned)wanted.load(), 0);
}

}  // namespace sightline
