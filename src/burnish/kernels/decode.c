/* What a decoding step does between its matrix products: norms, rotation, attention over cached keys, activation.
 *
 * Built by build.py with the machine's own compiler, once with -DBFLOAT16=0 and once with -DBFLOAT16=1, which is the
 * type of states and weights (`element`). Caches, sums and everything in between are float32. Where transformers rounds
 * to the element type, so does this. Vectors are written in the vector extension of GCC and Clang, so that one source
 * fits every processor, and no option that lets the compiler reorder sums is needed.
 *
 * What a row gets does not depend on the rows beside it: every sum has an order of its own.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t whole_lanes __attribute__((vector_size(4 * LANES)));

#if BFLOAT16
typedef uint16_t element;
typedef uint16_t half_lanes __attribute__((vector_size(2 * LANES)));
typedef uint32_t bit_lanes __attribute__((vector_size(4 * LANES)));

INLINE float load(element stored) {
    uint32_t bits = (uint32_t)stored << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

/* To the nearest, ties to even; what is no number stays none. */
INLINE element store(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return number != number ? 0x7fc0 : (element)rounded;
}

INLINE lanes load_elements(const element *from) {
    half_lanes stored;
    memcpy(&stored, from, sizeof stored);
    return (lanes)(__builtin_convertvector(stored, bit_lanes) << 16);
}

INLINE void store_elements(element *to, lanes numbers) {
    bit_lanes bits = (bit_lanes)numbers, none = (bit_lanes)(numbers != numbers);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    half_lanes stored = __builtin_convertvector((bits & ~none) | (none & 0x7fc0), half_lanes);
    memcpy(to, &stored, sizeof stored);
}
#else
typedef float element;

INLINE float load(element stored) { return stored; }

INLINE element store(float number) { return number; }

INLINE lanes load_elements(const element *from) {
    lanes loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

INLINE void store_elements(element *to, lanes numbers) { memcpy(to, &numbers, sizeof numbers); }
#endif

INLINE lanes load_lanes(const float *from) {
    lanes loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

INLINE void store_lanes(float *to, lanes stored) { memcpy(to, &stored, sizeof stored); }

INLINE float rounded(float number) { return load(store(number)); }

INLINE float highest_lane(lanes parts) {
    float tops[LANES];
    store_lanes(tops, parts);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) tops[i] = tops[i + half] > tops[i] ? tops[i + half] : tops[i];
    return tops[0];
}

INLINE lanes rounded_lanes(lanes numbers) {
    element stored[LANES];
    store_elements(stored, numbers);
    return load_elements(stored);
}

INLINE float sum_lanes(lanes parts) {
    float sums[LANES];
    store_lanes(sums, parts);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0];
}

/* e^x to 2 units in the last place, for x that is at most 0 by more than rounding or not a number; below -87 it is
 * 1e-38. x = n ln 2 + r, and e^r is its series to the seventh term. */
INLINE lanes exp_lanes(lanes x) {
    const lanes zero = {0}, lowest = zero - 87.0f, highest = zero + 88.0f;
    whole_lanes low = x < lowest, high = x > highest;
    x = (lanes)(((whole_lanes)lowest & low) | ((whole_lanes)x & ~low));
    x = (lanes)(((whole_lanes)highest & high) | ((whole_lanes)x & ~high));
    lanes shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum's last bits are n */
    lanes n = shifted - 12582912.0f;
    lanes r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln 2 in two parts, the first with few bits */
    lanes series = r * (1.0f / 5040) + (1.0f / 720);
    series = series * r + (1.0f / 120);
    series = series * r + (1.0f / 24);
    series = series * r + (1.0f / 6);
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    whole_lanes power = ((whole_lanes)shifted << 23) + (127 << 23);
    return series * (lanes)power;
}

/* RMS norm of `size` numbers (Zhang and Sennrich 2019, arXiv:1910.07467): the mean square in float32. */
INLINE void normalise(const element *from, const element *weight, int64_t size, float epsilon, element *to) {
    lanes squares = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        lanes x = load_elements(from + i);
        squares += x * x;
    }
    float sum = sum_lanes(squares);
    for (; i < size; i++) sum += load(from[i]) * load(from[i]);
    float shrink = 1.0f / sqrtf(sum / (float)size + epsilon);
    for (i = 0; i < size; i++) to[i] = store(load(weight[i]) * rounded(load(from[i]) * shrink));
}

