/* Everything in a layer of a training pass except matrix products and attention, forwards and backwards.
 *
 * Matrices are (rows, size) and contiguous. Gradients that are summed over rows are float32, with one line per thread.
 */
#include "elements.h"

int omp_get_thread_num(void);

/* sum = states + more (if more is NULL, states are the sum); normed = its RMS norm times weight (Zhang and Sennrich
 * 2019, arXiv:1910.07467). shrink_R gets 1 / (root mean square) of each row, for the backward pass. */
void normalise_forward(
    const element *states, const element *more, const element *weight, element *sum, element *normed, float *shrink_R,
    int64_t rows, int64_t size, float epsilon, int64_t threads
) {
#pragma omp parallel for num_threads(threads) if (rows * size > 16384)
    for (int64_t row = 0; row < rows; row++) {
        const element *from = states + row * size;
        element *to = normed + row * size;
        int64_t i = 0;
        if (more) {
            const element *other = more + row * size;
            element *both = sum + row * size;
            for (; i + LANES <= size; i += LANES)
                store_elements(both + i, load_elements(from + i) + load_elements(other + i));
            for (; i < size; i++) both[i] = store(load(from[i]) + load(other[i]));
            from = both;
        }
        float shrink = 1.0f / sqrtf(sum_of_squares(from, size) / (float)size + epsilon);
        shrink_R[row] = shrink;
        for (i = 0; i + LANES <= size; i += LANES)
            store_elements(to + i, load_elements(weight + i) * rounded_lanes(load_elements(from + i) * shrink));
        for (; i < size; i++) to[i] = store(load(weight[i]) * rounded(load(from[i]) * shrink));
    }
}

/* With n = x s, s = 1 / rms(x) and dn = grad_normed weight:
 * dx = s (dn - n mean(dn n)) + grad_sum; grad_weight += grad_normed n. grad_sum and grad_weight may be NULL. */
void normalise_backward(
    const element *grad_normed, const element *grad_sum, const element *sum, const float *shrink_R,
    const element *weight, element *grad, float *grad_weight, int64_t rows, int64_t size, int64_t threads
) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * size > 16384)
    for (int64_t row = 0; row < rows; row++) {
        const element *up = grad_normed + row * size, *x = sum + row * size;
        const element *side = grad_sum ? grad_sum + row * size : 0;
        element *to = grad + row * size;
        float *line = grad_weight ? grad_weight + omp_get_thread_num() * size : 0;
        float shrink = shrink_R[row], rest = 0;
        lanes products[VECTORS] = {{0}};
        int64_t i = 0;
        for (; i + BLOCK <= size; i += BLOCK)
            for (int v = 0; v < VECTORS; v++) {
                int64_t at = i + v * LANES;
                products[v] += load_elements(up + at) * load_elements(weight + at) * (load_elements(x + at) * shrink);
            }
        for (; i < size; i++) rest += load(up[i]) * load(weight[i]) * (load(x[i]) * shrink);
        float mean = (sum_block(products) + rest) / (float)size;
        for (i = 0; i + LANES <= size; i += LANES) {
            lanes dy = load_elements(up + i), n = load_elements(x + i) * shrink;
            lanes dx = shrink * (dy * load_elements(weight + i) - n * mean);
            if (side) dx += load_elements(side + i);
            store_elements(to + i, dx);
            if (line) store_lanes(line + i, load_lanes(line + i) + dy * rounded_lanes(n));
        }
        for (; i < size; i++) {
            float dy = load(up[i]), n = load(x[i]) * shrink;
            to[i] = store(shrink * (dy * load(weight[i]) - n * mean) + (side ? load(side[i]) : 0));
            if (line) line[i] += dy * rounded(n);
        }
    }
}

/* Rotary position embeddings (Su et al. 2021, arXiv:2104.09864) of (rows, heads, size): with halves x = (x1, x2), the
 * result is x cosine + (-x2, x1) sine. cosine and sine are (rows, size) float32. */
