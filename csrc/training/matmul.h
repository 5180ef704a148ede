// C = A B (+ bias) in float32, for the linear layers of training: y = x Wᵀ, dx = dy W, dW = dyᵀ x. A and B may stand either way.
//
// As Goto and van de Geijn (2008) do it: some of the depth at a time, B is laid out in panels of whole vectors, in the order in which the
// kernel reads them, and a panel stays in the second cache while the rows of a block pass by, six at a time. Rows of A are read where
// they are; its columns are laid out first. Each number of C is a chain of sums in the order of k for each such part of the depth, and then the
// sum of these in their order, whatever the threads do.
#pragma once
#include <algorithm>
#include <atomic>
#include <vector>

#include "simd/small_matmul.h"
#include "threads.h"
#include "training/kernels.h"

namespace SIGHTLINE_ISA {
using namespace sightline;

constexpr long PANEL_ROWS = FloatBlock::rows, PANEL = FloatBlock::vectors * WIDE;
constexpr long DEPTH = 768, FEWEST_ROWS = 48, MOST_ROWS = 96;  // of a block: 96 · 768 numbers and a panel fit the second cache
constexpr long MOST_PACKED = 1 << 22, ROWS_PER_TASK_B = 32;  // numbers of B at a time; its rows of a task

// Some of B's rows, all of its columns: panels [k][PANEL], in each from row `low` to `high`; columns that B does not have are 0.
inline void pack_rows_of_b(Matrix b, long first, long low, long high, long columns, float* to, long panel) {
    for (long k = low; k < high; k++)
        for (long j = 0; j < columns; j += LANES)
            store(to + j / PANEL * panel + k * PANEL + j % PANEL, load(b.data + (first + k) * b.row + j, (int)std::min<long>(LANES, columns - j)));
    const long end = (columns + LANES - 1) / LANES * LANES;
    for (long k = low; k < high; k++)
        for (long j = end; j % PANEL; j += LANES) store(to + j / PANEL * panel + k * PANEL + j % PANEL, zero());
}

// One panel of a B whose columns lie in memory one after the other.
inline void pack_transposed(Matrix b, long first, long depth, long column, long many, float* to) {
    for (long j = 0; j < PANEL; j += LANES)
        for (long k = 0; k < depth; k += LANES) {
            const int columns = (int)std::clamp<long>(many - j, 0, LANES), some = (int)std::min<long>(LANES, depth - k);
            Floats in[LANES], out[LANES];
            for (int r = 0; r < LANES; r++)
                in[r] = r < columns ? load(b.data + (column + j + r) * b.column + first + k, some) : zero();
            transpose(in, out);
            for (int r = 0; r < some; r++) store(to + (k + r) * PANEL + j, out[r]);
        }
}

// Panels [k][PANEL_ROWS] of an A whose columns lie in memory one after the other: some of its `all_rows`. Eight numbers are written
// where six belong, in the order of k: the next ones, or the room behind a panel, take the rest.
inline void pack_columns_of_a(Matrix a, long all_rows, long top, long rows, long first, long depth, float* to, long panel) {
    for (long k = 0; k < depth; k++) {
        const float* from = a.data + (first + k) * a.column + top;
        for (long i = 0; i < rows; i += PANEL_ROWS)
            store(to + i / PANEL_ROWS * panel + k * PANEL_ROWS, load(from + i, (int)std::min<long>(LANES, all_rows - top - i)));
    }
}

// Six rows of A: where each begins, and the step from k to k.
template <bool packed>
struct RowPanel {
    const float* row[PANEL_ROWS];
    float operator()(int r, long k) const { return packed ? row[0][k * PANEL_ROWS + r] : row[r][k]; }
};

// Six rows by VECTORS of a panel, all of its depth.
template <int VECTORS, bool packed>
SIGHTLINE_NOINLINE void panel_tile(long depth, RowPanel<packed> a, const float* b, const float* bias, float* c, long c_stride, bool accumulates) {
    Wide sums[PANEL_ROWS][VECTORS];
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int v = 0; v < VECTORS; v++) prefetch(c + r * c_stride + v * WIDE), sums[r][v] = broadcast_wide(0.0f);
    for (long k = 0; k < depth; k++, b += PANEL) {
        Wide right[VECTORS];
        for (int v = 0; v < VECTORS; v++) right[v] = load_wide(b + v * WIDE);
        for (int r = 0; r < PANEL_ROWS; r++) {
            const Wide left = broadcast_wide(a(r, k));
            for (int v = 0; v < VECTORS; v++) sums[r][v] = fma(left, right[v], sums[r][v]);
        }
    }
    for (int r = 0; r < PANEL_ROWS; r++)
        for (int v = 0; v < VECTORS; v++) {
            float* at = c + r * c_stride + v * WIDE;
            store(at, accumulates ? load_wide(at) + sums[r][v] : bias ? load_wide(bias + v * WIDE) + sums[r][v] : sums[r][v]);
        }
}

