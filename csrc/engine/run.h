// The step: every thread goes through the program; they share each operation's pieces and meet after it.
#pragma once
#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "simd/activations.h"
#include "engine/attention.h"
#include "engine/linear.h"
#include "engine/pack.h"
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
    Counter* counters;  // for each phase, one for each thread
    Member member;
    int used = 0;
    const Packed* coming = nullptr;  // the matrix that will be read next

    // Pieces of one phase: each thread has a run of its own, so that it reads one run of memory, and then helps the others; then everyone
    // meets.
    template <class Body>
    void phase(long pieces, const Body& body) {
        Counter* next = counters + (long)used++ * member.of;
        for (int turn = 0; turn < member.of; turn++) {
            const int owner = (member.number + turn) % member.of;
            const long end = pieces * (owner + 1) / member.of;
            for (long piece, first = pieces * owner / member.of;
                 (piece = first + next[owner].taken.fetch_add(1, std::memory_order_relaxed)) < end;)
                body(piece);
        }
        if (step.rows == 1) ask();
        barrier.wait(member.of);
    }
    // While one row waits for another thread, memory need not: the beginning of what comes is asked for.
    void ask() const {
        if (!coming) return;
        const long bytes = coming->tiles * coming->tile_bytes(), start = coming->tiles / 2 * member.number / member.of * 2 * coming->tile_bytes();
        for (long at = start; at < std::min(bytes, start + TILE_BYTES); at += 64) prefetch_far(coming->data + at);
    }
    float* buffer(int number, long row) const { return engine.buffers[number] + row * engine.widths[number]; }
};

inline Floats bent(Curve curve, Floats x) {
    switch (curve) {
        case Curve::none: return x;
        case Curve::relu: return max(x, zero());
        case Curve::gelu: return gelu(x).value;
        case Curve::gelu_tanh: return gelu_tanh(x).value;
        case Curve::silu: return silu(x).value;
        case Curve::relu_squared: return max(x, zero()) * max(x, zero());
        case Curve::tanh: return all(1.0f) - all(2.0f) / (exponential(x + x) + all(1.0f));
    }
    return x;
}

inline void embed(Run& run, const Operation& op) {
    const Packed& table = run.engine.matrices[op.matrix];
    const long width = table.inputs;
    run.phase(run.step.rows, [&](long row) {
        float* x = run.buffer(op.out, row);
        unpack_row(table, run.step.tokens[row], x);
        const float* position = op.positions ? op.positions + run.step.positions[row] * width : nullptr;
        by_eight(width, [&](long i, int n) {
            Floats v = load(x + i, n) * all(op.scale);
            if (position) v = v + load(position + i, n);
            if (op.types) v = v + load(op.types + i, n);
            store(x + i, v, n);
        });
        norm_row(op.norm, x, width, x);
    });
}

inline void norm(Run& run, const Operation& op) {
    run.phase(run.step.rows, [&](long row) {
        norm_row(op.norm, run.buffer(op.in, row) + op.layer, op.dim, run.buffer(op.out, row) + op.layer);  // a part of the row
    });
}

// What is read, as the matrix wants it. One row is prepared by every thread for itself: that is quicker than to meet once more.
inline Inputs prepared(Run& run, const Operation& op, const Packed& w, long rows, const int32_t* which) {
    Engine& e = run.engine;
    const bool alone = rows == 1, bytes = takes_bytes(w.precision), plain = op.norm.kind == NormKind::none && op.scale == 1.0f && !which;
    const Counting counting = Counting::of(w.precision);
    const long groups = w.depth / GROUP, in_width = e.widths[op.in];
    if (plain && !bytes) return {e.buffers[op.in], in_width, nullptr, nullptr, nullptr};
    std::vector<float>& own = e.own[run.member.number];  // of one row, so that it stays in the nearest cache
    const long room = w.depth + 2 * groups + w.depth / 4 + 16;
    if ((long)own.size() < room) own.resize(room);
    float* floats = alone || bytes ? own.data() : e.normed.data();
    float* scales = alone ? floats + w.depth : e.scales.data();
    float* sums = alone ? scales + groups : e.sums.data();
    int8_t* whole = alone ? (int8_t*)(sums + groups) : e.bytes.data();
    auto one = [&](long row) {
        const float* from = run.buffer(op.in, which ? which[row] : row);
        float* x = bytes ? floats : floats + row * w.depth;
        const bool as_it_is = bytes && op.norm.kind == NormKind::none && op.scale == 1.0f;
        if (!as_it_is) norm_row(op.norm, from, w.inputs, x);
        if (op.scale != 1.0f) by_eight(w.inputs, [&](long i, int n) { store(x + i, load(x + i, n) * all(op.scale), n); });
        if (bytes) quantise_row(counting, as_it_is ? from : x, w.inputs, w.depth, whole + row * w.depth, scales + row * groups, sums + row * groups);
    };
    if (alone)
        one(0);
    else
        run.phase(rows, one);
    return {floats, w.depth, whole, scales, sums};
}

