/* Arithmetic on states and weights, one number at a time or LANES at a time. LANES is the number of floats in a vector
 * register of the target processor. Memory layouts do not depend on it: they use blocks of BLOCK numbers, which are one
 * or more vectors.
 *
 * build.py compiles this with the machine's compiler, with -DBFLOAT16=0 or -DBFLOAT16=1, which sets the type of states
 * and weights (`element`). Wherever transformers rounds to this type, the kernels round as well. Vectors use the vector
 * extension of GCC and Clang, so one source fits all processors, and the compiler does not need permission to reorder
 * sums.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 16
#ifdef LANES /* -DLANES=16 lets other processors test what those with AVX-512 compute */
#elif __AVX512F__
#define LANES 16
#elif __AVX__
#define LANES 8
#else /* SSE2, which every x86-64 processor has, NEON and others */
#define LANES 4
#endif
#define VECTORS (BLOCK / LANES)
#define INLINE static inline __attribute__((always_inline))

/* A loop that is unrolled early: later, GCC has already given an array of sums a place in memory. */
#define EACH(i, count) _Pragma("GCC unroll 12") for (int i = 0; i < count; i++)

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t whole_lanes __attribute__((vector_size(4 * LANES)));

int64_t vector_lanes(void) { return LANES; }

/* Whether this processor has the instructions that the library was built with. Others would end the process. */
int64_t fits_processor(void) {
#if __x86_64__
    __builtin_cpu_init();
#if __SSE4_2__
    if (!__builtin_cpu_supports("sse4.2")) return 0;
#endif
#if __AVX__
    if (!__builtin_cpu_supports("avx")) return 0;
#endif
#if __AVX2__
    if (!__builtin_cpu_supports("avx2")) return 0;
#endif
#if __FMA__
    if (!__builtin_cpu_supports("fma")) return 0;
#endif
#if __FMA4__
    if (!__builtin_cpu_supports("fma4")) return 0;
#endif
#if __XOP__
    if (!__builtin_cpu_supports("xop")) return 0;
#endif
#if __BMI2__
    if (!__builtin_cpu_supports("bmi2")) return 0;
#endif
#if __AVX512F__
    if (!__builtin_cpu_supports("avx512f")) return 0;
#endif
#if __AVX512BW__
    if (!__builtin_cpu_supports("avx512bw")) return 0;
#endif
#if __AVX512DQ__
    if (!__builtin_cpu_supports("avx512dq")) return 0;
#endif
#if __AVX512VL__
    if (!__builtin_cpu_supports("avx512vl")) return 0;
#endif
#endif
    return 1;
}

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

/* Rounds to nearest, ties to even. NaN stays NaN. */
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

/* The sum of a block. Long sums keep a block of partial sums: VECTORS independent chains, so that an addition does not
 * wait for the one before, and the order of additions is the same for every LANES. */
INLINE float sum_block(const lanes *parts) {
    float sums[BLOCK];
    memcpy(sums, parts, sizeof sums);
    for (int half = BLOCK / 2; half; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0];
}

INLINE float sum_of_squares(const element *from, int64_t size) {
    lanes squares[VECTORS] = {{0}};
    float rest = 0;
    int64_t i = 0;
    for (; i + BLOCK <= size; i += BLOCK)
        for (int v = 0; v < VECTORS; v++) {
            lanes x = load_elements(from + i + v * LANES);
            squares[v] += x * x;
        }
    for (; i < size; i++) rest += load(from[i]) * load(from[i]);
    return sum_block(squares) + rest;
}

/* e^x to within 2 units in the last place, for x <= 0 (up to rounding) or NaN; 0 below -87. x = n ln 2 + r, and e^r is
 * its Taylor series up to the seventh power. */
INLINE lanes exp_lanes(lanes x) {
    const lanes zero = {0};
    whole_lanes low = x < zero - 87.0f;
    x = (lanes)((whole_lanes)x & ~low);
    lanes shifted = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 leaves the integer n in the last bits */
    lanes n = shifted - 12582912.0f;
    lanes r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln 2 in two parts; n times the first is exact */
    lanes series = r * (1.0f / 5040) + (1.0f / 720);
    series = series * r + (1.0f / 120);
    series = series * r + (1.0f / 24);
    series = series * r + (1.0f / 6);
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    whole_lanes power = ((whole_lanes)shifted << 23) + (127 << 23);
    return (lanes)((whole_lanes)(series * (lanes)power) & ~low);
}

/* 1 / (1 + e^-x), computed from e^-|x|, which cannot overflow. */
INLINE lanes sigmoid(lanes x) {
    const lanes zero = {0}, one = zero + 1.0f;
    whole_lanes negative = x < zero;
    lanes e = exp_lanes((lanes)((whole_lanes)x | (int32_t)0x80000000));
    lanes above = (lanes)(((whole_lanes)e & negative) | ((whole_lanes)one & ~negative));
    return above / (one + e);
}

INLINE lanes silu(lanes x) { return x * sigmoid(x); }
