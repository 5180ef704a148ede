// C (+)= A B for matrices that fit the caches: rows of B are padded to a multiple of 16 floats, A has any strides (so Aᵀ works too).
#pragma once
#include "simd/wide.h"

namespace SIGHTLINE_ISA {

inline long round_up(long n, long to) { return (n + to - 1) / to * to; }

template <int ROWS, int VECTORS>
inline void product_tile(long depth, const float* a, long row, long column, const float* b, long b_stride, float* c, long c_stride, bool accumulates) {
    Wide sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = accumulates ? load_wide(c + r * c_stride + v * WIDE) : broadcast_wide(0.0f);
    for (long k = 0; k < depth; k++, a += column, b += b_stride) {
        Wide right[VECTORS];
        for (int v = 0; v < VECTORS; v++) right[v] = load_wide(b + v * WIDE);
        for (int r = 0; r < ROWS; r++) {
            const Wide left = broadcast_wide(a[r * row]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] = fma(left, right[v], sums[r][v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(c + r * c_stride + v * WIDE, sums[r][v]);
}

struct Matrix {  // a[i, j] = data[i · row + j · column]
    const float* data;
    long row, column = 1;
};

inline void product(long rows, long columns, long depth, Matrix a, const float* b, long b_stride, float* c, long c_stride, bool accumulates) {
    long j = 0;
    auto across = [&](auto max_rows, auto vectors) {
        for (; j + WIDE * vectors <= columns; j += WIDE * vectors) {
            long i = 0;
            auto down = [&](auto tile_rows) {
                for (; i + tile_rows <= rows; i += tile_rows)
                    product_tile<tile_rows, vectors>(depth, a.data + i * a.row, a.row, a.column, b + j, b_stride, c + i * c_stride + j, c_stride, accumulates);
            };
            down(max_rows);
            down(Count<2>());
            down(Count<1>());
        }
    };
    across(Count<FloatBlock::rows>(), Count<FloatBlock::vectors>());
    if constexpr (WIDE == 16) {  // the rest is narrower than four vectors: use more rows for the same number of accumulators
        across(Count<2 * FloatBlock::rows>(), Count<2>());
        across(Count<2 * FloatBlock::rows>(), Count<1>());
    }
}

}  // namespace SIGHTLINE_ISA