void rotate_forward(
    const element *from, const float *cosine, const float *sine, element *to, int64_t rows, int64_t heads, int64_t size,
    int64_t threads
) {
    int64_t half = size / 2;
#pragma omp parallel for num_threads(threads) if (rows * heads * size > 16384)
    for (int64_t row = 0; row < rows; row++) {
        const float *c1 = cosine + row * size, *c2 = c1 + half, *s1 = sine + row * size, *s2 = s1 + half;
        for (int64_t head = 0; head < heads; head++) {
            const element *x1 = from + (row * heads + head) * size, *x2 = x1 + half;
            element *y1 = to + (row * heads + head) * size, *y2 = y1 + half;
            int64_t i = 0;
            for (; i + LANES <= half; i += LANES) {
                lanes a = load_elements(x1 + i), b = load_elements(x2 + i);
                store_elements(y1 + i, rounded_lanes(a * load_lanes(c1 + i)) - rounded_lanes(b * load_lanes(s1 + i)));
                store_elements(y2 + i, rounded_lanes(b * load_lanes(c2 + i)) + rounded_lanes(a * load_lanes(s2 + i)));
            }
            for (; i < half; i++) {
                float a = load(x1[i]), b = load(x2[i]);
                y1[i] = store(rounded(a * c1[i]) - rounded(b * s1[i]));
                y2[i] = store(rounded(b * c2[i]) + rounded(a * s2[i]));
            }
        }
    }
}

void rotate_backward(
    const element *grad, const float *cosine, const float *sine, element *to, int64_t rows, int64_t heads, int64_t size,
    int64_t threads
) {
    int64_t half = size / 2;
#pragma omp parallel for num_threads(threads) if (rows * heads * size > 16384)
    for (int64_t row = 0; row < rows; row++) {
        const float *c1 = cosine + row * size, *c2 = c1 + half, *s1 = sine + row * size, *s2 = s1 + half;
        for (int64_t head = 0; head < heads; head++) {
            const element *y1 = grad + (row * heads + head) * size, *y2 = y1 + half;
            element *x1 = to + (row * heads + head) * size, *x2 = x1 + half;
            int64_t i = 0;
            for (; i + LANES <= half; i += LANES) {
                lanes a = load_elements(y1 + i), b = load_elements(y2 + i);
                store_elements(x1 + i, a * load_lanes(c1 + i) + b * load_lanes(s2 + i));
                store_elements(x2 + i, b * load_lanes(c2 + i) - a * load_lanes(s1 + i));
            }
            for (; i < half; i++) {
                float a = load(y1[i]), b = load(y2[i]);
                x1[i] = store(a * c1[i] + b * s2[i]);
                x2[i] = store(b * c2[i] - a * s1[i]);
            }
        }
    }
}

/* silu(gate) * up (Shazeer 2020, arXiv:2002.05202). */
void gate_forward(const element *gate, const element *up, element *to, int64_t rows, int64_t size, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * size > 8192)
    for (int64_t row = 0; row < rows; row++) {
        int64_t i = row * size, end = i + size;
        for (; i + LANES <= end; i += LANES)
            store_elements(to + i, rounded_lanes(silu(load_elements(gate + i))) * load_elements(up + i));
        for (; i < end; i++) {
            lanes one = {load(gate[i])};
            to[i] = store(rounded(silu(one)[0]) * load(up[i]));
        }
    }
}

/* With s = sigmoid(gate): d silu = s (1 + gate (1 - s)). */
void gate_backward(
    const element *grad, const element *gate, const element *up, element *grad_gate, element *grad_up, int64_t rows,
    int64_t size, int64_t threads
) {
#pragma omp parallel for num_threads(threads) if (rows * size > 8192)
    for (int64_t row = 0; row < rows; row++) {
        int64_t i = row * size, end = i + size;
        for (; i < end; i += LANES) {
            int64_t count = end - i < LANES ? end - i : LANES;
            element parts[3][LANES] = {{0}};
            if (count < LANES)
                for (int64_t j = 0; j < count; j++)
                    parts[0][j] = grad[i + j], parts[1][j] = gate[i + j], parts[2][j] = up[i + j];
            int whole = count == LANES;
            lanes dy = load_elements(whole ? grad + i : parts[0]);
            lanes x = load_elements(whole ? gate + i : parts[1]);
            lanes other = load_elements(whole ? up + i : parts[2]);
            lanes s = sigmoid(x);
            lanes dx = dy * other * s * (1.0f + x * (1.0f - s)), du = dy * x * s;
            if (whole) {
                store_elements(grad_gate + i, dx);
                store_elements(grad_up + i, du);
            } else
                for (int64_t j = 0; j < count; j++) {
                    grad_gate[i + j] = store(dx[j]);
                    grad_up[i + j] = store(du[j]);
                }
        }
    }
}
