// C (+)= A B for matrices that lie in the caches: B in rows of a multiple of 16 numbers, A with any strides (so that Aᵀ is as good).
#pragma once
#include "simd.h"

namespace SIGHTLINE_ISA {

template <int ROWS, int VECTORS>
inline void product_tile(long depth, const float* a, long row, long column, const float* b, long below, float* c, long under, bool adds) {
    Floats sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = adds ? load(c + r * under + v * LANES) : zero();
    for (long k = 0; k < depth; k++, a += column, b += below) {
        Floats right[VECTORS];
        for (int v = 0; v < VECTORS; v++) right[v] = load(b + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            Floats left = all(a[r * row]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] = fma(left, right[v], sums[r][v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(c + r * under + v * LANES, sums[r][v]);
}

struct Matrix {  // a[i, j] = data[i · row + j · column]
    const float* data;
    long row, column = 1;
};

inline void product(long rows, long columns, long depth, Matrix a, const float* b, long below, float* c, long under, bool adds) {
    for (long j = 0; j < columns; j += 16) {
        long i = 0;
        for (; i + 6 <= rows; i += 6)
            product_tile<6, 2>(depth, a.data + i * a.row, a.row, a.column, b + j, below, c + i * under + j, under, adds);
        for (; i + 2 <= rows; i += 2)
            product_tile<2, 2>(depth, a.data + i * a.row, a.row, a.column, b + j, below, c + i * under + j, under, adds);
        for (; i < rows; i++) product_tile<1, 2>(depth, a.data + i * a.row, a.row, a.column, b + j, below, c + i * under + j, under, adds);
    }
}

}  // namespace SIGHTLINE_ISA