/* states (rows, size) += more, where there is more; normed = their norm times weight. */
void add_and_normalise(
    element *states, const element *more, const element *weight, element *normed, int64_t rows, int64_t size,
    float epsilon, int64_t threads
) {
#pragma omp parallel for num_threads(threads) if (rows * size > 16384)
    for (int64_t row = 0; row < rows; row++) {
        element *state = states + row * size;
        if (more)
            for (int64_t i = 0; i < size; i++) state[i] = store(load(state[i]) + load(more[row * size + i]));
        normalise(state, weight, size, epsilon, normed + row * size);
    }
}

/* x / (1 + e^-x), by e^-|x|, which cannot overflow. */
INLINE lanes silu(lanes x) {
    const lanes zero = {0}, one = zero + 1.0f;
    whole_lanes negative = x < zero;
    lanes e = exp_lanes((lanes)((whole_lanes)x | (int32_t)0x80000000));
    lanes above = (lanes)(((whole_lanes)e & negative) | ((whole_lanes)one & ~negative));
    return x * above / (one + e);
}

/* (rows, 2 size): gate beside up; activated (rows, size) = silu(gate) * up (Shazeer 2020, arXiv:2002.05202). */
void gate(const element *gate_and_up, element *activated, int64_t rows, int64_t size, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * size > 8192)
    for (int64_t row = 0; row < rows; row++) {
        const element *gates = gate_and_up + row * 2 * size, *ups = gates + size;
        element *to = activated + row * size;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES)
            store_elements(to + i, rounded_lanes(silu(load_elements(gates + i))) * load_elements(ups + i));
        for (; i < size; i++) {
            lanes one = {load(gates[i])};
            to[i] = store(rounded(silu(one)[0]) * load(ups[i]));
        }
    }
}

/* What one decoding step's attention is about, the same for all layers. Addresses are of float32.
 *
 * A cache holds keys, then values, of one prompt or of one row: per layer and key head, keys as blocks of LANES tokens
 * (blocks, width, LANES) and values (tokens, width), for `capacity` tokens. `width` is the head size rounded up to
 * LANES; what is beyond the head size is 0. Tiles are rows of one prompt: (first place in `order`, rows, prompt). */
struct step {
    int64_t rows, heads, key_heads, size, width, layers, tiles, threads, scratch_size;
    const int64_t *order, *tiles_T3;
    const int64_t *prompt_P, *prompt_capacity_P, *prompt_length_P;
    const int64_t *own_R, *own_capacity_R, *column_R;
    const float *cosine_RD, *sine_RD;
    float *scratch;
    float scaling, epsilon;
};

INLINE float *cached_keys(const struct step *s, int64_t address, int64_t capacity, int64_t layer, int64_t head) {
    return (float *)address + (layer * s->key_heads + head) * capacity * s->width;
}

INLINE float *cached_values(const struct step *s, int64_t address, int64_t capacity, int64_t layer, int64_t head) {
    return cached_keys(s, address, capacity, s->layers + layer, head);
}

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

/* Positions by rotation (Su et al. 2021, arXiv:2104.09864): halves (x1, x2) turn with (-x2, x1). */
INLINE void rotate(
    const struct step *s, int64_t row, const element *from, const element *norm, float factor, float *to
) {
    element normed[s->size];
    if (norm) {
        normalise(from, norm, s->size, s->epsilon, normed);
        from = normed;
    }
    const float *cosine = s->cosine_RD + row * s->size, *sine = s->sine_RD + row * s->size;
    int64_t half = s->size / 2;
    for (int64_t i = 0; i < half; i++) {
        float x1 = load(from[i]), x2 = load(from[i + half]);
        to[i] = factor * rounded(rounded(x1 * cosine[i]) - rounded(x2 * sine[i]));
        to[i + half] = factor * rounded(rounded(x2 * cosine[i + half]) + rounded(x1 * sine[i + half]));
    }
    for (int64_t i = s->size; i < s->width; i++) to[i] = 0;
}

