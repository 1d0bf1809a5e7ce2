/* Decodes a window of a JPEG and resizes it, row by row, into memory of the caller.

   libjpeg-turbo decodes only the columns and rows that the window needs, into a ring of the last few rows. A row of
   the result is the weighted sum of the rows that its filter covers; then the filter is applied across the columns. So
   no pixel is stored between decoding and its place in the batch, except in a few rows that stay in the processor's
   cache.

   The filter is a triangle whose half width is the factor of reduction, as in Pillow and torchvision with antialiasing.
   It uses pixels of the window only, as if the window had been cut out before. Weights have 14 bits, intermediate
   values 6 bits after the point.

   Whatever is unusual (a warning of libjpeg, odd sampling factors, CMYK, very large reductions) is left to the caller,
   which has another decoder that tells harmless defects from damage. */
#include "jpeg_window.h"

#include <math.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000
#error "libjpeg-turbo 2.0 or newer is needed, for jpeg_crop_scanline and jpeg_skip_scanlines"
#endif

#if !defined(__GNUC__) || !defined(__x86_64__)
#error "GCC or clang and x86-64 are needed: the loops over rows are written for AVX2"
#endif
#include <immintrin.h>

#define WITH_AVX2 __attribute__((target("avx2")))

enum {
    WEIGHT_BITS = 14,
    VALUE_BITS = 6,
    WEIGHT_ONE = 1 << WEIGHT_BITS,
    ROUND_SHIFT = WEIGHT_BITS + VALUE_BITS,
    VECTOR = 64,      /* values that the loop over rows handles at a time; rows are followed by as many bytes */
    TAP_GROUP = 4,    /* weights of an output pixel are padded to a multiple of this */
    OFFSET = 8,       /* of a row; libjpeg-turbo writes past the cache if rows begin at a multiple of 16 or 32 */
    READ_AHEAD = 4,   /* rows that are read at a time: libjpeg makes two at once where colours are halved */
    MAX_TAPS = 64,    /* more source pixels for one output pixel are left to the caller, which averages first */
    CHROMA_REACH = 2, /* columns beside the window that interpolation of the colours reads */
    COLOURS = 3,
    PIXEL = 4, /* bytes of a colour pixel as it is decoded: red, green, blue and one that is not used */
    MAX_SIDE = 1 << 20, /* of a result */
    ALIGNMENT = 64
};

/* -- the filter of one side ---------------------------------------------------------------------------------------- */

typedef struct {
    int low, high;    /* source pixels that are read, of the shrunk image */
    int taps;         /* weights of an output pixel, padded */
    int identity;     /* whether each output pixel is one source pixel */
    int *first;       /* first source pixel of each output pixel, counted from `low` */
    int16_t *weights; /* `taps` of each output pixel */
} Filter;

typedef struct {
    double origin, scale, reach; /* where the window begins, source pixels per output pixel, half width of the filter */
} Geometry;

static Geometry geometry_of(const Side *side, int divisor)
{
    double scale = (double)side->length / ((double)side->size * divisor);
    return (Geometry){(double)side->start / divisor, scale, scale < 1 ? 1 : scale};
}

typedef struct {
    int begin, end;
} Span;

static double centre_of(const Geometry *geometry, int output)
{
    return geometry->origin + (output + 0.5) * geometry->scale;
}

/* Returns the source pixels that an output pixel is made of: at least one, and none outside low … high. */
static Span span_of(const Filter *filter, const Geometry *geometry, int output)
{
    double centre = centre_of(geometry, output);
    int begin = (int)floor(centre - geometry->reach + 0.5), end = (int)floor(centre + geometry->reach + 0.5);
    begin = begin < filter->low ? filter->low : begin > filter->high - 1 ? filter->high - 1 : begin;
    end = end > filter->high ? filter->high : end <= begin ? begin + 1 : end;
    return (Span){begin, end};
}

/* Sets the fields that need no memory; returns 0 if the filter is too wide. */
static int plan_filter(Filter *filter, const Side *side, int divisor)
{
    Geometry geometry = geometry_of(side, divisor);
    int shrunk = (side->image + divisor - 1) / divisor;
    filter->low = side->start / divisor;
    filter->high = (side->start + side->length + divisor - 1) / divisor;
    if (filter->high > shrunk)
        filter->high = shrunk;
    filter->identity = geometry.scale == 1 && side->start % divisor == 0;
    if (2 * geometry.reach + 1 > MAX_TAPS)
        return 0;
    int taps = (int)ceil(2 * geometry.reach) + 1;
    filter->taps = (taps + TAP_GROUP - 1) / TAP_GROUP * TAP_GROUP;
    if (filter->identity) { /* only the pixels that are stored */
        filter->low += side->cut;
        filter->high = filter->low + side->count;
        return 1;
    }
    Span first = span_of(filter, &geometry, side->cut), last = span_of(filter, &geometry, side->cut + side->count - 1);
    filter->low = first.begin;
    filter->high = last.end;
    return 1;
}

