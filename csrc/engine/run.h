// Runs a step: every thread executes the whole program; the threads share the tasks of each operation and synchronize after it.
#pragma once
#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "engine/attention.h"
#include "engine/linear.h"
#include "engine/pack.h"
#include "simd/activations.h"
#include "threads.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

constexpr long ROW_BLOCK = 48, TILE_BYTES = 1 << 15;

struct alignas(64) Counter {
    std::atomic<long> taken{0};
};

struct Run {
    Engine& engine;
    const Step& step;
    Barrier& barrier;
    Counter* counters;  // one per phase and thread
    Worker worker;
    int phases = 0;
    const Packed* next_matrix = nullptr;

    // The tasks of one phase: each thread first works through its own contiguous range, so that it reads memory in order, then steals
    // tasks of the others; then all synchronize.
    template <class Body>
    void phase(long tasks, const Body& body) {
        Counter* next = counters + (long)phases++ * worker.count;
        for (int turn = 0; turn < worker.count; turn++) {
            const int owner = (worker.index + turn) % worker.count;
            const long end = tasks * (owner + 1) / worker.count;
            for (long task, first = tasks * owner / worker.count;
                 (task = first + next[owner].taken.fetch_add(1, std::memory_order_relaxed)) < end;)
                body(task);
        }
        if (step.rows == 1) prefetch_next();
        barrier.wait(worker.count);
    }
    // With a single row, a thread that waits for the others prefetches the start of the next matrix.
    void prefetch_next() const {
        if (!next_matrix) return;
        const long bytes = next_matrix->tiles * next_matrix->tile_bytes();
        const long start = next_matrix->tiles / 2 * worker.index / worker.count * 2 * next_matrix->tile_bytes();
        for (long at = start; at < std::min(bytes, start + TILE_BYTES); at += 64) prefetch_far(next_matrix->data + at);
    }
    float* buffer(int number, long row) const { return engine.buffers[number] + row * engine.widths[number]; }
};

inline void embed(Run& run, const Embed& op) {
    const Packed& table = run.engine.matrices[op.matrix];
    const long width = table.inputs;
    run.phase(run.step.rows, [&](long row) {
        float* x = run.buffer(op.output, row);
        unpack_row(table, run.step.tokens[row], x);
        const float* position = op.positions ? op.positions + run.step.positions[row] * width : nullptr;
        for_each_vector(width, [&](long i, int n) {
            Floats v = load(x + i, n) * broadcast(op.scale);
            if (position) v = v + load(position + i, n);
            if (op.types) v = v + load(op.types + i, n);
            store(x + i, v, n);
        });
        norm_row(op.norm, x, width, x);
    });
}

inline void normalize(Run& run, const Normalize& op) {
    run.phase(run.step.rows, [&](long row) {
        norm_row(op.norm, run.buffer(op.input, row) + op.offset, op.width, run.buffer(op.output, row) + op.offset);
    });
}

// The input of a linear operation in the format that its matrix needs. Every thread prepares a single row for itself: that is faster than
// another synchronization.
inline Inputs prepare_inputs(Run& run, const Linear& op, const Packed& w, long rows, const int32_t* row_numbers) {
    Engine& e = run.engine;
    const bool single_row = rows == 1, quantizes = quantizes_activations(w.precision);
    const bool unchanged = op.norm.kind == NormKind::none && op.scale == 1.0f;
    const ActivationRange range = ActivationRange::of(w.precision);
    const long groups = w.depth / GROUP, in_width = e.widths[op.input];
    if (unchanged && !row_numbers && !quantizes) return {e.buffers[op.input], in_width, nullptr, nullptr, nullptr};
    std::vector<float>& scratch = e.thread_scratch[run.worker.index];  // for one row, so that it stays in the L1 cache
    const long size = w.depth + 2 * groups + w.depth / 4 + 16;
    if ((long)scratch.size() < size) scratch.resize(size);
    float* floats = single_row || quantizes ? scratch.data() : e.normed.data();
    float* scales = single_row ? floats + w.depth : e.scales.data();
    float* sums = single_row ? scales + groups : e.sums.data();
    int8_t* bytes = single_row ? (int8_t*)(sums + groups) : e.bytes.data();
    auto prepare_row = [&](long row) {
        const float* from = run.buffer(op.input, row_numbers ? row_numbers[row] : row);
        float* x = quantizes ? floats : floats + row * w.depth;
        const bool in_place = quantizes && unchanged;
        if (!in_place) norm_row(op.norm, from, w.inputs, x);
        if (op.scale != 1.0f) for_each_vector(w.inputs, [&](long i, int n) { store(x + i, load(x + i, n) * broadcast(op.scale), n); });
        if (quantizes)
            quantize_row(range, in_place ? from : x, w.inputs, w.depth, bytes + row * w.depth, scales + row * groups, sums + row * groups);
    };
    if (single_row)
        prepare_row(0);
    else
        run.phase(rows, prepare_row);
    return {floats, w.depth, bytes, scales, sums};
}

