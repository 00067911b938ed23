/* Attention of packed rows in a training pass, forwards and backwards.
 *
 * Each token has a slot. A stretch is a list of slots with causal attention among themselves, and a group is a few
 * stretches. If the group's first stretch is a prompt that the others share, they see all of it as well. Queries,
 * outputs and their gradients are (slots, heads, size), keys and values (slots, key heads, size). One thread handles
 * one head of one group. The backward pass recomputes weights from the stored log-sum-exp of each query, as in
 * FlashAttention (Dao et al. 2022, arXiv:2205.14135): d score = weight (d weight - d output . output).
 */
#include "blocks.h"

#define TILE 32

int omp_get_thread_num(void);

struct attention {
    int64_t groups, heads, key_heads, size, width, threads, scratch_size, tokens;
    const int64_t *slots, *starts, *group_starts, *shares;
    float *scratch;
    float scaling;
};

/* Keys or values of one stretch in two layouts: blocks of BLOCK tokens (blocks, width, BLOCK), and (tokens, width). */
struct side {
    float *blocks, *rows;
};

/* Keys and values of one stretch, and where their gradients are accumulated (backward pass only). */
struct seen {
    int64_t tokens, padded;
    struct side keys, values;
    float *grad_keys, *grad_values;
};

INLINE int64_t pad(int64_t tokens) { return (tokens + BLOCK - 1) / BLOCK * BLOCK; }

/* Copies one head of the rows in `slots` as float32, times factor, padded with 0 to `width` columns. */
static void gather(
    const element *from, const int64_t *slots, int64_t tokens, int64_t heads, int64_t head, int64_t size, int64_t width,
    float factor, float *to
) {
    for (int64_t t = 0; t < tokens; t++) {
        const element *row = from + (slots[t] * heads + head) * size;
        for (int64_t d = 0; d < size; d++) to[t * width + d] = factor * load(row[d]);
        for (int64_t d = size; d < width; d++) to[t * width + d] = 0;
    }
}

static void to_blocks(const float *rows, int64_t tokens, int64_t width, float *blocks) {
    for (int64_t first = 0; first < tokens; first += BLOCK)
        for (int64_t d = 0; d < width; d++)
            for (int64_t t = first; t < first + BLOCK; t++) *blocks++ = t < tokens ? rows[t * width + d] : 0;
}

static float *take(float **scratch, int64_t count) {
    float *taken = *scratch;
    *scratch += count;
    return taken;
}

static struct seen look(
    const struct attention *a, const element *keys, const element *values, const int64_t *slots, int64_t tokens,
    int64_t head, int backwards, float **scratch
) {
    int64_t width = a->width, padded = pad(tokens), count = padded * width;
    int64_t key_head = head / (a->heads / a->key_heads);
    struct seen s = {.tokens = tokens, .padded = padded};
    s.keys.rows = take(scratch, count);
    s.keys.blocks = take(scratch, count);
    s.values.rows = take(scratch, count);
    gather(keys, slots, tokens, a->key_heads, key_head, a->size, width, 1.0f, s.keys.rows);
    gather(values, slots, tokens, a->key_heads, key_head, a->size, width, 1.0f, s.values.rows);
    to_blocks(s.keys.rows, tokens, width, s.keys.blocks);
    if (backwards) {
        s.values.blocks = take(scratch, count);
        to_blocks(s.values.rows, tokens, width, s.values.blocks);
        s.grad_keys = take(scratch, 2 * count);
        s.grad_values = s.grad_keys + count;
        memset(s.grad_keys, 0, sizeof(float) * 2 * count);
    }
    return s;
}

/* Masks scores causally: query q sees tokens up to first + q, and no padding. */
static void hide(float *scores, int64_t queries, int64_t stride, int64_t first, int64_t padded) {
    for (int64_t q = 0; q < queries; q++)
        for (int64_t t = first + q + 1; t < padded; t++) scores[q * stride + t] = -INFINITY;
}

/* Scores of a tile of queries: columns of the prompt, then columns of their own stretch up to the last query's token.
 * Returns the number of columns. */
static int64_t score_tile(
    const struct seen *prompt, const struct seen *own, const float *query, int64_t queries, int64_t first, int64_t width,
    float *scores, int64_t stride
) {
    int64_t before = prompt ? prompt->padded : 0, after = pad(first + queries);
    if (before) {
        score(query, queries, prompt->keys.blocks, before / BLOCK, width, scores, stride);
        for (int64_t q = 0; q < queries; q++)
            for (int64_t t = prompt->tokens; t < before; t++) scores[q * stride + t] = -INFINITY;
    }
    score(query, queries, own->keys.blocks, after / BLOCK, width, scores + before, stride);
    hide(scores + before, queries, stride, first, after);
    return before + after;
}