/* Sets weights and first pixels; `mirrored` stores those of the last output pixel first. */
static void fill_filter(Filter *filter, const Side *side, int divisor, int mirrored)
{
    Geometry geometry = geometry_of(side, divisor);
    for (int output = 0; output < side->count; output++) {
        int at = mirrored ? side->count - 1 - output : output;
        int16_t *weights = filter->weights + (size_t)at * filter->taps;
        memset(weights, 0, sizeof(*weights) * filter->taps);
        if (filter->identity) {
            filter->first[at] = output;
            weights[0] = WEIGHT_ONE;
            continue;
        }
        double centre = centre_of(&geometry, side->cut + output);
        Span span = span_of(filter, &geometry, side->cut + output);
        int begin = span.begin, end = span.end;
        double exact[MAX_TAPS], sum = 0;
        for (int source = begin; source < end; source++) {
            double distance = fabs(source + 0.5 - centre) / geometry.reach;
            sum += exact[source - begin] = distance < 1 ? 1 - distance : 0;
        }
        int left = WEIGHT_ONE, largest = 0;
        for (int tap = 0; tap < end - begin; tap++) {
            weights[tap] = (int16_t)(sum > 0 ? exact[tap] / sum * WEIGHT_ONE + 0.5 : 0);
            left -= weights[tap];
            if (weights[tap] > weights[largest])
                largest = tap;
        }
        weights[largest] = (int16_t)(weights[largest] + left); /* so that an even area keeps its value */
        filter->first[at] = begin - filter->low;
    }
}

/* -- loops over rows ----------------------------------------------------------------------------------------------- */

/* Plain C is too slow here, because compilers do not find vectors in it; it stores what is rare: greyscale, results of
   fewer than four columns, and arrays of unusual strides. */

/* The place of a row of the result. A negative step stores from right to left. */
typedef struct {
    uint8_t *first;
    ptrdiff_t step, channel;
} RowTarget;

static uint8_t to_byte(int32_t sum)
{
    int32_t value = (sum + (1 << (ROUND_SHIFT - 1))) >> ROUND_SHIFT;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Resizes a row across the columns; `pixel` values lie between neighbours, of which `channels` are stored. */
static void resize_plain(const int16_t *row, const Filter *filter, int pixel, int channels, RowTarget out, int count)
{
    for (int at = 0; at < count; at++) {
        const int16_t *source = row + (ptrdiff_t)filter->first[at] * pixel;
        const int16_t *weights = filter->weights + (size_t)at * filter->taps;
        for (int channel = 0; channel < channels; channel++) {
            int32_t sum = 0;
            for (int tap = 0; tap < filter->taps; tap++)
                sum += source[tap * pixel + channel] * weights[tap];
            out.first[at * out.step + channel * out.channel] = to_byte(sum);
        }
    }
}

static void copy_plain(const uint8_t *line, int pixel, int channels, RowTarget out, int count)
{
    for (int at = 0; at < count; at++)
        for (int channel = 0; channel < channels; channel++)
            out.first[at * out.step + channel * out.channel] = line[at * pixel + channel];
}

/* Sums rows by their weights, each product rounded to VALUE_BITS after the point. Also writes up to VECTOR - 1 values
   behind the sum, and reads as many behind the rows. */
WITH_AVX2 static void weigh(const uint8_t *const *rows, const int16_t *weights, int taps, int16_t *sum, int count)
{
    for (int at = 0; at < count; at += VECTOR) {
        const __m256i zero = _mm256_setzero_si256();
        __m256i sums[4] = {zero, zero, zero, zero};
        for (int tap = 0; tap < taps; tap++) {
            const uint8_t *row = rows[tap] + at;
            __m256i weight = _mm256_set1_epi16(weights[tap]);
            for (int part = 0; part < 4; part++) {
                __m256i values = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(row + 16 * part)));
                values = _mm256_slli_epi16(values, VALUE_BITS + 1); /* the product below is shifted by 15 and rounded */
                sums[part] = _mm256_add_epi16(sums[part], _mm256_mulhrs_epi16(values, weight));
            }
        }
        for (int part = 0; part < 4; part++)
            _mm256_storeu_si256((__m256i *)(sum + at + 16 * part), sums[part]);
    }
}

