/* Frozen weights of 4 or 8 bits: their numbers, and their products with a few rows.
 *
 * A weight (outputs, inputs) is stored in panels of PANEL outputs, the last one padded with zeros: codes (panels,
 * inputs, PANEL) and scales (panels, groups, PANEL) in float32, one for GROUP inputs. A number is its code's value times
 * its scale. 8 bits: the code is the value, from -127 to 127. 4 bits: the value is the code's entry in NORMAL_FLOATS,
 * and byte i of PANEL / 2 holds output i in its low half and output i + PANEL / 2 in its high half.
 */
#include "blocks.h"

#define PANEL 64
#define GROUP 64
#define CHUNK 512 /* inputs whose numbers are in a cache at a time */

/* NF4 of Dettmers et al. 2023, arXiv:2305.14314, appendix E. */
static const float NORMAL_FLOATS[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
    0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

typedef int8_t byte_lanes __attribute__((vector_size(LANES)));

struct quantized {
    int64_t outputs, inputs, bits;
    const uint8_t *codes;
    const float *scales;
};

int omp_get_thread_num(void);

INLINE lanes whole_numbers(const uint8_t *codes) {
    byte_lanes stored;
    memcpy(&stored, codes, sizeof stored);
    return __builtin_convertvector(stored, lanes);
}

/* Entries of the table, whose numbers are in the lowest 4 bits of `codes`. */
INLINE lanes normal_floats(whole_lanes codes) {
#if LANES == 16 && !__clang__ /* which has no shuffle by a variable */
    return __builtin_shuffle(load_lanes(NORMAL_FLOATS), codes);
#elif __AVX2__ && !__clang__
    return __builtin_shuffle(load_lanes(NORMAL_FLOATS), load_lanes(NORMAL_FLOATS + 8), codes);
#else
    lanes found;
    for (int i = 0; i < LANES; i++) found[i] = NORMAL_FLOATS[codes[i]];
    return found;
#endif
}

/* values (count, PANEL): the numbers of a panel for the inputs from `first`, rounded to the type of the weight: training
 * passes multiply by what `dequantize` writes. */
static void expand(const struct quantized *w, int64_t panel, int64_t first, int64_t count, float *values) {
    int64_t groups = (w->inputs + GROUP - 1) / GROUP;
    const uint8_t *codes = w->codes + (panel * w->inputs + first) * PANEL * w->bits / 8;
    for (int64_t d = first; d < first + count; d++, values += PANEL, codes += PANEL * w->bits / 8) {
        const float *scales = w->scales + (panel * groups + d / GROUP) * PANEL;
        if (w->bits == 8)
            for (int i = 0; i < PANEL; i += LANES)
                store_lanes(values + i, rounded_lanes(whole_numbers(codes + i) * load_lanes(scales + i)));
        else
            for (int i = 0; i < PANEL / 2; i += LANES) {
                byte_lanes stored;
                memcpy(&stored, codes + i, sizeof stored);
                whole_lanes both = __builtin_convertvector(stored, whole_lanes);
                store_lanes(values + i, rounded_lanes(normal_floats(both & 15) * load_lanes(scales + i)));
                int j = i + PANEL / 2;
                store_lanes(values + j, rounded_lanes(normal_floats(both >> 4 & 15) * load_lanes(scales + j)));
            }
    }
}

/* to (outputs, inputs): all numbers of a weight. */
void dequantize(const struct quantized *w, element *to, int64_t threads) {
    int64_t panels = (w->outputs + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) if (panels > 1)
    for (int64_t panel = 0; panel < panels; panel++) {
        float values[GROUP * PANEL];
        int64_t above = panel * PANEL, rows = w->outputs - above < PANEL ? w->outputs - above : PANEL;
        for (int64_t first = 0; first < w->inputs; first += GROUP) {
            int64_t count = w->inputs - first < GROUP ? w->inputs - first : GROUP;
            expand(w, panel, first, count, values);
            for (int64_t o = 0; o < rows; o++)
                for (int64_t d = 0; d < count; d++)
                    to[(above + o) * w->inputs + first + d] = store(values[d * PANEL + o]);
        }
    }
}

/* outputs (rows, outputs) = lines (rows, inputs) times the weight's transpose, plus bias unless it is NULL. Sums do not
 * depend on the other rows. scratch: PANEL * (CHUNK + rows) numbers for each thread. */
void multiply(
    const struct quantized *w, const float *lines, const element *bias, element *outputs, int64_t rows, float *scratch,
    int64_t threads
) {
    int64_t panels = (w->outputs + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) if (panels > 1)
    for (int64_t panel = 0; panel < panels; panel++) {
        float *values = scratch + omp_get_thread_num() * PANEL * (CHUNK + rows), *sums = values + PANEL * CHUNK;
        memset(sums, 0, sizeof(float) * rows * PANEL);
        for (int64_t first = 0; first < w->inputs; first += CHUNK) {
            int64_t count = w->inputs - first < CHUNK ? w->inputs - first : CHUNK;
            expand(w, panel, first, count, values);
            mix(lines + first, rows, w->inputs, values, count, PANEL, sums);
        }
        int64_t above = panel * PANEL, columns = w->outputs - above < PANEL ? w->outputs - above : PANEL;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t o = 0; o < columns; o++)
                outputs[row * w->outputs + above + o] =
                    store(sums[row * PANEL + o] + (bias ? load(bias[above + o]) : 0.0f));
    }
}
