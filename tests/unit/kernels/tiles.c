/* Products and softmax of blocks.h next to plain loops in double, for numbers of queries, tokens and columns that take
 * every tile. Prints the lanes and what it found; for processors that PyTorch is not at hand for. */
#include "blocks.h"

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

int main(void) {
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