static void forward_stretch(
    const struct attention *a, const struct seen *prompt, const struct seen *own, const int64_t *slots, int64_t head,
    const element *queries, element *outputs, float *sums, float *scratch
) {
    int64_t width = a->width, stride = (prompt ? prompt->padded : 0) + own->padded;
    float *query = take(&scratch, TILE * width), *output = take(&scratch, TILE * width), *scores = scratch;
    for (int64_t first = 0; first < own->tokens; first += TILE) {
        int64_t count = own->tokens - first < TILE ? own->tokens - first : TILE;
        gather(queries, slots + first, count, a->heads, head, a->size, width, a->scaling, query);
        int64_t columns = score_tile(prompt, own, query, count, first, width, scores, stride);
        for (int64_t q = 0; q < count; q++) sums[slots[first + q] * a->heads + head] = soften(scores + q * stride, columns);
        memset(output, 0, sizeof(float) * count * width);
        if (prompt) mix(scores, count, stride, prompt->values.rows, prompt->tokens, width, output);
        float *own_scores = scores + (prompt ? prompt->padded : 0);
        mix(own_scores, count, stride, own->values.rows, first + count, width, output);
        for (int64_t q = 0; q < count; q++) {
            element *to = outputs + (slots[first + q] * a->heads + head) * a->size;
            for (int64_t d = 0; d < a->size; d++) to[d] = store(output[q * width + d]);
        }
    }
}

/* grads[t + i] += sum over queries of weights[q][t + i] lines[q], for T tokens and the columns in V vectors. */
#define SPREAD(T, V)                                                                                                   \
    {                                                                                                                  \
        float *to = grads + t * width + c;                                                                             \
        lanes sums[T][V], line[V];                                                                                     \
        EACH(i, T) EACH(v, V) sums[i][v] = load_lanes(to + i * width + v * LANES);                                     \
        for (int64_t q = 0; q < queries; q++) {                                                                        \
            EACH(v, V) line[v] = load_lanes(lines + q * width + c + v * LANES);                                        \
            EACH(i, T) EACH(v, V) sums[i][v] += weights[q * stride + t + i] * line[v];                                 \
        }                                                                                                              \
        EACH(i, T) EACH(v, V) store_lanes(to + i * width + v * LANES, sums[i][v]);                                     \
    }

/* Tokens go by an even number, so the last tile may have columns of padding, whose weights are 0. */
#define SPREAD_TOKENS(V)                                                                                               \
    {                                                                                                                  \
        int64_t t = 0;                                                                                                 \
        for (; t + 4 < tokens; t += 6) SPREAD(6, V)                                                                    \
        for (; t + 2 < tokens; t += 4) SPREAD(4, V)                                                                    \
        for (; t < tokens; t += 2) SPREAD(2, V)                                                                        \
    }

static void spread(
    const float *weights, int64_t queries, int64_t stride, const float *lines, int64_t tokens, int64_t width, float *grads
) {
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES) SPREAD_TOKENS(2)
    for (; c < width; c += LANES) SPREAD_TOKENS(1)
}

static void backward_stretch(
    const struct attention *a, const struct seen *prompt, const struct seen *own, const int64_t *slots, int64_t head,
    const element *queries, const element *outputs, const float *sums, const element *grad_outputs,
    element *grad_queries, float *scratch
) {
    int64_t width = a->width, before = prompt ? prompt->padded : 0, stride = before + own->padded;
    float *query = take(&scratch, TILE * width), *output = take(&scratch, TILE * width);
    float *grad = take(&scratch, TILE * width), *grad_query = take(&scratch, TILE * width);
    float *weights = take(&scratch, TILE * stride), *grad_scores = scratch;
    for (int64_t first = 0; first < own->tokens; first += TILE) {
        int64_t count = own->tokens - first < TILE ? own->tokens - first : TILE, tokens = first + count;
        gather(queries, slots + first, count, a->heads, head, a->size, width, a->scaling, query);
        gather(outputs, slots + first, count, a->heads, head, a->size, width, 1.0f, output);
        gather(grad_outputs, slots + first, count, a->heads, head, a->size, width, 1.0f, grad);
        int64_t columns = score_tile(prompt, own, query, count, first, width, weights, stride);
        if (prompt) score(grad, count, prompt->values.blocks, before / BLOCK, width, grad_scores, stride);
        score(grad, count, own->values.blocks, pad(tokens) / BLOCK, width, grad_scores + before, stride);
        for (int64_t q = 0; q < count; q++) {
            lanes products = {0};
            for (int64_t d = 0; d < width; d += LANES)
                products += load_lanes(output + q * width + d) * load_lanes(grad + q * width + d);
            float shift = sum_lanes(products), sum = sums[slots[first + q] * a->heads + head];
            for (int64_t t = q * stride; t < q * stride + columns; t += LANES) {
                lanes weight = exp_lanes(load_lanes(weights + t) - sum);
                store_lanes(weights + t, weight);
                store_lanes(grad_scores + t, weight * (load_lanes(grad_scores + t) - shift));
            }
        }
        memset(grad_query, 0, sizeof(float) * count * width);
        if (prompt) {
            mix(grad_scores, count, stride, prompt->keys.rows, prompt->tokens, width, grad_query);
            spread(grad_scores, count, stride, query, prompt->tokens, width, prompt->grad_keys);
            spread(weights, count, stride, grad, prompt->tokens, width, prompt->grad_values);
        }
        mix(grad_scores + before, count, stride, own->keys.rows, tokens, width, grad_query);
        spread(grad_scores + before, count, stride, query, tokens, width, own->grad_keys);
        spread(weights + before, count, stride, grad, tokens, width, own->grad_values);
        for (int64_t q = 0; q < count; q++) {
            element *to = grad_queries + (slots[first + q] * a->heads + head) * a->size;
            for (int64_t d = 0; d < a->size; d++) to[d] = store(a->scaling * grad_query[q * width + d]);
        }
    }
}