// Processes the sums of a linear operation and stores the results.
template <class Body>
struct Epilogue {
    const Body& body;
    float* out;
    long stride, divisor;  // a gated result is half as wide as its tiles
    void operator()(long row, long tile, const Floats* sums) const { body(row, tile, sums); }
    void prefetch_output(long row, long tile) const { prefetch(out + row * stride + tile * TILE / divisor); }
};

inline void linear(Run& run, const Linear& op) {
    const Packed& w = run.engine.matrices[op.matrix];
    const bool gated = op.gated_width > 0;
    const long rows = op.logits ? run.step.logit_count : run.step.rows;
    if (rows == 0) return run.barrier.wait(run.worker.count);
    const Inputs x = prepare_inputs(run, op, w, rows, op.logits ? run.step.logit_rows : nullptr);
    float* out = op.logits ? run.step.logits : run.engine.buffers[op.output];
    const long width = gated ? op.gated_width : w.rows, stride = op.logits ? width : run.engine.widths[op.output];
    auto finish = [&](float* y, Floats value, long column) {
        if (column >= width) return;
        const int n = width - column < TILE ? (int)(width - column) : TILE;
        if (op.column_scale) value = value * load(op.column_scale + column, n);
        if (op.softcap > 0) value = tanh(value * broadcast(1.0f / op.softcap)) * broadcast(op.softcap);
        store(y + column, op.accumulate ? load(y + column, n) + value : value, n);
    };
    auto general = [&](long row, long tile, const Floats* sums) {
        float* y = out + row * stride;
        if (gated) {  // a gate tile, then the matching up tile
            const long column = tile / 2 * TILE;
            const int n = (int)std::max(0L, std::min(TILE, width - column));
            Floats gate = sums[0], up = sums[1];
            if (op.bias && n > 0) gate = gate + load(op.bias + column, n), up = up + load(op.bias + (width + column), n);
            if (op.gate_scale && n > 0) gate = gate * load(op.gate_scale + column, n), up = up * load(op.gate_scale + (width + column), n);
            finish(y, activate(op.activation, gate) * up, column);
        } else {
            for (int t = 0; t < 2; t++) {
                const long column = (tile + t) * TILE;
                if (column >= width) continue;
                const int n = width - column < TILE ? (int)(width - column) : TILE;
                Floats value = op.bias ? sums[t] + load(op.bias + column, n) : sums[t];
                finish(y, activate(op.activation, value), column);
            }
        }
    };
    const long pairs = w.tiles / 2, fit = TILE_BYTES * (rows > 1 ? 2 : 1) / (2 * w.tile_bytes());
    const long block = rows == 1 ? 1 : (quantizes_activations(w.precision) ? IntegerBlock::vectors : FloatBlock::vectors) * TILES / 2;
    const long pairs_per_task = (std::max(1L, std::min(fit, pairs / (4 * run.worker.count))) + block - 1) / block * block;
    const long across = (pairs + pairs_per_task - 1) / pairs_per_task, down = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    auto multiply_with = [&](const auto& body) {
        const Epilogue<std::decay_t<decltype(body)>> epilogue{body, out, stride, gated ? 2 : 1};
        run.phase(across * down, [&](long task) {
            const long first = task / down * pairs_per_task, top = task % down * ROW_BLOCK;
            multiply(w, x, top, std::min(rows, top + ROW_BLOCK), 2 * first, 2 * std::min(pairs, first + pairs_per_task), epilogue);
        });
    };
    if (op.column_scale || op.gate_scale || op.softcap > 0 || width % (2 * TILE)) return multiply_with(general);
    multiply_with([&](long row, long tile, const Floats* sums) {  // the common case: full tiles, at most a bias and an activation
        auto put = [&](float* y, Floats value) { store(y, op.accumulate ? load(y) + value : value); };
        auto biased = [&](int t, long column) { return op.bias ? sums[t] + load(op.bias + column) : sums[t]; };
        float* y = out + row * stride;
        if (gated) {
            const long column = tile / 2 * TILE;
            put(y + column, activate(op.activation, biased(0, column)) * biased(1, width + column));
        } else {
            for (int t = 0; t < 2; t++) put(y + (tile + t) * TILE, activate(op.activation, biased(t, (tile + t) * TILE)));
        }
    });
}