// What is done with the sums of a linear operation, and where they go.
template <class Body>
struct Done {
    const Body& body;
    float* out;
    long stride, narrower;  // a gated result is half as wide as its tiles
    void operator()(long row, long tile, const Floats* sums) const { body(row, tile, sums); }
    void comes(long row, long tile) const { prefetch(out + row * stride + tile * TILE / narrower); }
};

inline void linear(Run& run, const Operation& op) {
    const Packed& w = run.engine.matrices[op.matrix];
    const bool last = op.last;
    const long rows = last ? run.step.wanted_count : run.step.rows;
    if (rows == 0) return run.barrier.wait(run.member.of);
    const Inputs x = prepared(run, op, w, rows, last ? run.step.wanted : nullptr);
    float* out = last ? run.step.logits : run.engine.buffers[op.out];
    const long width = op.gated ? op.dim : w.rows, stride = last ? width : run.engine.widths[op.out];
    auto finish = [&](float* y, Floats value, long column) {
        if (column >= width) return;
        const int n = width - column < TILE ? (int)(width - column) : TILE;
        if (op.factor) value = value * load(op.factor + column, n);
        if (op.softcap > 0) value = bent(Curve::tanh, value * all(1.0f / op.softcap)) * all(op.softcap);
        store(y + column, op.adds ? load(y + column, n) + value : value, n);
    };
    auto done = [&](long row, long tile, const Floats* sums) {
        float* y = out + row * stride;
        if (op.gated) {  // the tile of the gate, then the tile that it lets through
            const long column = tile / 2 * TILE;
            const int n = (int)std::max(0L, std::min(TILE, width - column));
            Floats gate = sums[0], up = sums[1];
            if (op.bias && n > 0) gate = gate + load(op.bias + column, n), up = up + load(op.bias + width + column, n);
            if (op.step && n > 0) gate = gate * load(op.step + column, n), up = up * load(op.step + width + column, n);  // nGPT's s_v, s_u
            finish(y, bent(op.curve, gate) * up, column);
        } else {
            for (int t = 0; t < 2; t++) {
                const long column = (tile + t) * TILE;
                if (column >= width) continue;
                const int n = width - column < TILE ? (int)(width - column) : TILE;
                Floats value = op.bias ? sums[t] + load(op.bias + column, n) : sums[t];
                finish(y, bent(op.curve, value), column);
            }
        }
    };
    const long pairs = w.tiles / 2, fit = TILE_BYTES * (rows > 1 ? 2 : 1) / (2 * w.tile_bytes());
    const long block = rows == 1 ? 1 : (takes_bytes(w.precision) ? WholeBlock::vectors : FloatBlock::vectors) * TILES / 2;
    const long some = (std::max(1L, std::min(fit, pairs / (4 * run.member.of))) + block - 1) / block * block;
    const long across = (pairs + some - 1) / some, down = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    auto each = [&](const auto& body) {
        const Done<std::decay_t<decltype(body)>> done{body, out, stride, op.gated ? 2 : 1};
        run.phase(across * down, [&](long piece) {
            const long first = piece / down * some, top = piece % down * ROW_BLOCK;
            multiply(w, x, top, std::min(rows, top + ROW_BLOCK), 2 * first, 2 * std::min(pairs, first + some), done);
        });
    };
    if (op.factor || op.step || op.softcap > 0 || width % (2 * TILE)) return each(done);
    each([&](long row, long tile, const Floats* sums) {  // most matrices: whole tiles, a bias, a curve, nothing else
        auto put = [&](float* y, Floats value) { store(y, op.adds ? load(y) + value : value); };
        auto biased = [&](int t, long column) { return op.bias ? sums[t] + load(op.bias + column) : sums[t]; };
        float* y = out + row * stride;
        if (op.gated) {
            const long column = tile / 2 * TILE;
            put(y + column, bent(op.curve, biased(0, column)) * biased(1, width + column));
        } else {
            for (int t = 0; t < 2; t++) put(y + (tile + t) * TILE, bent(op.curve, biased(t, (tile + t) * TILE)));
        }
    });
}

