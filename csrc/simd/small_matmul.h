// C (+)= A B for matrices that lie in the caches: B in rows of a multiple of 16 numbers, A with any strides (so that Aᵀ is as good).
#pragma once
#include "simd/wide.h"

namespace SIGHTLINE_ISA {

inline long rounded(long n, long to) { return (n + to - 1) / to * to; }

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
    auto across = [&](auto most, auto vectors) {
        for (; j + WIDE * vectors <= columns; j += WIDE * vectors) {
            long i = 0;
            auto down = [&](auto some) {
                for (; i + some <= rows; i += some)
                    product_tile<some, vectors>(depth, a.data + i * a.row, a.row, a.column, b + j, b_stride, c + i * c_stride + j, c_stride, accumulates);
            };
            down(most);
            down(Count<2>());
            down(Count<1>());
        }
    };
    across(Count<FloatBlock::rows>(), Count<FloatBlock::vectors>());
    if constexpr (WIDE == 16) {  // what is left is narrower than four vectors: as many sums, of more rows
        across(Count<2 * FloatBlock::rows>(), Count<2>());
        across(Count<2 * FloatBlock::rows>(), Count<1>());
    }
}

}  // namespace SIGHTLINE_ISA
