// C = A B (+ bias) in float32, for the linear layers of training: y = x Wᵀ, dx = dy W, dW = dyᵀ x. A and B may be row- or column-major.
//
// After Goto and van de Geijn (2008): for each block of the depth, B is packed into panels in the order in which the kernel reads them,
// and a panel stays in the L2 cache while the rows of A pass by, six at a time. A row-major A is read in place; a column-major A is packed
// first. Each element of C is summed in the order of k within a block of the depth, then over the blocks in order, independently of the
// number of threads.
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
constexpr long DEPTH = 768, MIN_ROWS = 48, MAX_ROWS = 96;  // of a block: 96 · 768 floats and a panel fit the L2 cache
constexpr long MAX_PACKED = 1 << 22, ROWS_PER_TASK_B = 32;  // elements of B packed at once; rows of B per task

// Packs rows `low` to `high` of a row-major B into panels [k][PANEL]; the last panel is padded with zero columns.
inline void pack_rows_of_b(Matrix b, long first, long low, long high, long columns, float* to, long panel) {
    for (long k = low; k < high; k++)
        for (long j = 0; j < columns; j += LANES)
            store(to + j / PANEL * panel + k * PANEL + j % PANEL, load(b.data + (first + k) * b.row + j, (int)std::min<long>(LANES, columns - j)));
    const long end = (columns + LANES - 1) / LANES * LANES;
    for (long k = low; k < high; k++)
        for (long j = end; j % PANEL; j += LANES) store(to + j / PANEL * panel + k * PANEL + j % PANEL, zero());
}

// Packs one panel of a column-major B.
inline void pack_transposed(Matrix b, long first, long depth, long column, long width, float* to) {
    for (long j = 0; j < PANEL; j += LANES)
        for (long k = 0; k < depth; k += LANES) {
            const int columns = (int)std::clamp<long>(width - j, 0, LANES), size = (int)std::min<long>(LANES, depth - k);
            Floats in[LANES], out[LANES];
            for (int r = 0; r < LANES; r++)
                in[r] = r < columns ? load(b.data + (column + j + r) * b.column + first + k, size) : zero();
            transpose(in, out);
            for (int r = 0; r < size; r++) store(to + (k + r) * PANEL + j, out[r]);
        }
}

// Packs `rows` of the `all_rows` rows of a column-major A into panels [k][PANEL_ROWS]. Each store writes eight floats where six belong;
// the store for the next k overwrites the excess, and each panel has spare room for the last one.
inline void pack_columns_of_a(Matrix a, long all_rows, long top, long rows, long first, long depth, float* to, long panel) {
    for (long k = 0; k < depth; k++) {
        const float* from = a.data + (first + k) * a.column + top;
        for (long i = 0; i < rows; i += PANEL_ROWS)
            store(to + i / PANEL_ROWS * panel + k * PANEL_ROWS, load(from + i, (int)std::min<long>(LANES, all_rows - top - i)));
    }
}

// Six rows of A, packed or in place.
template <bool packed>
struct RowPanel {
    const float* row[PANEL_ROWS];
    float operator()(int r, long k) const { return packed ? row[0][k * PANEL_ROWS + r] : row[r][k]; }
};

// Six rows of C by VECTORS vectors, over the whole depth of a panel.
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

