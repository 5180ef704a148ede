// C (+)= A B for matrices that lie in the caches: B in rows of a multiple of 16 numbers, A with any strides (so that Aᵀ is as good).
#pragma once
#include <type_traits>

#include "pairs.h"

namespace SIGHTLINE_ISA {

template <int ROWS>
inline void product_tile(long depth, const float* a, long row, long column, const float* b, long below, float* c, long under, bool adds) {
    Pair sums[ROWS];
    for (int r = 0; r < ROWS; r++) sums[r] = adds ? load_pair(c + r * under) : no_pair();
    for (long k = 0; k < depth; k++, a += column, b += below) {
        const Pair right = load_pair(b);
        for (int r = 0; r < ROWS; r++) sums[r] = fma(both(a[r * row]), right, sums[r]);
    }
    for (int r = 0; r < ROWS; r++) store(c + r * under, sums[r]);
}

struct Matrix {  // a[i, j] = data[i · row + j · column]
    const float* data;
    long row, column = 1;
};

inline void product(long rows, long columns, long depth, Matrix a, const float* b, long below, float* c, long under, bool adds) {
    for (long j = 0; j < columns; j += 16) {
        long i = 0;
        auto many = [&](auto some) {
            for (; i + some <= rows; i += some)
                product_tile<some>(depth, a.data + i * a.row, a.row, a.column, b + j, below, c + i * under + j, under, adds);
        };
        many(std::integral_constant<int, ROWS_AT_ONCE>());
        many(std::integral_constant<int, 2>());
        many(std::integral_constant<int, 1>());
    }
}

}  // namespace SIGHTLINE_ISA