/* Returns the order of bytes that makes RRRRGGGGBBBB of four pixels if planes are stored, else RGBRGBRGBRGB. */
WITH_AVX2 static inline __m128i store_order(int planes)
{
    return planes ? _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1)
                  : _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
}

/* Stores four pixels in that order. */
WITH_AVX2 static inline void store_four(uint8_t *out, ptrdiff_t channel, int planes, __m128i pixels)
{
    if (planes) {
        _mm_storeu_si32(out, pixels);
        _mm_storeu_si32(out + channel, _mm_srli_si128(pixels, 4));
        _mm_storeu_si32(out + 2 * channel, _mm_srli_si128(pixels, 8));
    } else {
        _mm_storel_epi64((__m128i *)out, pixels);
        _mm_storeu_si32(out + 8, _mm_srli_si128(pixels, 8));
    }
}

/* Returns red, green and blue of an output pixel, as 32-bit numbers. */
WITH_AVX2 static inline __m128i weigh_pixel(const int16_t *row, const Filter *filter, int at)
{
    const __m256i pairs =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const int16_t *source = row + (ptrdiff_t)filter->first[at] * PIXEL;
    const int16_t *weights = filter->weights + (size_t)at * filter->taps;
    __m256i sum = _mm256_setzero_si256();
    for (int tap = 0; tap < filter->taps; tap += TAP_GROUP) {
        __m256i values = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(source + tap * PIXEL)), pairs);
        __m256i four = _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(weights + tap)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(values, _mm256_permutevar8x32_epi32(four, spread)));
    }
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return _mm_srai_epi32(_mm_add_epi32(both, _mm_set1_epi32(1 << (ROUND_SHIFT - 1))), ROUND_SHIFT);
}

/* Resizes a row of at least four colour pixels; the last four may be computed twice. */
WITH_AVX2 static void resize_avx2(const int16_t *row, const Filter *filter, RowTarget out, int planes, int count)
{
    __m128i order = store_order(planes);
    for (int next = 0; next < count; next += 4) {
        int at = next + 4 <= count ? next : count - 4;
        __m128i first = _mm_packs_epi32(weigh_pixel(row, filter, at), weigh_pixel(row, filter, at + 1));
        __m128i second = _mm_packs_epi32(weigh_pixel(row, filter, at + 2), weigh_pixel(row, filter, at + 3));
        __m128i pixels = _mm_shuffle_epi8(_mm_packus_epi16(first, second), order);
        store_four(out.first + at * out.step, out.channel, planes, pixels);
    }
}

/* Stores at least four colour pixels; `mirrored` reads them from right to left. */
WITH_AVX2 static void copy_avx2(const uint8_t *line, RowTarget out, int planes, int mirrored, int count)
{
    const __m128i reverse = _mm_setr_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    const __m128i keep = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m128i turn = mirrored ? reverse : keep, order = _mm_shuffle_epi8(turn, store_order(planes));
    order = _mm_blendv_epi8(order, _mm_set1_epi8(-1), store_order(planes));
    int next = 0;
    for (; planes && next + 16 <= count; next += 16) {
        __m128i four[4];
        for (int part = 0; part < 4; part++) {
            int at = next + 4 * part;
            const uint8_t *source = line + (size_t)(mirrored ? count - 4 - at : at) * PIXEL;
            four[part] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)source), order);
        }
        __m128i low = _mm_unpacklo_epi32(four[0], four[1]), low_other = _mm_unpacklo_epi32(four[2], four[3]);
        __m128i high = _mm_unpackhi_epi32(four[0], four[1]), high_other = _mm_unpackhi_epi32(four[2], four[3]);
        _mm_storeu_si128((__m128i *)(out.first + next), _mm_unpacklo_epi64(low, low_other));
        _mm_storeu_si128((__m128i *)(out.first + out.channel + next), _mm_unpackhi_epi64(low, low_other));
        _mm_storeu_si128((__m128i *)(out.first + 2 * out.channel + next), _mm_unpacklo_epi64(high, high_other));
    }
    for (; next < count; next += 4) {
        int at = next + 4 <= count ? next : count - 4;
        const uint8_t *source = line + (size_t)(mirrored ? count - 4 - at : at) * PIXEL;
        __m128i pixels = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)source), order);
        store_four(out.first + at * out.step, out.channel, planes, pixels);
    }
}
/* Returns the target of a row that the loops write from left to right. */
static RowTarget row_target(const Target *target, int row)
{
    return (RowTarget){target->pixels + row * target->row_step, target->column_step, target->channel_step};
}