template <class Element>
inline void attend(Run& run, const Attend& op, int number) {
    Engine& e = run.engine;
    const Step& step = run.step;
    const HeadTransform& transform = op.transform;
    const Cache& cache = op.cross ? *e.encoder_cache : e.cache;
    const int32_t* sequences = op.cross ? step.sources : step.sequences;
    const long group = op.heads / op.kv_heads, in_width = e.widths[op.input], dim = op.head_dim;
    const long q_width = (long)op.heads * dim, k_width = (long)op.kv_heads * dim;
    const int pairs = transform.pairs();
    std::vector<float>& scratch = e.thread_scratch[run.worker.index];
    auto prepare = [&](long row, int kv_head) {
        const float* cosines = pairs ? e.angles[transform.angles].table.data() + row * 2 * pairs : nullptr;
        float* x = run.buffer(op.input, row);
        for (long h = kv_head * group; h < (kv_head + 1) * group; h++) {
            const float* scale = transform.query_scale ? transform.query_scale + h * dim : nullptr;
            transform_head(transform, transform.query_norm, scale, dim, cosines, x + h * dim);
        }
        if (!op.cross)
            store_head<Element>(e.cache, op, step.sequences[row], step.positions[row], kv_head, cosines, x + q_width + kv_head * dim, k_width);
        if (step.queries && step.queries[number])
            std::copy_n(x + kv_head * group * dim, group * dim, step.queries[number] + row * q_width + kv_head * group * dim);
    };
    auto attend_from = [&](long row, long rows, int kv_head) {
        attend_rows<Element>(cache, op, sequences[row], kv_head, step.positions, row, rows, e.buffers[op.input], in_width,
                            e.buffers[op.output], e.widths[op.output], scratch);
    };
    if (step.rows == 1)
        return run.phase(op.kv_heads, [&](long kv_head) { prepare(0, (int)kv_head), attend_from(0, 1, (int)kv_head); });
    run.phase(step.rows, [&](long row) {
        for (int kv_head = 0; kv_head < op.kv_heads; kv_head++) prepare(row, kv_head);
    });
    // Consecutive rows of one sequence share reads of the cache: enough rows to make their queries a multiple of QUERIES_AT_ONCE, fewer if
    // threads would be idle.
    const long full = QUERIES_AT_ONCE / std::gcd((long)QUERIES_AT_ONCE, group), enough = 4 * run.worker.count;
    const long rows_per_task = step.rows / full * op.kv_heads >= enough ? full : std::max(1L, QUERIES_AT_ONCE / group);
    run.phase((step.rows + rows_per_task - 1) / rows_per_task * op.kv_heads, [&](long task) {
        const long top = task / op.kv_heads * rows_per_task, end = std::min(step.rows, top + rows_per_task);
        for (long row = top, next; row < end; row = next) {
            next = row + 1;
            while (next < end && sequences[next] == sequences[row] && (op.cross || step.positions[next] > step.positions[next - 1])) next++;
            attend_from(row, next - row, (int)(task % op.kv_heads));
        }
    });
}

template <class Element>
inline void store_key_value(Run& run, const StoreKeyValue& op) {
    const long k_width = (long)op.kv_heads * op.head_dim;
    run.phase(run.step.rows, [&](long row) {
        for (int kv_head = 0; kv_head < op.kv_heads; kv_head++)
            store_head<Element>(run.engine.cache, op, run.step.sequences[row], run.step.positions[row], kv_head, nullptr,
                               run.buffer(op.input, row) + kv_head * op.head_dim, k_width);
    });
}

inline void blend(Run& run, const Blend& op) {
    const long width = run.engine.widths[op.output];
    run.phase(run.step.rows, [&](long row) {
        float *x = run.buffer(op.input, row), *h = run.buffer(op.output, row);
        unit_row(nullptr, x, width);
        for_each_vector(width, [&](long i, int n) { store(h + i, fma(load(op.step + i, n), load(x + i, n) - load(h + i, n), load(h + i, n)), n); });
        unit_row(nullptr, h, width);
    });
}

inline void add(Run& run, const Add& op) {
    const long width = run.engine.widths[op.output];
    run.phase(run.step.rows, [&](long row) {
        float *x = run.buffer(op.input, row), *y = run.buffer(op.output, row);
        for_each_vector(width, [&](long i, int n) { store(y + i, load(y + i, n) + load(x + i, n), n); });
    });
}

