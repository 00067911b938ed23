/* Products of products.c next to plain loops in double, for every height of a tile. Prints the lanes and what it found;
 * for processors that PyTorch is not at hand for. */
#include "products.c"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = TOGETHER + 3, OUTPUTS = PANEL + 5, INPUTS = CHUNK + 9 };

static element weight[OUTPUTS * INPUTS], panels[2 * PANEL * INPUTS], states[ROWS * INPUTS], bias[OUTPUTS];
static element results[ROWS * OUTPUTS];
static float scratch[TOGETHER * INPUTS];

static void draw(element *to, int count) {
    for (int i = 0; i < count; i++) to[i] = store((float)rand() / (float)RAND_MAX - 0.5f);
}

int main(void) {
    draw(weight, OUTPUTS * INPUTS);
    draw(states, ROWS * INPUTS);
    draw(bias, OUTPUTS);
    pack(weight, panels, OUTPUTS, INPUTS, 1);
    for (int rows = 1; rows <= ROWS; rows += rows <= TALL || rows >= TOGETHER ? 1 : 9) {
        multiply(states, panels, bias, results, rows, OUTPUTS, INPUTS, scratch, 1);
        for (int row = 0; row < rows; row++)
            for (int o = 0; o < OUTPUTS; o++) {
                double wanted = load(bias[o]);
                for (int d = 0; d < INPUTS; d++)
                    wanted += (double)load(states[row * INPUTS + d]) * load(weight[o * INPUTS + d]);
                double found = load(results[row * OUTPUTS + o]), most = BFLOAT16 ? fabs(wanted) / 256 : 0;
                if (fabs(found - wanted) <= most + 1e-5) continue;
                printf("row %d of %d, output %d: %g for %g\n", row, rows, o, found, wanted);
                return 1;
            }
    }
    printf("%d lanes, alike\n", (int)vector_lanes());
    return 0;
}