template <class Number>
inline void attend(Run& run, const Operation& op, int number) {
    Engine& e = run.engine;
    const Step& step = run.step;
    const HeadWork& work = op.work;
    const Cache& seen = op.cross ? *e.looked_at : e.cache;
    const int32_t* of = op.cross ? step.sources : step.sequences;
    const long group = op.heads / op.kv_heads, in_width = e.widths[op.in], q_width = (long)op.heads * op.dim, k_width = (long)op.kv_heads * op.dim;
    std::vector<float>& own = e.own[run.member.number];
    auto prepare = [&](long row, int kv_head) {
        const float* cosines = work.pairs ? e.angles[work.angles].table.data() + row * 2 * work.pairs : nullptr;
        float* x = run.buffer(op.in, row);
        for (long h = kv_head * group; h < (kv_head + 1) * group; h++)
            prepare_head(work, work.query, work.query_scale ? work.query_scale + h * op.dim : nullptr, op.dim, cosines, x + h * op.dim);
        if (!op.cross) keep_head<Number>(e.cache, op, step.sequences[row], step.positions[row], kv_head, cosines, x + q_width + kv_head * op.dim, k_width);
        if (step.queries && step.queries[number])
            std::copy_n(x + kv_head * group * op.dim, group * op.dim, step.queries[number] + row * q_width + kv_head * group * op.dim);
    };
    auto see = [&](long row, long many, int kv_head) {
        look<Number>(seen, op, of[row], kv_head, step.positions, row, many, e.buffers[op.in], in_width, e.buffers[op.out], e.widths[op.out], own);
    };
    if (step.rows == 1)
        return run.phase(op.kv_heads, [&](long kv_head) { prepare(0, (int)kv_head), see(0, 1, (int)kv_head); });
    run.phase(step.rows, [&](long row) {
        for (int kv_head = 0; kv_head < op.kv_heads; kv_head++) prepare(row, kv_head);
    });
    // rows of one sequence that follow each other are looked at together, as many as make their queries a multiple of TOGETHER; but fewer
    // where threads would have nothing to do
    const long whole = TOGETHER / std::gcd((long)TOGETHER, group), enough = 4 * run.member.of;
    const long together = step.rows / whole * op.kv_heads >= enough ? whole : std::max(1L, TOGETHER / group);
    run.phase((step.rows + together - 1) / together * op.kv_heads, [&](long piece) {
        const long top = piece / op.kv_heads * together, end = std::min(step.rows, top + together);
        for (long row = top, next; row < end; row = next) {
            next = row + 1;
            while (next < end && of[next] == of[row] && (op.cross || step.positions[next] > step.positions[next - 1])) next++;
            see(row, next - row, (int)(piece % op.kv_heads));
        }
    });
}

// Keys and values of a source, for a decoder to look at.
template <class Number>
inline void keep(Run& run, const Operation& op) {
    const long k_width = (long)op.kv_heads * op.dim;
    run.phase(run.step.rows, [&](long row) {
        for (int kv_head = 0; kv_head < op.kv_heads; kv_head++)
            keep_head<Number>(run.engine.cache, op, run.step.sequences[row], run.step.positions[row], kv_head, nullptr,
                              run.buffer(op.in, row) + kv_head * op.dim, k_width);
    });
}

inline void blend(Run& run, const Operation& op) {
    const long width = run.engine.widths[op.out];
    run.phase(run.step.rows, [&](long row) {
        float *x = run.buffer(op.in, row), *h = run.buffer(op.out, row);
        norm_row({NormKind::unit, 0, nullptr, nullptr}, x, width, x);
        by_eight(width, [&](long i, int n) { store(h + i, fma(load(op.step + i, n), load(x + i, n) - load(h + i, n), load(h + i, n)), n); });
        norm_row({NormKind::unit, 0, nullptr, nullptr}, h, width, h);
    });
}

