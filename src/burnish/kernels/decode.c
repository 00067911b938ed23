/* Everything in a decoding step except matrix products: norms, rotation, attention over cached keys, activation.
 *
 * Caches, sums and intermediate results are float32. A row's result does not depend on the other rows in the batch,
 * because the order of every sum is fixed.
 */
#include "blocks.h"

/* RMS norm of `size` numbers (Zhang and Sennrich 2019, arXiv:1910.07467), with the mean square in float32. */
INLINE void normalise(const element *from, const element *weight, int64_t size, float epsilon, element *to) {
    float shrink = 1.0f / sqrtf(sum_of_squares(from, size) / (float)size + epsilon);
    for (int64_t i = 0; i < size; i++) to[i] = store(load(weight[i]) * rounded(load(from[i]) * shrink));
}

/* states (rows, size) += more, unless more is NULL; normed = their RMS norm times weight. */
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

/* activated (rows, size) = silu(gate) * up (Shazeer 2020, arXiv:2002.05202), from (rows, 2 size): gate, then up. */
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

/* The arguments of attention in one decoding step, which are the same for all layers. Addresses point to float32.
 *
 * A cache holds the keys, then the values, of one prompt or of one row. Per layer and key head, it has keys as blocks
 * of BLOCK tokens (blocks, width, BLOCK) and values (tokens, width), for `capacity` tokens. `width` is the head size
 * rounded up to BLOCK, with 0 after the head size. A tile is a set of rows with the same prompt: (index of the first in
 * `order`, number of rows, prompt). */
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

/* Rotary position embedding (Su et al. 2021, arXiv:2104.09864): with x = (x1, x2), x cosine + (-x2, x1) sine. */
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

/* Attention of one tile's rows, for one key head: write the new token's key and value into the row's cache, then attend
 * to the prompt and to the row's own tokens. */
static void attend_tile(
    const struct step *s, int64_t layer, int64_t tile, int64_t key_head, const element *everything_RXD,
    const element *query_norm, const element *key_norm, element *outputs_RHD, float *scratch
) {
    int64_t first = s->tiles_T3[3 * tile], rows = s->tiles_T3[3 * tile + 1], prompt = s->tiles_T3[3 * tile + 2];
    int64_t shared = s->heads / s->key_heads, queries = rows * shared, size = s->size, width = s->width;
    int64_t seen = s->prompt_length_P[prompt], seen_blocks = (seen + BLOCK - 1) / BLOCK, longest = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t column = s->column_R[s->order[first + i]];
        longest = column > longest ? column : longest;
    }
    int64_t stride = (seen_blocks + longest / BLOCK + 1) * BLOCK;
    float *query = scratch, *output = query + queries * width, *scores = output + queries * width;

    for (int64_t i = 0; i < rows; i++) {
        int64_t row = s->order[first + i], capacity = s->own_capacity_R[row], column = s->column_R[row];
        const element *parts = everything_RXD + row * (s->heads + 2 * s->key_heads) * size;
        for (int64_t q = 0; q < shared; q++)
            rotate(s, row, parts + (key_head * shared + q) * size, query_norm, s->scaling, query + (i * shared + q) * width);
        float key[width];
        rotate(s, row, parts + (s->heads + key_head) * size, key_norm, 1.0f, key);
        float *keys = cached_keys(s, s->own_R[row], capacity, layer, key_head) + column / BLOCK * BLOCK * width;
        for (int64_t d = 0; d < width; d++) keys[d * BLOCK + column % BLOCK] = key[d];
        float *value = cached_values(s, s->own_R[row], capacity, layer, key_head) + column * width;
        const element *new_value = parts + (s->heads + s->key_heads + key_head) * size;
        for (int64_t d = 0; d < width; d++) value[d] = d < size ? load(new_value[d]) : 0;
    }

    if (seen_blocks) {
        const float *keys = cached_keys(s, s->prompt_P[prompt], s->prompt_capacity_P[prompt], layer, key_head);
        score(query, queries, keys, seen_blocks, width, scores, stride);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = s->order[first + i], tokens = s->column_R[row] + 1, blocks = (tokens + BLOCK - 1) / BLOCK;
        const float *keys = cached_keys(s, s->own_R[row], s->own_capacity_R[row], layer, key_head);
        float *row_scores = scores + i * shared * stride;
        score(query + i * shared * width, shared, keys, blocks, width, row_scores + seen_blocks * BLOCK, stride);
        for (int64_t q = 0; q < shared; q++) {
            float *line = row_scores + q * stride, *own = line + seen_blocks * BLOCK;
            for (int64_t t = seen; t < seen_blocks * BLOCK; t++) line[t] = -INFINITY;
            for (int64_t t = tokens; t < blocks * BLOCK; t++) own[t] = -INFINITY;
            soften(line, (seen_blocks + blocks) * BLOCK);
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
        float *row_scores = scores + i * shared * stride + seen_blocks * BLOCK;
        mix(row_scores, shared, stride, values, s->column_R[row] + 1, width, output + i * shared * width);
        element *to = outputs_RHD + (row * s->heads + key_head * shared) * size;
        for (int64_t q = 0; q < shared; q++)
            for (int64_t d = 0; d < size; d++) to[q * size + d] = store(output[(i * shared + q) * width + d]);
    }
}

int omp_get_thread_num(void);

/* everything_RXD: queries, keys and values of the new tokens, concatenated. The norms of heads may be NULL. */
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
