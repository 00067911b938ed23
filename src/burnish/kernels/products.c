/* Products of a few rows with large matrices, as in decoding, where reading a matrix takes as long as multiplying.
 *
 * A weight (outputs, inputs) is stored in panels of PANEL outputs, the last one padded with zeros: (panels, inputs,
 * PANEL). The sums of a tile, which is up to TALL rows by one panel, stay in registers. Panels are read by chunks: the
 * first tile brings a chunk into a cache, where the other tiles find it, and all of them together ask for the next one,
 * so that memory is read while numbers are multiplied. Sums are float32, first over the inputs of a chunk and then over
 * the chunks, always in the same order, so a row's result does not depend on the other rows.
 */
#include "elements.h"

#if LANES == 16
#define WIDE 2 /* vectors of a panel */
#define TALL 12
#elif __ARM_NEON
#define WIDE 4
#define TALL 6
#elif __AVX__
#define WIDE 2
#define TALL 6
#else
#define WIDE 4
#define TALL 3
#endif
#define PANEL (WIDE * LANES)
#define CHUNK 512    /* inputs of a panel that are in a cache at a time */
#define TOGETHER 96  /* rows for which a matrix is read once */
#define CACHE_LINE 64
#define WORTH_THREADS 65536 /* multiply-adds */

int64_t panel_outputs(void) { return PANEL; }

/* panels (panels, inputs, PANEL) from weight (outputs, inputs). */
void pack(const element *weight, element *panels, int64_t outputs, int64_t inputs, int64_t threads) {
    int64_t count = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads) if (count > 1)
    for (int64_t panel = 0; panel < count; panel++) {
        const element *from = weight + panel * PANEL * inputs;
        element *to = panels + panel * PANEL * inputs;
        int64_t filled = outputs - panel * PANEL < PANEL ? outputs - panel * PANEL : PANEL;
        for (int64_t first = 0; first < inputs; first += BLOCK) {
            int64_t end = first + BLOCK < inputs ? first + BLOCK : inputs;
            for (int64_t o = 0; o < filled; o++)
                for (int64_t d = first; d < end; d++) to[d * PANEL + o] = from[o * inputs + d];
            for (int64_t d = first; d < end; d++)
                for (int64_t o = filled; o < PANEL; o++) to[d * PANEL + o] = 0;
        }
    }
}

/* A chunk of a panel. ahead: the memory that will be read next, of which a tile asks for one input's numbers every
 * `every` inputs. The last chunk of all asks for what is not there, which does nothing. */
struct chunk {
    int64_t inputs;
    const element *numbers, *ahead;
    int64_t every;
};

/* stored (Q, PANEL) += lines (inputs, Q) times the chunk. */
#define TILE(Q)                                                                                                        \
    static void tile_##Q(const float *lines, struct chunk chunk, float *stored) {                                      \
        lanes sums[Q][WIDE], numbers[WIDE];                                                                            \
        EACH(q, Q) EACH(v, WIDE) sums[q][v] = (lanes){0};                                                              \
        int64_t until_next = 1;                                                                                        \
        for (int64_t d = 0; d < chunk.inputs; d++, lines += Q, chunk.numbers += PANEL) {                               \
            if (--until_next == 0) {                                                                                   \
                until_next = chunk.every;                                                                              \
                for (size_t at = 0; at < PANEL * sizeof(element); at += CACHE_LINE)                                    \
                    __builtin_prefetch((const char *)chunk.ahead + at, 0, 2);                                          \
                chunk.ahead += PANEL;                                                                                  \
            }                                                                                                          \
            EACH(v, WIDE) numbers[v] = load_elements(chunk.numbers + v * LANES);                                       \
            EACH(q, Q) EACH(v, WIDE) sums[q][v] += lines[q] * numbers[v];                                              \
        }                                                                                                              \
        EACH(q, Q) EACH(v, WIDE) {                                                                                     \
            float *to = stored + q * PANEL + v * LANES;                                                                \
            store_lanes(to, load_lanes(to) + sums[q][v]);                                                              \
        }                                                                                                              \
    }