/* Returns whether the loops with AVX2 may store a row: four pixels or more, in planes or pixel after pixel. */
static int has_fast_layout(const Target *target, int channels, int count)
{
    int pixels = target->column_step == COLOURS && target->channel_step == 1;
    return channels == COLOURS && count >= 4 && (target->column_step == 1 || pixels);
}

static void resize_row(const int16_t *row, const Filter *filter, int channels, const Target *target, int number,
                       int count)
{
    RowTarget out = row_target(target, number);
    if (has_fast_layout(target, channels, count)) {
        resize_avx2(row, filter, out, out.step == 1, count);
        return;
    }
    resize_plain(row, filter, channels == 1 ? 1 : PIXEL, channels, out, count);
}

static void copy_row(const uint8_t *line, int channels, const Target *target, int number, int mirrored, int count)
{
    RowTarget out = row_target(target, number);
    if (has_fast_layout(target, channels, count)) {
        copy_avx2(line, out, out.step == 1, mirrored, count);
        return;
    }
    if (mirrored) {
        out.first += (count - 1) * out.step;
        out.step = -out.step;
    }
    copy_plain(line, channels == 1 ? 1 : PIXEL, channels, out, count);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

/* Under AddressSanitizer, each image has memory of its own, whose parts lie apart with forbidden bytes between them. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = ALIGNMENT, SMALLEST_BLOCK = 1 };
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void)0)
enum { GAP = 0, SMALLEST_BLOCK = 1 << 18 };
#endif

/* A few blocks are kept for the next images, since new memory costs a page fault for every 4 KiB. */
enum { KEPT_BLOCKS = 16, MAX_KEPT_BYTES = 4 << 20 };
typedef struct {
    size_t size;
} Block;
static _Atomic(Block *) kept_blocks[KEPT_BLOCKS];

static Block *take_block(size_t size)
{
    for (int i = 0; i < KEPT_BLOCKS; i++) {
        Block *block = atomic_exchange(&kept_blocks[i], NULL);
        if (block && block->size >= size)
            return block;
        free(block);
    }
    if (size < SMALLEST_BLOCK)
        size = SMALLEST_BLOCK;
    Block *block = aligned_alloc(ALIGNMENT, size + ALIGNMENT);
    if (block)
        block->size = size;
    return block;
}

static void keep_block(Block *block)
{
    Block *other;
    for (int i = 0; !GAP && block->size <= MAX_KEPT_BYTES && i < KEPT_BLOCKS; i++) {
        other = NULL;
        if (atomic_compare_exchange_strong(&kept_blocks[i], &other, block))
            return;
    }
    free(block);
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + GAP;
}

/* Returns the memory at `*at` and moves that on behind it. */
static void *take_part(uint8_t **at, size_t bytes)
{
    uint8_t *part = *at;
    *at += aligned(bytes);
    ASAN_POISON_MEMORY_REGION(part + bytes, aligned(bytes) - bytes);
    return part;
}

/* The working memory of one image. */
typedef struct {
    uint8_t *ring;  /* the last rows as libjpeg decodes them */
    size_t stride;  /* bytes from one of them to the next */
    int depth;      /* how many there are */
    int16_t *sum;   /* the weighted sum of some of them */
    const uint8_t **in_use; /* the rows of one output row */
} Workspace;

static Block *make_workspace(Workspace *space, Filter *down, Filter *across, const Request *request)
{
    size_t pixel = request->channels == 1 ? 1 : PIXEL;
    size_t width = (size_t)(across->high - across->low) + across->taps;
    space->stride = aligned(OFFSET + pixel * request->columns.image + VECTOR);
    space->depth = down->taps + READ_AHEAD;
    size_t ring = space->stride * space->depth, sum = sizeof(int16_t) * (pixel * width + VECTOR);
    size_t in_use = sizeof(*space->in_use) * down->taps;
    size_t first_down = sizeof(int) * request->rows.count, first_across = sizeof(int) * request->columns.count;
    size_t weights_down = sizeof(int16_t) * request->rows.count * down->taps;
    size_t weights_across = sizeof(int16_t) * request->columns.count * across->taps;
    Block *block = take_block(aligned(ring) + aligned(sum) + aligned(in_use) + aligned(first_down) +
                              aligned(first_across) + aligned(weights_down) + aligned(weights_across));
    if (!block)
        return NULL;
    uint8_t *at = (uint8_t *)block + ALIGNMENT;
    space->ring = take_part(&at, ring);
    space->sum = take_part(&at, sum);
    space->in_use = take_part(&at, in_use);
    down->first = take_part(&at, first_down);
    across->first = take_part(&at, first_across);
    down->weights = take_part(&at, weights_down);
    across->weights = take_part(&at, weights_across);
    return block;
}

/* -- decoding ------------------------------------------------------------------------------------------------------ */

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf jump;
} ErrorManager;