/* The rows of one tile, for one key head: write the new token's key and value, and see what prompt and row hold. */
static void attend_tile(
    const struct step *s, int64_t layer, int64_t tile, int64_t key_head, const element *everything_RXD,
    const element *query_norm, const element *key_norm, element *outputs_RHD, float *scratch
) {
    int64_t first = s->tiles_T3[3 * tile], rows = s->tiles_T3[3 * tile + 1], prompt = s->tiles_T3[3 * tile + 2];
    int64_t shared = s->heads / s->key_heads, queries = rows * shared, size = s->size, width = s->width;
    int64_t seen = s->prompt_length_P[prompt], seen_blocks = (seen + LANES - 1) / LANES, longest = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t column = s->column_R[s->order[first + i]];
        longest = column > longest ? column : longest;
    }
    int64_t stride = (seen_blocks + longest / LANES + 1) * LANES;
    float *query = scratch, *output = query + queries * width, *scores = output + queries * width;

    for (int64_t i = 0; i < rows; i++) {
        int64_t row = s->order[first + i], capacity = s->own_capacity_R[row], column = s->column_R[row];
        const element *parts = everything_RXD + row * (s->heads + 2 * s->key_heads) * size;
        for (int64_t q = 0; q < shared; q++)
            rotate(s, row, parts + (key_head * shared + q) * size, query_norm, s->scaling, query + (i * shared + q) * width);
        float key[width];
        rotate(s, row, parts + (s->heads + key_head) * size, key_norm, 1.0f, key);
        float *keys = cached_keys(s, s->own_R[row], capacity, layer, key_head) + column / LANES * LANES * width;
        for (int64_t d = 0; d < width; d++) keys[d * LANES + column % LANES] = key[d];
        float *value = cached_values(s, s->own_R[row], capacity, layer, key_head) + column * width;
        const element *new_value = parts + (s->heads + s->key_heads + key_head) * size;
        for (int64_t d = 0; d < width; d++) value[d] = d < size ? load(new_value[d]) : 0;
    }

    if (seen_blocks) {
        const float *keys = cached_keys(s, s->prompt_P[prompt], s->prompt_capacity_P[prompt], layer, key_head);
        score(query, queries, keys, seen_blocks, width, scores, stride);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = s->order[first + i], tokens = s->column_R[row] + 1, blocks = (tokens + LANES - 1) / LANES;
        const float *keys = cached_keys(s, s->own_R[row], s->own_capacity_R[row], layer, key_head);
        float *row_scores = scores + i * shared * stride;
        score(query + i * shared * width, shared, keys, blocks, width, row_scores + seen_blocks * LANES, stride);
        for (int64_t q = 0; q < shared; q++) {
            float *line = row_scores + q * stride, *own = line + seen_blocks * LANES;
            for (int64_t t = seen; t < seen_blocks * LANES; t++) line[t] = -INFINITY;
            for (int64_t t = tokens; t < blocks * LANES; t++) own[t] = -INFINITY;
            lanes highest = load_lanes(own), sums = {0};
            for (int64_t t = 0; t < (seen_blocks + blocks) * LANES; t += LANES) {
                lanes x = load_lanes(line + t);
                whole_lanes above = x > highest;
                highest = (lanes)(((whole_lanes)x & above) | ((whole_lanes)highest & ~above));
            }
            float top = highest_lane(highest);
            for (int64_t t = 0; t < (seen_blocks + blocks) * LANES; t += LANES) {
                lanes e = exp_lanes(load_lanes(line + t) - top);
                store_lanes(line + t, e);
                sums += e;
            }
            float shrink = 1.0f / sum_lanes(sums);
            for (int64_t t = 0; t < (seen_blocks + blocks) * LANES; t += LANES)
                store_lanes(line + t, load_lanes(line + t) * shrink);
        }
    }

    memset(output, 0, sizeof(float) * queries * width);
    if (seen) {
        const float *values = cached_values(s, s->prompt_P[prompt], s->prompt_capacity_P[prompt], layer, key_head);
        mix(scores, queries, stride, values, seen, width, output);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = s->order[first + i];
        const float *values = cached_values(s, s->own_R[row], s->own_capacity_R[row], layer, key_head);
        float *row_scores = scores + i * shared * stride + seen_blocks * LANES;
        mix(row_scores, shared, stride, values, s->column_R[row] + 1, width, output + i * shared * width);
        element *to = outputs_RHD + (row * s->heads + key_head * shared) * size;
        for (int64_t q = 0; q < shared; q++)
            for (int64_t d = 0; d < size; d++) to[q * size + d] = store(output[(i * shared + q) * width + d]);
    }
}

int omp_get_thread_num(void);

/* everything_RXD: queries, keys and values of the new tokens side by side; the norms of heads may be absent. */
void attend(
    const struct step *s, int64_t layer, const element *everything_RXD, const element *query_norm,
    const element *key_norm, element *outputs_RHD
) {
    int64_t items = s->tiles * s->key_heads;
#pragma omp parallel for num_threads(s->threads) schedule(dynamic) if (items > 1)
    for (int64_t item = 0; item < items; item++)
        attend_tile(
            s, layer, item / s->key_heads, item % s->key_heads, everything_RXD, query_norm, key_norm, outputs_RHD,
            s->scratch + omp_get_thread_num() * s->scratch_size
        );
}