inline void add(Run& run, const Operation& op) {
    const long width = run.engine.widths[op.out];
    run.phase(run.step.rows, [&](long row) {
        float *x = run.buffer(op.in, row), *y = run.buffer(op.out, row);
        by_eight(width, [&](long i, int n) { store(y + i, load(y + i, n) + load(x + i, n), n); });
    });
}

inline void grow(Engine& e, const Step& step) {
    long total = 0;
    for (long width : e.widths) total += (width + 16) * step.rows;
    if ((long)e.memory.size() < total) e.memory.resize(total);
    e.buffers.resize(e.widths.size());
    float* at = e.memory.data();
    for (size_t n = 0; n < e.widths.size(); n++) e.buffers[n] = at, at += e.widths[n] * step.rows;
    const size_t all_inputs = (size_t)e.most_inputs * step.rows;
    if (step.rows > 1 && e.normed.size() < all_inputs)
        e.normed.resize(all_inputs), e.bytes.resize(all_inputs), e.scales.resize(all_inputs / GROUP), e.sums.resize(all_inputs / GROUP);
    for (Angles& turn : e.angles) {
        turn.table.resize(step.rows * 2 * turn.pairs);
        for (long row = 0; row < step.rows; row++)
            for (int i = 0; i < turn.pairs; i++) {
                const float angle = (float)step.positions[row] * turn.frequencies[i];
                float* at = turn.table.data() + row * 2 * turn.pairs;
                at[i] = std::cos(angle) * turn.amplitude, at[turn.pairs + i] = std::sin(angle) * turn.amplitude;
            }
    }
    if (step.from) std::copy_n(step.from, e.widths[0] * step.rows, e.buffers[0]);
    if (e.program[step.first].last) return;  // logits alone
    for (long row = 0; row < step.rows; row++) {
        const int slot = step.sequences[row];
        make_room(e.cache, slot, step.positions[row] + 1);
        e.cache.lengths[slot] = step.positions[row] + 1;
    }
}

inline void run_program(Engine& e, const Step& step) {
    grow(e, step);
    const int count = threads();
    std::vector<Counter> counters((3 * e.program.size() + 1) * count);
    e.own.resize(count);
    Barrier barrier;
    together(count, [&](Member member) {
        Run run{e, step, barrier, counters.data(), member};
        int attended = 0;
        for (size_t n = step.first; n < e.program.size(); n++) {
            const Operation& op = e.program[n];
            run.coming = nullptr;
            for (size_t m = n + 1; m < e.program.size() && !run.coming; m++)
                if (e.program[m].kind == Kind::linear) run.coming = &e.matrices[e.program[m].matrix];
            switch (op.kind) {
                case Kind::embed: embed(run, op); break;
                case Kind::norm: norm(run, op); break;
                case Kind::linear: linear(run, op); break;
                case Kind::attend:
                    (op.cross ? *e.looked_at : e.cache).half ? attend<uint16_t>(run, op, attended) : attend<float>(run, op, attended), attended++;
                    break;
                case Kind::keep: e.cache.half ? keep<uint16_t>(run, op) : keep<float>(run, op); break;
                case Kind::blend: blend(run, op); break;
                case Kind::add: add(run, op); break;
            }
        }
    });
    if (step.hidden) std::copy_n(e.buffers[0], e.widths[0] * step.rows, step.hidden);
}

inline void read_cache(const Cache& cache, int slot, int layer, int kv_head, long positions, float* keys, float* values) {
    Operation op;
    op.kind = Kind::attend, op.layer = layer, op.dim = cache.dims[layer];
    auto read = [&](auto kind) {
        using Number = decltype(kind);
        auto number = [](Number x) {
            if constexpr (sizeof(Number) == 2)
                return float_of(x);
            else
                return (float)x;
        };
        for (long p = 0; p < positions; p++) {
            const Number* from = place<Number>(cache, op, slot, p, kv_head);
            const long at = p % BLOCK_POSITIONS;
            for (long d = 0; d < op.dim; d++) {
                keys[p * op.dim + d] = number(from[at / TILE * op.dim * TILE + d * TILE + at % TILE]);
                values[p * op.dim + d] = number(from[BLOCK_POSITIONS * op.dim + at * op.dim + d]);
            }
        }
    };
    cache.half ? read(uint16_t()) : read(float());
}

}  // namespace SIGHTLINE_ISA