// Rows of a block by one panel. At the edges of C a tile is made beside it, and what belongs to C is copied.
template <int VECTORS, bool packed>
inline void panel_rows(long rows, long columns, long depth, Matrix a, const float* b, const float* bias, float* c, long c_stride, bool accumulates) {
    for (long i = 0; i < rows; i += PANEL_ROWS) {
        RowPanel<packed> six;
        for (long r = 0; r < PANEL_ROWS; r++) six.row[r] = a.data + (packed ? i / PANEL_ROWS : std::min(i + r, rows - 1)) * a.row;
        if (rows - i >= PANEL_ROWS && columns == VECTORS * WIDE) {
            panel_tile<VECTORS, packed>(depth, six, b, bias, c + i * c_stride, c_stride, accumulates);
            continue;
        }
        alignas(64) float tile[PANEL_ROWS * PANEL];
        panel_tile<VECTORS, packed>(depth, six, b, nullptr, tile, PANEL, false);
        for (long r = 0; r < std::min(PANEL_ROWS, rows - i); r++)
            for (long j = 0; j < columns; j++) {
                float* at = c + (i + r) * c_stride + j;
                *at = (accumulates ? *at : bias ? bias[j] : 0.0f) + tile[r * PANEL + j];
            }
    }
}

template <bool packed>
inline void panel_rows(long rows, long columns, long depth, Matrix a, const float* b, const float* bias, float* c, long c_stride, bool accumulates) {
    auto run = [&](auto vectors) { panel_rows<vectors, packed>(rows, columns, depth, a, b, bias, c, c_stride, accumulates); };
    if (columns > PANEL / 2)
        run(Count<FloatBlock::vectors>());
    else if (columns > WIDE)
        run(Count<FloatBlock::vectors / 2>());
    else
        run(Count<1>());
}

inline float* aligned(std::vector<float>& kept, size_t count) {
    if (kept.size() < count + 32) kept.resize(count + 32);
    return (float*)(((uintptr_t)kept.data() + 63) & ~(uintptr_t)63);
}

// As `parallel_for`, where a task is told which thread does it.
template <class Body>
inline void parallel_for_worker(int count, long tasks, const Body& body) {
    alignas(64) std::atomic<long> next{0};
    parallel(count, [&](Worker worker) {
        for (long task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(task, worker);
    });
}

// Columns of C that belong to `b`, some of the depth at a time.
inline void matmul_columns(const Product& p, Matrix a, Matrix b, const float* bias, float* out, long columns) {
    const long blocks = std::max(1L, (p.depth + DEPTH - 1) / DEPTH), most = std::max(1L, (p.depth + blocks - 1) / blocks);
    const long panels = (columns + PANEL - 1) / PANEL, panel = PANEL * most, six = PANEL_ROWS * most + LANES;
    const int count = threads();
    const long height = std::clamp((p.rows / (4 * count) + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS, FEWEST_ROWS, MOST_ROWS);
    const long down = (p.rows + height - 1) / height, across = std::clamp((2 * count + down - 1) / down, 1L, panels);
    // Of the thread that calls: the others get their parts of it, for none of them may run out of memory.
    static thread_local std::vector<float> right, left;
    const long own = a.column == 1 ? 0 : rounded((MOST_ROWS / PANEL_ROWS + 1) * six, 16);
    float *packed = aligned(right, panels * panel), *rows_of_all = aligned(left, own * count);
    for (long first = 0; first == 0 || first < p.depth; first += most) {
        const long depth = std::min(most, p.depth - first);
        if (b.column == 1)
            parallel_for((depth + ROWS_PER_TASK_B - 1) / ROWS_PER_TASK_B, [&](long n) {
                pack_rows_of_b(b, first, n * ROWS_PER_TASK_B, std::min(depth, (n + 1) * ROWS_PER_TASK_B), columns, packed, panel);
            });
        else
            parallel_for(panels, [&](long n) { pack_transposed(b, first, depth, n * PANEL, std::min(PANEL, columns - n * PANEL), packed + n * panel); });
        parallel_for_worker(count, down * across, [&](long task, Worker worker) {
            const long top = task / across * height, rows = std::min(height, p.rows - top);
            float* mine = a.column == 1 ? nullptr : rows_of_all + worker.index * own;
            if (mine) pack_columns_of_a(a, p.rows, top, rows, first, depth, mine, six);
            for (long n = panels * (task % across) / across; n < panels * (task % across + 1) / across; n++) {
                const long column = n * PANEL, many = std::min(PANEL, columns - column);
                const float* add = bias ? bias + column : nullptr;
                float* c = out + top * p.c_stride + column;
                if (mine)
                    panel_rows<true>(rows, many, depth, {mine, six}, packed + n * panel, add, c, p.c_stride, first > 0);
                else
                    panel_rows<false>(rows, many, depth, {a.data + top * a.row + first, a.row}, packed + n * panel, add, c, p.c_stride, first > 0);
            }
        });
    }
}

inline void matmul(const Product& p, const float* a, const float* b) {
    if (p.rows == 0) return;
    const long some = std::max(1L, MOST_PACKED / DEPTH / PANEL) * PANEL;
    for (long column = 0; column < p.columns; column += some)
        matmul_columns(p, {a, p.a_row, p.a_column}, {b + column * p.b_column, p.b_row, p.b_column}, p.bias ? p.bias + column : nullptr,
                       p.out + column, std::min(some, p.columns - column));
}

}  // namespace SIGHTLINE_ISA