inline void compute_angles(Angles& angles, const Step& step) {
    angles.table.resize(step.rows * 2 * angles.pairs);
    for (long row = 0; row < step.rows; row++)
        for (int i = 0; i < angles.pairs; i++) {
            const float angle = (float)step.positions[row] * angles.frequencies[i];
            float* at = angles.table.data() + row * 2 * angles.pairs;
            at[i] = std::cos(angle) * angles.amplitude, at[angles.pairs + i] = std::sin(angle) * angles.amplitude;
        }
}

// Scratch memory, angles and cache blocks for the rows of a step.
inline void prepare_step(Engine& e, const Step& step) {
    long total = 0;
    for (long width : e.widths) total += (width + 16) * step.rows;
    if ((long)e.memory.size() < total) e.memory.resize(total);
    e.buffers.resize(e.widths.size());
    float* at = e.memory.data();
    for (size_t n = 0; n < e.widths.size(); n++) e.buffers[n] = at, at += e.widths[n] * step.rows;
    const size_t all_inputs = (size_t)e.max_inputs * step.rows;
    if (step.rows > 1 && e.normed.size() < all_inputs)
        e.normed.resize(all_inputs), e.bytes.resize(all_inputs), e.scales.resize(all_inputs / GROUP), e.sums.resize(all_inputs / GROUP);
    for (Angles& angles : e.angles) compute_angles(angles, step);
    if (step.start) std::copy_n(step.start, e.widths[0] * step.rows, e.buffers[0]);
    if (is_logits(e.program[step.first])) return;  // needs no sequences
    for (long row = 0; row < step.rows; row++) {
        const int slot = step.sequences[row];
        make_room(e.cache, slot, step.positions[row] + 1);
        e.cache.lengths[slot] = step.positions[row] + 1;
    }
}

inline const Packed* matrix_after(const Engine& e, size_t operation) {
    for (size_t n = operation + 1; n < e.program.size(); n++)
        if (auto* linear = std::get_if<Linear>(&e.program[n])) return &e.matrices[linear->matrix];
    return nullptr;
}

// Visitor that runs an operation.
struct Execute {
    Run& run;
    int attention_index = 0;
    void operator()(const Embed& op) { embed(run, op); }
    void operator()(const Normalize& op) { normalize(run, op); }
    void operator()(const Linear& op) { linear(run, op); }
    void operator()(const Attend& op) {
        const Engine& e = run.engine;
        const bool half = (op.cross ? *e.encoder_cache : e.cache).half;
        half ? attend<uint16_t>(run, op, attention_index) : attend<float>(run, op, attention_index);
        attention_index++;
    }
    void operator()(const StoreKeyValue& op) { run.engine.cache.half ? store_key_value<uint16_t>(run, op) : store_key_value<float>(run, op); }
    void operator()(const Blend& op) { blend(run, op); }
    void operator()(const Add& op) { add(run, op); }
};

inline void run_program(Engine& e, const Step& step) {
    prepare_step(e, step);
    const int count = threads();
    std::vector<Counter> counters((3 * e.program.size() + 1) * count);
    e.thread_scratch.resize(count);
    Barrier barrier;
    parallel(count, [&](Worker worker) {
        Run run{e, step, barrier, counters.data(), worker};
        Execute execute{run};
        for (size_t n = step.first; n < e.program.size(); n++) {
            run.next_matrix = matrix_after(e, n);
            std::visit(execute, e.program[n]);
        }
    });
    if (step.hidden) std::copy_n(e.buffers[0], e.widths[0] * step.rows, step.hidden);
}

inline void read_cache(const Cache& cache, int slot, int layer, int kv_head, long positions, float* keys, float* values) {
    StoreKeyValue op;
    op.layer = layer, op.head_dim = cache.dims[layer];
    auto read = [&](auto kind) {
        using Element = decltype(kind);
        auto to_float = [](Element x) {
            if constexpr (sizeof(Element) == 2)
                return from_float16(x);
            else
                return (float)x;
        };
        for (long p = 0; p < positions; p++) {
            const Element* from = cache_block<Element>(cache, op, slot, p, kv_head);
            const long at = p % BLOCK_POSITIONS;
            for (long d = 0; d < op.head_dim; d++) {
                keys[p * op.head_dim + d] = to_float(from[at / TILE * op.head_dim * TILE + d * TILE + at % TILE]);
                values[p * op.head_dim + d] = to_float(from[BLOCK_POSITIONS * op.head_dim + at * op.head_dim + d]);
            }
        }
    };
    cache.half ? read(uint16_t()) : read(float());
}

}  // namespace SIGHTLINE_ISA