static void leave(j_common_ptr decoder)
{
    longjmp(((ErrorManager *)decoder->err)->jump, 1);
}

static void on_message(j_common_ptr decoder, int level)
{
    if (level < 0)
        leave(decoder);
}

static void print_nothing(j_common_ptr decoder)
{
    (void)decoder;
}

static int is_usual(const struct jpeg_decompress_struct *decoder, const Request *request)
{
    if ((int)decoder->image_width != request->columns.image || (int)decoder->image_height != request->rows.image)
        return 0;
    if (decoder->num_components == 1)
        return decoder->jpeg_color_space == JCS_GRAYSCALE;
    if (decoder->num_components != COLOURS)
        return 0;
    if (decoder->jpeg_color_space != JCS_YCbCr && decoder->jpeg_color_space != JCS_RGB)
        return 0;
    const jpeg_component_info *luma = decoder->comp_info;
    for (int i = 1; i < COLOURS; i++)
        if (decoder->comp_info[i].h_samp_factor != 1 || decoder->comp_info[i].v_samp_factor != 1)
            return 0;
    return luma->h_samp_factor <= 2 && luma->v_samp_factor <= 2;
}

static uint8_t *ring_row(const Workspace *space, int row)
{
    return space->ring + row % space->depth * space->stride + OFFSET;
}

/* Reads some of the rows from `row` up to `end` into the ring; returns the number of the next one. */
static int read_rows(struct jpeg_decompress_struct *decoder, const Workspace *space, int row, int end)
{
    JSAMPROW rows[READ_AHEAD];
    int count = end - row < READ_AHEAD ? end - row : READ_AHEAD;
    for (int i = 0; i < count; i++)
        rows[i] = ring_row(space, row + i);
    return row + (int)jpeg_read_scanlines(decoder, rows, (JDIMENSION)count);
}

/* Returns whether libjpeg can write its rows straight to where they are stored. */
static int is_direct(const Filter *down, const Filter *across, const Request *request, const Target *target)
{
    int width = (request->columns.image + request->divisor - 1) / request->divisor;
    return down->identity && across->identity && !request->mirrored && across->low == 0 && across->high == width &&
           target->column_step == request->channels && (request->channels == 1 || target->channel_step == 1);
}

static void decode_rows(struct jpeg_decompress_struct *decoder, const Target *target, int count)
{
    JSAMPROW rows[READ_AHEAD];
    for (int row = 0; row < count;) {
        int wanted = count - row < READ_AHEAD ? count - row : READ_AHEAD;
        for (int i = 0; i < wanted; i++)
            rows[i] = target->pixels + (row + i) * target->row_step;
        row += (int)jpeg_read_scanlines(decoder, rows, (JDIMENSION)wanted);
    }
}

/* Stores rows that need no filter. */
static void copy_rows(struct jpeg_decompress_struct *decoder, const Workspace *space, const Request *request,
                      const Target *target, size_t skipped_bytes)
{
    for (int row = 0, read = 0; row < request->rows.count; row++) {
        while (read <= row)
            read = read_rows(decoder, space, read, request->rows.count);
        copy_row(ring_row(space, row) + skipped_bytes, request->channels, target, row, request->mirrored,
                 request->columns.count);
    }
}

static void filter_rows(struct jpeg_decompress_struct *decoder, Workspace *space, const Filter *down,
                        const Filter *across, const Request *request, const Target *target, size_t skipped_bytes)
{
    int values = (across->high - across->low) * (request->channels == 1 ? 1 : PIXEL), read = 0;
    for (int output = 0; output < request->rows.count; output++) {
        int first = down->first[output], taps = down->taps;
        const int16_t *weights = down->weights + (size_t)output * taps;
        while (taps > 1 && weights[taps - 1] == 0)
            taps--;
        while (read < first + taps)
            read = read_rows(decoder, space, read, down->high - down->low);
        for (int tap = 0; tap < taps; tap++)
            space->in_use[tap] = ring_row(space, first + tap) + skipped_bytes;
        weigh(space->in_use, weights, taps, space->sum, values);
        resize_row(space->sum, across, request->channels, target, output, request->columns.count);
    }
}

