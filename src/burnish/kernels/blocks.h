/* Products of a few queries with blocks of keys, of their weights with values, and the softmax between. */
#include "elements.h"

/* scores[q][16 b ...] = queries[q] . keys of block b, for Q queries and B blocks at once, whose sums stay in registers. */
#define SCORE(Q, B)                                                                                                    \
    INLINE void score_##Q##_##B(                                                                                       \
        const float *queries, const float *keys, int64_t width, float *scores, int64_t stride                          \
    ) {                                                                                                                \
        lanes sums[Q][B];                                                                                              \
        for (int q = 0; q < Q; q++)                                                                                    \
            for (int b = 0; b < B; b++) sums[q][b] = (lanes){0};                                                       \
        for (int64_t d = 0; d < width; d++)                                                                            \
            for (int b = 0; b < B; b++) {                                                                              \
                lanes key = load_lanes(keys + (b * width + d) * LANES);                                                \
                for (int q = 0; q < Q; q++) sums[q][b] += queries[q * width + d] * key;                                \
            }                                                                                                          \
        for (int q = 0; q < Q; q++)                                                                                    \
            for (int b = 0; b < B; b++) store_lanes(scores + q * stride + b * LANES, sums[q][b]);                      \
    }
SCORE(8, 1)
SCORE(8, 2)
SCORE(4, 1)
SCORE(4, 2)
SCORE(4, 4)
SCORE(2, 1)
SCORE(2, 2)
SCORE(2, 4)
SCORE(1, 1)
SCORE(1, 2)
SCORE(1, 4)

#define SCORE_BLOCKS(Q, B)                                                                                             \
    for (; b + B <= blocks; b += B) score_##Q##_##B(queries, keys + b * LANES * width, width, scores + b * LANES, stride);

#define SCORE_ALL(Q, MOST)                                                                                             \
    for (; left >= Q; left -= Q, queries += Q * width, scores += Q * stride) {                                         \
        int64_t b = 0;                                                                                                 \
        SCORE_BLOCKS(Q, MOST)                                                                                          \
        SCORE_BLOCKS(Q, 2)                                                                                             \
        SCORE_BLOCKS(Q, 1)                                                                                             \
    }

static void score(
    const float *queries, int64_t left, const float *keys, int64_t blocks, int64_t width, float *scores, int64_t stride
) {
    SCORE_ALL(8, 2)
    SCORE_ALL(4, 4)
    SCORE_ALL(2, 4)
    SCORE_ALL(1, 4)
}

/* outputs[q] += sum over tokens of weights[q][t] values[t], for Q queries and C x LANES columns at once. */
#define MIX(Q, C)                                                                                                      \
    INLINE void mix_##Q##_##C(                                                                                         \
        const float *weights, int64_t stride, const float *values, int64_t tokens, int64_t width, float *outputs       \
    ) {                                                                                                                \
        lanes sums[Q][C];                                                                                              \
        for (int q = 0; q < Q; q++)                                                                                    \
            for (int c = 0; c < C; c++) sums[q][c] = load_lanes(outputs + q * width + c * LANES);                      \
        for (int64_t t = 0; t < tokens; t++)                                                                           \
            for (int c = 0; c < C; c++) {                                                                              \
                lanes value = load_lanes(values + t * width + c * LANES);                                              \
                for (int q = 0; q < Q; q++) sums[q][c] += weights[q * stride + t] * value;                             \
            }                                                                                                          \
        for (int q = 0; q < Q; q++)                                                                                    \
            for (int c = 0; c < C; c++) store_lanes(outputs + q * width + c * LANES, sums[q][c]);                      \
    }
MIX(4, 1)
MIX(4, 2)
MIX(4, 4)
MIX(2, 1)
MIX(2, 2)
MIX(2, 4)
MIX(1, 1)
MIX(1, 2)
MIX(1, 4)

#define MIX_COLUMNS(Q, C)                                                                                              \
    for (; c + C * LANES <= width; c += C * LANES) mix_##Q##_##C(weights, stride, values + c, tokens, width, outputs + c);

#define MIX_ALL(Q)                                                                                                     \
    for (; left >= Q; left -= Q, weights += Q * stride, outputs += Q * width) {                                        \
        int64_t c = 0;                                                                                                 \
        MIX_COLUMNS(Q, 4)                                                                                              \
        MIX_COLUMNS(Q, 2)                                                                                              \
        MIX_COLUMNS(Q, 1)                                                                                              \
    }

static void mix(
    const float *weights, int64_t left, int64_t stride, const float *values, int64_t tokens, int64_t width,
    float *outputs
) {
    MIX_ALL(4)
    MIX_ALL(2)
    MIX_ALL(1)
}

/* The softmax of `count` scores, a multiple of LANES, in their place; the logarithm of what their exponentials sum to. */
INLINE float soften(float *scores, int64_t count) {
    lanes highest = load_lanes(scores), sums = {0};
    for (int64_t t = LANES; t < count; t += LANES) {
        lanes x = load_lanes(scores + t);
        whole_lanes above = x > highest;
        highest = (lanes)(((whole_lanes)x & above) | ((whole_lanes)highest & ~above));
    }
    float top = highest_lane(highest);
    for (int64_t t = 0; t < count; t += LANES) {
        lanes e = exp_lanes(load_lanes(scores + t) - top);
        store_lanes(scores + t, e);
        sums += e;
    }
    float sum = sum_lanes(sums), shrink = 1.0f / sum;
    for (int64_t t = 0; t < count; t += LANES) store_lanes(scores + t, load_lanes(scores + t) * shrink);
    return top + logf(sum);
}