TILE(1)
TILE(2)
TILE(3)
#if TALL >= 6
TILE(4)
TILE(5)
TILE(6)
#endif
#if TALL >= 12
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#endif

static void (*const tiles[])(const float *, struct chunk, float *) = {
    NULL, tile_1, tile_2, tile_3,
#if TALL >= 6
    tile_4, tile_5, tile_6,
#endif
#if TALL >= 12
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12,
#endif
};

/* `rows` rows in tiles of nearly equal height: the tile's first row, or `rows` for the one after the last. */
INLINE int64_t first_row(int64_t tile, int64_t count, int64_t rows) {
    int64_t more = rows % count;
    return tile * (rows / count) + (tile < more ? tile : more);
}

/* lines: of each tile, (inputs, rows of the tile). */
static void turn(const element *rows_RI, float *lines, int64_t rows, int64_t inputs, int64_t count, int64_t part) {
    int64_t tile = part % count, row = first_row(tile, count, rows), height = first_row(tile + 1, count, rows) - row;
    int64_t first = part / count * CHUNK, end = first + CHUNK < inputs ? first + CHUNK : inputs;
    for (int64_t d = first; d < end; d++)
        for (int64_t q = 0; q < height; q++)
            lines[row * inputs + d * height + q] = load(rows_RI[(row + q) * inputs + d]);
}

/* sums (rows, PANEL) = lines times a panel. */
static void multiply_panel(
    const float *lines, const element *panel, float *sums, int64_t rows, int64_t inputs, int64_t count
) {
    memset(sums, 0, sizeof(float) * rows * PANEL);
    for (int64_t first = 0; first < inputs; first += CHUNK) {
        int64_t here = inputs - first < CHUNK ? inputs - first : CHUNK, share = (here + count - 1) / count;
        const element *numbers = panel + first * PANEL, *next = numbers + here * PANEL;
        for (int64_t tile = 0; tile < count; tile++) {
            int64_t row = first_row(tile, count, rows), height = first_row(tile + 1, count, rows) - row;
            struct chunk chunk = {here, numbers, next + tile * share * PANEL, count};
            tiles[height](lines + row * inputs + first * height, chunk, sums + row * PANEL);
        }
    }
}

/* results (rows, outputs) = rows (rows, inputs) times the weight's transpose, plus bias unless it is NULL. scratch:
 * numbers for TOGETHER rows of inputs. */
void multiply(
    const element *rows_RI, const element *panels, const element *bias, element *results_RO, int64_t rows,
    int64_t outputs, int64_t inputs, float *scratch, int64_t threads
) {
    int64_t num_panels = (outputs + PANEL - 1) / PANEL, chunks = (inputs + CHUNK - 1) / CHUNK;
    for (int64_t done = 0; done < rows; done += TOGETHER) {
        int64_t now = rows - done < TOGETHER ? rows - done : TOGETHER, count = (now + TALL - 1) / TALL;
#pragma omp parallel num_threads(threads) if (now * outputs * inputs > WORTH_THREADS)
        {
            float sums[TOGETHER * PANEL];
#pragma omp for schedule(static)
            for (int64_t part = 0; part < count * chunks; part++)
                turn(rows_RI + done * inputs, scratch, now, inputs, count, part);
#pragma omp for schedule(static)
            for (int64_t panel = 0; panel < num_panels; panel++) {
                multiply_panel(scratch, panels + panel * inputs * PANEL, sums, now, inputs, count);
                int64_t above = panel * PANEL, columns = outputs - above < PANEL ? outputs - above : PANEL;
                for (int64_t row = 0; row < now; row++)
                    for (int64_t o = 0; o < columns; o++)
                        results_RO[(done + row) * outputs + above + o] =
                            store(sums[row * PANEL + o] + (bias ? load(bias[above + o]) : 0.0f));
            }
        }
    }
}
