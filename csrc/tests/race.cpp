// Engines and kernels in several threads of one process, each with a varying number of workers: results must equal the single-threaded ones.
// For ThreadSanitizer (`make native-tsan`), without Python and without libgomp, whose synchronization it cannot see.
//
//     race SECONDS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "dispatch.h"
#include "threads.h"

using namespace sightline;
using Numbers = std::vector<float>;

constexpr long WIDTH = 48, HEADS = 4, KV_HEADS = 2, DIM = 12, HIDDEN = 64, VOCABULARY = 97, LAYERS = 2;
constexpr long QKV_WIDTH = (HEADS + 2 * KV_HEADS) * DIM, MAX_POSITIONS = 200;

static Numbers random_numbers(long count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    Numbers numbers(count);
    for (float& x : numbers) x = normal(random);
    return numbers;
}

// ------------------------------------------------------------------------------------------------------------- engine

struct Model {
    Engine engine;
    std::mutex lock;  // one step at a time, as in Python
    std::vector<std::unique_ptr<uint8_t[]>> memory;
    Numbers frequencies = random_numbers(DIM / 2, 1);

    int matrix(Precision precision, long rows, long inputs, unsigned seed) {
        const long depth = (inputs + GROUP - 1) / GROUP * GROUP, tiles = (rows + 2 * TILE - 1) / (2 * TILE) * 2;
        auto allocate = [&](long bytes) {
            memory.emplace_back(new uint8_t[bytes + 4096]());
            return (uint8_t*)(((uintptr_t)memory.back().get() + 63) & ~(uintptr_t)63);
        };
        uint8_t* data = allocate(tiles * Packed::bytes_of(precision, depth));
        uint8_t* scales = allocate(tiles * Packed::scale_bytes_of(precision, depth));
        engine.matrices.push_back({precision, rows, inputs, tiles, depth, data, scales});
        engine.max_inputs = std::max(engine.max_inputs, depth);
        const Numbers weights = random_numbers(rows * inputs, seed);
        engine_kernels()->pack(weights.data(), inputs, engine.matrices.back());
        return (int)engine.matrices.size() - 1;
    }
    void add(Operation op) {
        check_operation(engine, op);
        engine.program.push_back(std::move(op));
    }
    void add_linear(int input, int output, int matrix, const std::function<void(Linear&)>& change = [](Linear&) {}) {
        Linear op;
        op.input = input, op.output = output, op.matrix = matrix;
        change(op);
        add(op);
    }
    void add_layer(Precision precision, int layer) {
        add_linear(0, 1, matrix(precision, QKV_WIDTH, WIDTH, 10 + layer), [](Linear& op) { op.norm.kind = NormKind::rms; });
        Attend attend;
        attend.input = 1, attend.output = 2, attend.layer = layer;
        attend.heads = HEADS, attend.kv_heads = KV_HEADS, attend.head_dim = DIM;
        attend.scale = 0.3f;
        attend.transform.frequencies = {frequencies.data(), (long)frequencies.size(), nullptr};
        add(attend);
        add_linear(2, 0, matrix(precision, WIDTH, HEADS * DIM, 20 + layer), [](Linear& op) { op.accumulate = true; });
        add_linear(0, 3, matrix(precision, 2 * HIDDEN, WIDTH, 30 + layer), [](Linear& op) {
            op.gated_width = HIDDEN;
            op.activation = Activation::silu;
        });
        add_linear(3, 0, matrix(precision, WIDTH, HIDDEN, 40 + layer), [](Linear& op) { op.accumulate = true; });
    }
    explicit Model(Precision precision) {
        engine.widths = {WIDTH, QKV_WIDTH, HEADS * DIM, HIDDEN};
        engine.max_positions = MAX_POSITIONS;
        Cache& cache = engine.cache;
        cache.half = precision != Precision::float32;
        for (int layer = 0; layer < LAYERS; layer++) {
            cache.kv_heads.push_back(KV_HEADS);
            cache.dims.push_back(DIM);
            cache.offset.push_back(cache.elements);
            cache.elements += 2L * BLOCK_POSITIONS * KV_HEADS * DIM;
            engine.query_widths.push_back(HEADS * DIM);
        }
        engine.angles.push_back({(int)DIM / 2, frequencies.data(), 1.0f, {}});
        Embed embed;
        embed.matrix = matrix(precision, VOCABULARY, WIDTH, 5);
        add(embed);
        for (int layer = 0; layer < LAYERS; layer++) add_layer(precision, layer);
        add_linear(0, 0, 0, [](Linear& op) { op.logits = true; });
    }
    // Logits after `count` more tokens.
    void step(Handle sequence, const int32_t* tokens, long count, Numbers& logits) {
        std::lock_guard<std::mutex> held(lock);
        const int slot = slot_of(engine.cache, sequence);
        std::vector<int32_t> slots(count, slot), positions(count);
        for (long n = 0; n < count; n++) positions[n] = (int32_t)(engine.cache.lengths[slot] + n);
        const int32_t last_row = (int32_t)count - 1;
        logits.resize(VOCABULARY);
        const Step step{count,         tokens,  slots.data(), positions.data(), nullptr, &last_row, 1,
                        logits.data(), nullptr, nullptr,      nullptr,          0};
        check_step(engine, step);
        engine_kernels()->run(engine, step);
    }
    Handle begin() {
        std::lock_guard<std::mutex> held(lock);
        return new_sequence(engine.cache);
    }
    Handle copy(Handle from) {
        std::lock_guard<std::mutex> held(lock);
        return copy_sequence(engine.cache, from);
    }
    void free(Handle sequence) {
        std::lock_guard<std::mutex> held(lock);
        free_sequence(engine.cache, sequence);
    }
    // A prompt, single tokens, and a copy that continues with other tokens.
    Numbers generate() {
        const int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5, 0};
        const Handle first = begin();
        Numbers numbers, logits;
        step(first, prompt, 33, logits);
        const Handle second = copy(first);
        for (int32_t token = 0; token < 4; token++) {
            step(first, &token, 1, logits);
            numbers.insert(numbers.end(), logits.begin(), logits.end());
        }
        free(first);
        step(second, prompt, 3, logits);
        numbers.insert(numbers.end(), logits.begin(), logits.end());
        free(second);
        try {
            step(second, prompt, 1, logits);
            std::fprintf(stderr, "a freed sequence was used\n");
            std::exit(1);
        } catch (const InputError&) {
        }
        return numbers;
    }
};