/* Writes out one query head's part of the gradients of keys and values, float32 (slots, heads, size). */
static void give(
    const struct attention *a, const struct seen *own, const int64_t *slots, int64_t head, float *grad_keys,
    float *grad_values
) {
    for (int64_t t = 0; t < own->tokens; t++) {
        int64_t at = (slots[t] * a->heads + head) * a->size;
        memcpy(grad_keys + at, own->grad_keys + t * a->width, sizeof(float) * a->size);
        memcpy(grad_values + at, own->grad_values + t * a->width, sizeof(float) * a->size);
    }
}

/* Computes outputs, and in `sums` the log-sum-exp of each query's scores (slots, heads). */
void attend_forward(
    const struct attention *a, const element *queries, const element *keys, const element *values, element *outputs,
    float *sums
) {
#pragma omp parallel for num_threads(a->threads) schedule(dynamic) if (a->tokens > 2 * TILE)
    for (int64_t item = 0; item < a->groups * a->heads; item++) {
        int64_t group = item / a->heads, head = item % a->heads;
        float *scratch = a->scratch + omp_get_thread_num() * a->scratch_size;
        struct seen prompt;
        for (int64_t n = a->group_starts[group]; n < a->group_starts[group + 1]; n++) {
            const int64_t *slots = a->slots + a->starts[n];
            int64_t tokens = a->starts[n + 1] - a->starts[n];
            int is_shared = a->shares[group] && n == a->group_starts[group];
            int sees_prompt = a->shares[group] && !is_shared;
            float *rest = scratch;
            struct seen own = look(a, keys, values, slots, tokens, head, 0, &rest);
            forward_stretch(a, sees_prompt ? &prompt : 0, &own, slots, head, queries, outputs, sums, rest);
            if (is_shared) {
                prompt = own;
                scratch = rest;
            }
        }
    }
}

void attend_backward(
    const struct attention *a, const element *queries, const element *keys, const element *values,
    const element *outputs, const float *sums, const element *grad_outputs, element *grad_queries, float *grad_keys,
    float *grad_values
) {
#pragma omp parallel for num_threads(a->threads) schedule(dynamic) if (a->tokens > 2 * TILE)
    for (int64_t item = 0; item < a->groups * a->heads; item++) {
        int64_t group = item / a->heads, head = item % a->heads, begin = a->group_starts[group];
        float *scratch = a->scratch + omp_get_thread_num() * a->scratch_size;
        struct seen prompt;
        for (int64_t n = begin; n < a->group_starts[group + 1]; n++) {
            const int64_t *slots = a->slots + a->starts[n];
            int64_t tokens = a->starts[n + 1] - a->starts[n];
            int is_shared = a->shares[group] && n == begin;
            int sees_prompt = a->shares[group] && !is_shared;
            float *rest = scratch;
            struct seen own = look(a, keys, values, slots, tokens, head, 1, &rest);
            backward_stretch(
                a, sees_prompt ? &prompt : 0, &own, slots, head, queries, outputs, sums, grad_outputs, grad_queries, rest
            );
            if (is_shared) {
                prompt = own;
                scratch = rest;
            } else
                give(a, &own, slots, head, grad_keys, grad_values);
        }
        if (a->shares[group]) give(a, &prompt, a->slots + a->starts[begin], head, grad_keys, grad_values);
    }
}
