/* Products and softmax of blocks.h, and numbers and products of quantized.c, next to plain loops in double, for numbers
 * of queries, tokens and columns that take every tile. Prints the lanes and what it found; for processors that PyTorch is not at hand for. */
#include "quantized.c"

#include <stdio.h>
#include <stdlib.h>

enum { QUERIES = 17, TOKENS = 7 * BLOCK, WIDTH = 5 * BLOCK };

static float queries[QUERIES * WIDTH], keys[TOKENS * WIDTH], blocks[TOKENS * WIDTH], values[TOKENS * WIDTH];
static float scores[QUERIES * TOKENS], weights[QUERIES * TOKENS], outputs[QUERIES * WIDTH];

static void draw(float *to, int count) {
    for (int i = 0; i < count; i++) to[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

static void differ(const char *what, double found, double wanted) {
    if (fabs(found - wanted) <= 1e-5 * (fabs(wanted) + 1)) return;
    printf("%s: %g for %g\n", what, found, wanted);
    exit(1);
}

enum { OUTPUTS = PANEL + 9, INPUTS = GROUP + 5, PANELS = 2 };

static uint8_t codes[PANELS * INPUTS * PANEL];
static float scales[PANELS * 2 * PANEL], lines[3 * INPUTS], scratch[PANEL * (CHUNK + 3)];
static element numbers_of[OUTPUTS * INPUTS], products[3 * OUTPUTS];

static double number_of(int bits, int output, int input) {
    int panel = output / PANEL, place = output % PANEL;
    const uint8_t *of_input = codes + (panel * INPUTS + input) * PANEL * bits / 8;
    double scale = scales[(panel * 2 + input / GROUP) * PANEL + place];
    if (bits == 8) return scale * (int8_t)of_input[place];
    int both = of_input[place % (PANEL / 2)];
    return scale * NORMAL_FLOATS[place < PANEL / 2 ? both & 15 : both >> 4];
}

static void quantized(int bits) {
    for (int i = 0; i < PANELS * INPUTS * PANEL; i++) codes[i] = (uint8_t)(rand() >> 7);
    draw(scales, PANELS * 2 * PANEL);
    draw(lines, 3 * INPUTS);
    struct quantized weight = {OUTPUTS, INPUTS, bits, codes, scales};
    dequantize(&weight, numbers_of, 1);
    multiply(&weight, lines, 0, products, 3, scratch, 1);
    for (int o = 0; o < OUTPUTS; o++) {
        for (int d = 0; d < INPUTS; d++)
            differ("number", load(numbers_of[o * INPUTS + d]), rounded((float)number_of(bits, o, d)));
        for (int row = 0; row < 3; row++) {
            double product = 0;
            for (int d = 0; d < INPUTS; d++) product += (double)lines[row * INPUTS + d] * rounded((float)number_of(bits, o, d));
            double found = load(products[row * OUTPUTS + o]), most = BFLOAT16 ? fabs(product) / 256 : 1e-3;
            if (fabs(found - product) > most + 1e-5) differ("product", found, product);
        }
    }
}

int main(void) {
    quantized(8);
    quantized(4);
    draw(queries, QUERIES * WIDTH);
    draw(keys, TOKENS * WIDTH);
    draw(values, TOKENS * WIDTH);
    for (int t = 0; t < TOKENS; t++)
        for (int d = 0; d < WIDTH; d++)
            blocks[(t / BLOCK * WIDTH + d) * BLOCK + t % BLOCK] = keys[t * WIDTH + d];
    for (int count = 1; count <= QUERIES; count++)
        for (int length = BLOCK; length <= TOKENS; length += BLOCK) {
            score(queries, count, blocks, length / BLOCK, WIDTH, scores, TOKENS);
            memcpy(weights, scores, sizeof scores);
            memset(outputs, 0, sizeof outputs);
            float sums[QUERIES];
            for (int q = 0; q < count; q++) sums[q] = soften(weights + q * TOKENS, length);
            mix(weights, count, TOKENS, values, length - 3, WIDTH, outputs);
            for (int q = 0; q < count; q++) {
                double sum = 0;
                for (int t = 0; t < length; t++) {
                    double product = 0;
                    for (int d = 0; d < WIDTH; d++) product += (double)queries[q * WIDTH + d] * keys[t * WIDTH + d];
                    differ("score", scores[q * TOKENS + t], product);
                    sum += exp(product);
                }
                differ("log-sum-exp", sums[q], log(sum));
                for (int d = 0; d < WIDTH; d++) {
                    double mixed = 0;
                    for (int t = 0; t < length - 3; t++)
                        mixed += exp(scores[q * TOKENS + t]) / sum * values[t * WIDTH + d];
                    differ("output", outputs[q * WIDTH + d], mixed);
                }
            }
        }
    element stored[LANES];
    float numbers[LANES];
    for (int i = 0; i < LANES; i++) numbers[i] = 1.0f + i / 3.0f;
    store_elements(stored, load_lanes(numbers));
    lanes back = load_elements(stored);
    for (int i = 0; i < LANES; i++) differ("element", back[i], rounded(numbers[i]));
    differ("silu", silu(load_lanes(numbers))[1], numbers[1] / (1 + exp(-numbers[1])));
    printf("%d lanes, alike\n", (int)vector_lanes());
    return 0;
}