// ------------------------------------------------------------------------------------------------------ training kernels

static Heads heads_of(Numbers& x, long heads, long time, long dim) { return {x.data(), heads * time * dim, time * dim, dim}; }

static Numbers train() {
    const TrainingKernels& kernels = *training_kernels();
    constexpr long batch = 2, heads = 2, time = 70, dim = 16, rows = batch * time, width = heads * dim, count = rows * width;
    Numbers q = random_numbers(count, 1), k = random_numbers(count, 2), v = random_numbers(count, 3), gradient = random_numbers(count, 4);
    Numbers o(count), lse(batch * heads * time), dq(count), dk(count), dv(count), y(count), inverse(rows), dx(count), dgain(width), scratch(count);
    auto strided = [&](Numbers& x) { return heads_of(x, heads, time, dim); };
    const AttentionShape shape{batch, heads, heads, time, time, dim, 0.25f, nullptr, nullptr};
    kernels.attention(shape, strided(q), strided(k), strided(v), strided(o), lse.data());
    kernels.attention_backward(shape, strided(q), strided(k), strided(v), strided(o), lse.data(), strided(gradient), strided(dq), strided(dk),
                           strided(dv));
    kernels.rms_norm(rows, width, o.data(), nullptr, 1e-5f, y.data(), inverse.data());
    kernels.rms_norm_backward(rows, width, o.data(), y.data(), inverse.data(), gradient.data(), dx.data(), dgain.data(), scratch.data());
    kernels.activate(Activation::silu, count, y.data(), v.data(), y.data());
    kernels.activate_backward(Activation::silu, count, q.data(), v.data(), gradient.data(), dq.data(), dv.data());
    const Numbers angles = random_numbers(time * dim / 2, 5);
    kernels.rotate({batch, heads, time, dim, dim / 2, angles.data(), angles.data(), 0, 1.0f}, strided(k), strided(k));
    Numbers outer(rows * rows), inner(width * width);
    kernels.matmul({rows, rows, width, width, 1, 1, width, nullptr, outer.data(), rows}, q.data(), k.data());
    kernels.matmul({width, width, rows, 1, width, width, 1, nullptr, inner.data(), width}, q.data(), k.data());
    Numbers numbers;
    for (const Numbers* part : {&o, &dq, &dk, &dv, &y, &dx, &dgain, &outer, &inner}) numbers.insert(numbers.end(), part->begin(), part->end());
    return numbers;
}

// --------------------------------------------------------------------------------------------- a minimal OpenMP

thread_local int thread_number = 0, thread_count = 1;

static void openmp_parallel(void (*work)(void*), void* state, unsigned count, unsigned) {
    std::vector<std::thread> workers;
    for (unsigned n = 1; n < count; n++)
        workers.emplace_back([=] {
            thread_number = (int)n;
            thread_count = (int)count;
            work(state);
        });
    thread_count = (int)count;
    work(state);
    thread_count = 1;
    for (auto& worker : workers) worker.join();
}
static int openmp_number() { return thread_number; }
static int openmp_size() { return thread_count; }

// ---------------------------------------------------------------------------------------------------------------- main

struct Runner {
    const char* name;
    std::function<Numbers()> work;
    std::vector<int> counts;  // thread counts, used in turn
};

int main(int count, char** arguments) {
    select_instruction_set(instruction_sets().front());
    const double seconds = count > 1 ? std::atof(arguments[1]) : 20;
    Model floats(Precision::float32), bytes(Precision::int8), nibbles(Precision::int4), shared(Precision::int8_groups);
    const std::vector<Runner> runners = {
        {"float32", [&] { return floats.generate(); }, {1}},
        {"int8", [&] { return bytes.generate(); }, {4}},
        {"int4", [&] { return nibbles.generate(); }, {1, 2, 3}},
        {"shared", [&] { return shared.generate(); }, {2}},
        {"shared, second thread", [&] { return shared.generate(); }, {3, 1}},
        {"training", train, {1, 4}},
        {"training, second thread", train, {3}},
    };
    std::vector<Numbers> expected;
    for (const Runner& runner : runners) expected.push_back(runner.work());
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    std::atomic<bool> wrong{false};
    std::vector<std::atomic<long>> done(runners.size());
    std::vector<std::thread> workers;
    for (size_t n = 0; n < runners.size(); n++)
        workers.emplace_back([&, n] {
            const Runner& runner = runners[n];
            for (size_t turn = 0; elapsed() < seconds && !wrong; turn++) {
                set_threads(runner.counts[turn % runner.counts.size()]);
                if (runner.work() != expected[n]) {
                    std::fprintf(stderr, "%s: wrong result\n", runner.name);
                    wrong = true;
                }
                done[n]++;
            }
        });
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 2));  // the second half runs on OpenMP threads
    use_openmp((void*)openmp_parallel, (void*)openmp_number, (void*)openmp_size);
    for (auto& worker : workers) worker.join();
    for (size_t n = 0; n < runners.size(); n++) std::printf("%s: %ld\n", runners[n].name, done[n].load());
    return wrong;
}