// Rows of a block times one panel. At the edges of C, a tile is computed in a temporary and its valid part is copied.
template <int VECTORS, bool packed>
inline void panel_rows(long rows, long columns, long depth, Matrix a, const float* b, const float* bias, float* c, long c_stride, bool accumulates) {
    for (long i = 0; i < rows; i += PANEL_ROWS) {
        RowPanel<packed> row_panel;
        for (long r = 0; r < PANEL_ROWS; r++) row_panel.row[r] = a.data + (packed ? i / PANEL_ROWS : std::min(i + r, rows - 1)) * a.row;
        if (rows - i >= PANEL_ROWS && columns == VECTORS * WIDE) {
            panel_tile<VECTORS, packed>(depth, row_panel, b, bias, c + i * c_stride, c_stride, accumulates);
            continue;
        }
        alignas(64) float tile[PANEL_ROWS * PANEL];
        panel_tile<VECTORS, packed>(depth, row_panel, b, nullptr, tile, PANEL, false);
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

inline float* reserve_aligned(std::vector<float>& memory, size_t count) {
    if (memory.size() < count + 32) memory.resize(count + 32);
    return (float*)(((uintptr_t)memory.data() + 63) & ~(uintptr_t)63);
}

// Like `parallel_for`, but the body also gets the worker.
template <class Body>
inline void parallel_for_worker(int count, long tasks, const Body& body) {
    alignas(64) std::atomic<long> next{0};
    parallel(count, [&](Worker worker) {
        for (long task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(task, worker);
    });
}

// The columns of C for `b`, one block of the depth at a time.
inline void matmul_columns(const Product& p, Matrix a, Matrix b, const float* bias, float* out, long columns) {
    const long blocks = std::max(1L, (p.depth + DEPTH - 1) / DEPTH), block_depth = std::max(1L, (p.depth + blocks - 1) / blocks);
    const long panels = (columns + PANEL - 1) / PANEL, panel = PANEL * block_depth, row_panel = PANEL_ROWS * block_depth + LANES;
    const int count = threads();
    const long height = std::clamp((p.rows / (4 * count) + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS, MIN_ROWS, MAX_ROWS);
    const long down = (p.rows + height - 1) / height, across = std::clamp((2 * count + down - 1) / down, 1L, panels);
    // The calling thread allocates for all workers: bad_alloc must not be thrown in a worker.
    static thread_local std::vector<float> right, left;
    const long left_size = a.column == 1 ? 0 : round_up((MAX_ROWS / PANEL_ROWS + 1) * row_panel, 16);
    float *packed = reserve_aligned(right, panels * panel), *packed_left = reserve_aligned(left, left_size * count);
    for (long first = 0; first == 0 || first < p.depth; first += block_depth) {
        const long depth = std::min(block_depth, p.depth - first);
        if (b.column == 1)
            parallel_for((depth + ROWS_PER_TASK_B - 1) / ROWS_PER_TASK_B, [&](long n) {
                pack_rows_of_b(b, first, n * ROWS_PER_TASK_B, std::min(depth, (n + 1) * ROWS_PER_TASK_B), columns, packed, panel);
            });
        else
            parallel_for(panels, [&](long n) { pack_transposed(b, first, depth, n * PANEL, std::min(PANEL, columns - n * PANEL), packed + n * panel); });
        parallel_for_worker(count, down * across, [&](long task, Worker worker) {
            const long top = task / across * height, rows = std::min(height, p.rows - top);
            float* packed_rows = a.column == 1 ? nullptr : packed_left + worker.index * left_size;
            if (packed_rows) pack_columns_of_a(a, p.rows, top, rows, first, depth, packed_rows, row_panel);
            for (long n = panels * (task % across) / across; n < panels * (task % across + 1) / across; n++) {
                const long column = n * PANEL, width = std::min(PANEL, columns - column);
                const float* add = bias ? bias + column : nullptr;
                float* c = out + top * p.c_stride + column;
                if (packed_rows)
                    panel_rows<true>(rows, width, depth, {packed_rows, row_panel}, packed + n * panel, add, c, p.c_stride, first > 0);
                else
                    panel_rows<false>(rows, width, depth, {a.data + top * a.row + first, a.row}, packed + n * panel, add, c, p.c_stride, first > 0);
            }
        });
    }
}

inline void matmul(const Product& p, const float* a, const float* b) {
    if (p.rows == 0) return;
    const long block = std::max(1L, MAX_PACKED / DEPTH / PANEL) * PANEL;
    for (long column = 0; column < p.columns; column += block)
        matmul_columns(p, {a, p.a_row, p.a_column}, {b + column * p.b_column, p.b_row, p.b_column}, p.bias ? p.bias + column : nullptr,
                       p.out + column, std::min(block, p.columns - column));
}

}  // namespace SIGHTLINE_ISA
