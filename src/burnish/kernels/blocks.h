/* The parts of attention: products of a few queries with blocks of keys, softmax, products of weights with values. */
#include "elements.h"

/* A tile is Q queries by V vectors, whose sums stay in registers: 16 of the 32 registers of AVX-512 and NEON, 12 of the
 * 16 of AVX, 8 of those of SSE, which needs others for products. Every number of a query has to be loaded and broadcast
 * to a vector: once for all V. USE(Q, V) is applied from the most queries down to one. Remaining vectors are taken by
 * 4, 2 and 1. */
#if LANES == 16
#define TILES(USE) USE(8, 2) USE(4, 4) USE(2, 4) USE(1, 4)
#elif __ARM_NEON
#define TILES(USE) USE(4, 4) USE(2, 4) USE(1, 8)
#elif __AVX__
#define TILES(USE) USE(6, 2) USE(4, 2) USE(2, 4) USE(1, 8)
#else
#define TILES(USE) USE(2, 4) USE(1, 8)
#endif

#define SOME_USE static __attribute__((unused))

/* Applies DO to all of `vectors`, which form whole blocks. */
#define ALL_VECTORS(DO, Q, V)                                                                                          \
    for (; at + V <= vectors; at += V) DO(Q, V)                                                                        \
    for (; V > 4 && at + 4 <= vectors; at += 4) DO(Q, 4)                                                               \
    for (; VECTORS < 4 && at + 2 <= vectors; at += 2) DO(Q, 2)                                                         \
    for (; VECTORS == 1 && at < vectors; at++) DO(Q, 1)

/* scores[q][t] = queries[q] . key of token t, for the tokens in vectors at .. at + V of the blocks of keys. */
#define SCORE(Q, V)                                                                                                    \
    {                                                                                                                  \
        const float *from = keys + at / VECTORS * width * BLOCK + at % VECTORS * LANES;                                \
        lanes sums[Q][V], key[V];                                                                                      \
        EACH(q, Q) EACH(v, V) sums[q][v] = (lanes){0};                                                                 \
        for (int64_t d = 0; d < width; d++) {                                                                          \
            EACH(v, V) key[v] = load_lanes(from + (v / VECTORS * width + d) * BLOCK + v % VECTORS * LANES);            \
            EACH(q, Q) EACH(v, V) sums[q][v] += queries[q * width + d] * key[v];                                       \
        }                                                                                                              \
        EACH(q, Q) EACH(v, V) store_lanes(scores + q * stride + (at + v) * LANES, sums[q][v]);                         \
    }

#define SCORE_QUERIES(Q, V)                                                                                            \
    for (; left >= Q; left -= Q, queries += Q * width, scores += Q * stride) {                                         \
        int64_t at = 0;                                                                                                \
        ALL_VECTORS(SCORE, Q, V)                                                                                       \
    }

/* scores (queries, stride) = queries (left, width) . keys of `blocks` blocks (blocks, width, BLOCK). */
SOME_USE void score(
    const float *queries, int64_t left, const float *keys, int64_t blocks, int64_t width, float *scores, int64_t stride
) {
    int64_t vectors = blocks * VECTORS;
    TILES(SCORE_QUERIES)
}

/* outputs[q] += sum over tokens of weights[q][t] values[t], for the columns in vectors at .. at + V. */
#define MIX(Q, V)                                                                                                      \
    {                                                                                                                  \
        const float *from = values + at * LANES;                                                                       \
        float *to = outputs + at * LANES;                                                                              \
        lanes sums[Q][V], value[V];                                                                                    \
        EACH(q, Q) EACH(v, V) sums[q][v] = load_lanes(to + q * width + v * LANES);                                     \
        for (int64_t t = 0; t < tokens; t++) {                                                                         \
            EACH(v, V) value[v] = load_lanes(from + t * width + v * LANES);                                            \
            EACH(q, Q) EACH(v, V) sums[q][v] += weights[q * stride + t] * value[v];                                    \
        }                                                                                                              \
        EACH(q, Q) EACH(v, V) store_lanes(to + q * width + v * LANES, sums[q][v]);                                     \
    }

#define MIX_QUERIES(Q, V)                                                                                              \
    for (; left >= Q; left -= Q, weights += Q * stride, outputs += Q * width) {                                        \
        int64_t at = 0;                                                                                                \
        ALL_VECTORS(MIX, Q, V)                                                                                         \
    }

/* outputs (queries, width) += weights (left, stride) times values (tokens, width). */
SOME_USE void mix(
    const float *weights, int64_t left, int64_t stride, const float *values, int64_t tokens, int64_t width,
    float *outputs
) {
    int64_t vectors = width / LANES;
    TILES(MIX_QUERIES)
}

/* Replaces `count` scores (a multiple of LANES) by their softmax, and returns their log-sum-exp. */
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