static int is_plausible(const Side *side)
{
    return side->image > 0 && side->image <= JPEG_MAX_DIMENSION && side->start >= 0 && side->length > 0 &&
           side->length <= side->image - side->start && side->size > 0 && side->size <= MAX_SIDE && side->cut >= 0 &&
           side->count > 0 && side->count <= side->size - side->cut;
}

static void begin(struct jpeg_decompress_struct *decoder, const uint8_t *jpeg, size_t size, const Request *request,
                  int direct)
{
    jpeg_create_decompress(decoder);
    jpeg_mem_src(decoder, jpeg, (unsigned long)size);
    jpeg_read_header(decoder, TRUE);
    if (!is_usual(decoder, request))
        leave((j_common_ptr)decoder);
    decoder->out_color_space = request->channels == 1 ? JCS_GRAYSCALE : direct ? JCS_EXT_RGB : JCS_EXT_RGBX;
    decoder->scale_num = 1;
    decoder->scale_denom = (unsigned)request->divisor;
    decoder->dct_method = JDCT_ISLOW;
    decoder->do_fancy_upsampling = !request->coarse_chroma;
    jpeg_start_decompress(decoder);
}

/* Lets libjpeg skip what lies above and beside the window; returns how many columns of a row are left to skip. */
static int skip_to_window(struct jpeg_decompress_struct *decoder, const Filter *down, const Filter *across)
{
    JDIMENSION begin = 0, width = decoder->output_width;
    int from = across->low - CHROMA_REACH, to = across->high + CHROMA_REACH;
    if (from > 0 || to < (int)width) {
        begin = (JDIMENSION)(from > 0 ? from : 0);
        width = (to < (int)width ? (JDIMENSION)to : width) - begin;
        jpeg_crop_scanline(decoder, &begin, &width);
    }
    if (down->low > 0)
        jpeg_skip_scanlines(decoder, (JDIMENSION)down->low);
    return across->low - (int)begin;
}

static Outcome decode_with(Workspace *space, Filter *down, Filter *across, const uint8_t *jpeg, size_t size,
                           const Request *request, const Target *target)
{
    struct jpeg_decompress_struct decoder;
    ErrorManager errors;
    memset(&decoder, 0, sizeof(decoder));
    decoder.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = leave;
    errors.base.emit_message = on_message;
    errors.base.output_message = print_nothing;
    if (setjmp(errors.jump)) {
        jpeg_destroy_decompress(&decoder);
        return NOT_DECODED;
    }
    int direct = is_direct(down, across, request, target);
    begin(&decoder, jpeg, size, request, direct);
    size_t skipped = (size_t)skip_to_window(&decoder, down, across) * decoder.output_components;
    if (direct) {
        decode_rows(&decoder, target, request->rows.count);
    } else if (down->identity && across->identity) {
        copy_rows(&decoder, space, request, target, skipped);
    } else {
        fill_filter(down, &request->rows, request->divisor, 0);
        fill_filter(across, &request->columns, request->divisor, request->mirrored);
        filter_rows(&decoder, space, down, across, request, target, skipped);
    }
    if (down->high == (int)decoder.output_height) { /* the end was read: what libjpeg says of it counts */
        if (decoder.output_scanline < decoder.output_height)
            jpeg_skip_scanlines(&decoder, decoder.output_height - decoder.output_scanline);
        jpeg_finish_decompress(&decoder);
    }
    jpeg_destroy_decompress(&decoder);
    return DECODED;
}

int is_supported(void)
{
    return __builtin_cpu_supports("avx2");
}

Outcome decode_jpeg_window(const uint8_t *jpeg, size_t size, const Request *request, const Target *target)
{
    Filter down, across;
    Workspace space;
    if (!is_plausible(&request->rows) || !is_plausible(&request->columns) || size > (unsigned long)-1)
        return NOT_DECODED;
    if (!plan_filter(&down, &request->rows, request->divisor))
        return NOT_DECODED;
    if (!plan_filter(&across, &request->columns, request->divisor))
        return NOT_DECODED;
    Block *block = make_workspace(&space, &down, &across, request);
    if (!block)
        return NO_MEMORY;
    Outcome outcome = decode_with(&space, &down, &across, jpeg, size, request, target);
    keep_block(block);
    return outcome;
}
