/* Decodes a window of a JPEG and resizes it, row by row, into memory of the caller.

   libjpeg-turbo decodes only the columns and rows that the window needs. Each row is split into planes of 16 bits, of
   which the last few are kept; an output row is the weighted sum of those that its filter covers, first down the rows
   and then across the columns. So no pixel is stored between decoding and its place in the batch, except in a few rows
   that stay in the processor's cache.

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

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#define WITH_AVX2 __attribute__((target("avx2")))
#else
#define HAS_AVX2 0
#define WITH_AVX2
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    WEIGHT_BITS = 14,
    VALUE_BITS = 6,
    WEIGHT_ONE = 1 << WEIGHT_BITS,
    ROUND_SHIFT = WEIGHT_BITS + VALUE_BITS,
    VECTOR = 32,      /* values that the loops over rows handle at a time; rows are padded to a multiple */
    TAP_GROUP = 8,    /* weights of an output pixel are padded to a multiple of this */
    MAX_TAPS = 64,    /* more source pixels for one output pixel are left to the caller, which averages first */
    CHROMA_REACH = 2, /* columns beside the window that interpolation of the colours reads */
    CHANNELS = 3,
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

/* Splits pixels of four bytes into planes of 16 bits, shifted by `shift`. */
ALWAYS_INLINE void split_body(const uint8_t *pixels, int16_t *planes, ptrdiff_t plane, int count, int shift)
{
    int16_t *restrict red = planes, *restrict green = planes + plane, *restrict blue = planes + 2 * plane;
    for (int column = 0; column < count; column++) {
        red[column] = (int16_t)(pixels[4 * column] << shift);
        green[column] = (int16_t)(pixels[4 * column + 1] << shift);
        blue[column] = (int16_t)(pixels[4 * column + 2] << shift);
    }
}

ALWAYS_INLINE void widen_body(const uint8_t *restrict pixels, int16_t *restrict row, int count, int shift)
{
    for (int column = 0; column < count; column++)
        row[column] = (int16_t)(pixels[column] << shift);
}

/* Sums rows by their weights. The product is rounded as the processor's own 16-bit instruction does it. */
ALWAYS_INLINE void weigh_body(const int16_t *const *rows, const int16_t *weights, int taps, int16_t *restrict sum, int count)
{
    for (int column = 0; column < count; column += VECTOR) {
        int16_t block[VECTOR] = {0};
        for (int tap = 0; tap < taps; tap++) {
            const int16_t *row = rows[tap] + column;
            int32_t weight = weights[tap];
            for (int lane = 0; lane < VECTOR; lane++)
                block[lane] = (int16_t)(block[lane] + (int16_t)((((row[lane] * weight) >> 14) + 1) >> 1));
        }
        memcpy(sum + column, block, sizeof(block));
    }
}

ALWAYS_INLINE void split_bytes_body(const uint8_t *pixels, uint8_t *restrict red, uint8_t *restrict green,
                                    uint8_t *restrict blue, int count)
{
    for (int column = 0; column < count; column++) {
        red[column] = pixels[4 * column];
        green[column] = pixels[4 * column + 1];
        blue[column] = pixels[4 * column + 2];
    }
}

#define TWO_VERSIONS(name, parameters, arguments)                                                                      \
    static void name##_plain parameters { name##_body arguments; }                                                     \
    WITH_AVX2 static void name##_avx2 parameters { name##_body arguments; }                                            \
    static inline void name parameters                                                                                 \
    {                                                                                                                  \
        if (HAS_AVX2)                                                                                                  \
            name##_avx2 arguments;                                                                                     \
        else                                                                                                           \
            name##_plain arguments;                                                                                    \
    }

TWO_VERSIONS(split, (const uint8_t *pixels, int16_t *planes, ptrdiff_t plane, int count, int shift),
             (pixels, planes, plane, count, shift))
TWO_VERSIONS(widen, (const uint8_t *pixels, int16_t *row, int count, int shift), (pixels, row, count, shift))
TWO_VERSIONS(weigh, (const int16_t *const *rows, const int16_t *weights, int taps, int16_t *sum, int count),
             (rows, weights, taps, sum, count))
TWO_VERSIONS(split_bytes, (const uint8_t *pixels, uint8_t *red, uint8_t *green, uint8_t *blue, int count),
             (pixels, red, green, blue, count))

static uint8_t to_byte(int32_t sum)
{
    int32_t value = (sum + (1 << (ROUND_SHIFT - 1))) >> ROUND_SHIFT;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Resizes one row of one channel across the columns. */
static void resize_row(const int16_t *row, const Filter *filter, uint8_t *out, ptrdiff_t step, int count)
{
    int at = 0, taps = filter->taps;
#if defined(__SSE2__)
    for (; at + 4 <= count; at += 4) {
        __m128i sums[4];
        for (int lane = 0; lane < 4; lane++) {
            const int16_t *source = row + filter->first[at + lane];
            const int16_t *weights = filter->weights + (size_t)(at + lane) * taps;
            __m128i sum = _mm_madd_epi16(_mm_loadu_si128((const __m128i *)source), _mm_load_si128((const __m128i *)weights));
            for (int tap = TAP_GROUP; tap < taps; tap += TAP_GROUP)
                sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_loadu_si128((const __m128i *)(source + tap)),
                                                        _mm_load_si128((const __m128i *)(weights + tap))));
            sums[lane] = sum;
        }
        __m128i low = _mm_add_epi32(_mm_unpacklo_epi32(sums[0], sums[1]), _mm_unpackhi_epi32(sums[0], sums[1]));
        __m128i high = _mm_add_epi32(_mm_unpacklo_epi32(sums[2], sums[3]), _mm_unpackhi_epi32(sums[2], sums[3]));
        __m128i all = _mm_add_epi32(_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high));
        all = _mm_srai_epi32(_mm_add_epi32(all, _mm_set1_epi32(1 << (ROUND_SHIFT - 1))), ROUND_SHIFT);
        all = _mm_packs_epi32(all, all);
        uint32_t bytes = (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(all, all));
        if (step == 1) {
            memcpy(out + at, &bytes, 4);
        } else {
            for (int lane = 0; lane < 4; lane++)
                out[(at + lane) * step] = (uint8_t)(bytes >> (8 * lane));
        }
    }
#endif
    for (; at < count; at++) {
        const int16_t *source = row + filter->first[at], *weights = filter->weights + (size_t)at * taps;
        int32_t sum = 0;
        for (int tap = 0; tap < taps; tap++)
            sum += source[tap] * weights[tap];
        out[at * step] = to_byte(sum);
    }
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

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
    if (size < 1 << 18)
        size = 1 << 18;
    Block *block = aligned_alloc(ALIGNMENT, (size + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (block)
        block->size = size;
    return block;
}

static void keep_block(Block *block)
{
    Block *other = block;
    for (int i = 0; block && block->size <= MAX_KEPT_BYTES && i < KEPT_BLOCKS; i++) {
        other = NULL;
        if (atomic_compare_exchange_strong(&kept_blocks[i], &other, block))
            return;
    }
    free(block);
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The working memory of one image. */
typedef struct {
    uint8_t *line;          /* a row as libjpeg decodes it */
    int16_t *ring;          /* the last rows, as planes */
    int16_t *sum;           /* the weighted sum of some of them */
    ptrdiff_t plane;        /* values of a plane in these two, with padding */
    ptrdiff_t row;          /* values of a row: all its planes */
    int depth;              /* rows in the ring */
    const int16_t **in_use; /* the rows of one output row */
} Workspace;

static Block *make_workspace(Workspace *space, Filter *down, Filter *across, const Request *request)
{
    size_t width = (size_t)(across->high - across->low) + across->taps;
    space->plane = (ptrdiff_t)((width + VECTOR - 1) / VECTOR * VECTOR);
    space->row = space->plane * request->channels;
    space->depth = down->taps;
    size_t line = aligned(4 * ((size_t)request->columns.image + ALIGNMENT));
    size_t ring = aligned(sizeof(int16_t) * space->row * space->depth), sum = aligned(sizeof(int16_t) * space->row);
    size_t in_use = aligned(sizeof(*space->in_use) * space->depth);
    size_t first_down = aligned(sizeof(int) * request->rows.count);
    size_t first_across = aligned(sizeof(int) * request->columns.count);
    size_t weights_down = aligned(sizeof(int16_t) * request->rows.count * down->taps);
    size_t weights_across = aligned(sizeof(int16_t) * request->columns.count * across->taps);
    size_t size = line + ring + sum + in_use + first_down + first_across + weights_down + weights_across;
    Block *block = take_block(size);
    if (!block)
        return NULL;
    uint8_t *at = (uint8_t *)block + ALIGNMENT;
    space->line = at;
    space->ring = (int16_t *)(at += line);
    space->sum = (int16_t *)(at += ring);
    space->in_use = (const int16_t **)(at += sum);
    down->first = (int *)(at += in_use);
    across->first = (int *)(at += first_down);
    down->weights = (int16_t *)(at += first_across);
    across->weights = (int16_t *)(at + weights_down);
    memset(space->ring, 0, ring + sum); /* padding is multiplied by weights of 0 */
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
    if (decoder->num_components != CHANNELS)
        return 0;
    if (decoder->jpeg_color_space != JCS_YCbCr && decoder->jpeg_color_space != JCS_RGB)
        return 0;
    const jpeg_component_info *luma = decoder->comp_info;
    for (int i = 1; i < CHANNELS; i++)
        if (decoder->comp_info[i].h_samp_factor != 1 || decoder->comp_info[i].v_samp_factor != 1)
            return 0;
    return luma->h_samp_factor <= 2 && luma->v_samp_factor <= 2;
}

/* Reads one row, from the column at which the filter begins. */
static const uint8_t *read_line(struct jpeg_decompress_struct *decoder, const Workspace *space, int skipped_columns)
{
    JSAMPROW line = space->line;
    jpeg_read_scanlines(decoder, &line, 1);
    return space->line + (size_t)skipped_columns * decoder->output_components;
}

/* Stores rows that need no filter. */
static void copy_rows(struct jpeg_decompress_struct *decoder, const Workspace *space, const Request *request,
                      const Target *target, int skipped_columns)
{
    int count = request->columns.count;
    ptrdiff_t step = request->mirrored ? -target->column_step : target->column_step, channel = target->channel_step;
    uint8_t *first = target->pixels + (request->mirrored ? (count - 1) * target->column_step : 0);
    for (int row = 0; row < request->rows.count; row++) {
        const uint8_t *line = read_line(decoder, space, skipped_columns);
        uint8_t *out = first + row * target->row_step;
        if (request->channels == 1 && step == 1)
            memcpy(out, line, count);
        else if (request->channels == 1)
            for (int column = 0; column < count; column++)
                out[column * step] = line[column];
        else if (step == 1)
            split_bytes(line, out, out + channel, out + 2 * channel, count);
        else
            for (int column = 0; column < count; column++, out += step, line += 4) {
                out[0] = line[0];
                out[channel] = line[1];
                out[2 * channel] = line[2];
            }
    }
}

static void filter_rows(struct jpeg_decompress_struct *decoder, Workspace *space, const Filter *down,
                        const Filter *across, const Request *request, const Target *target, int skipped_columns)
{
    int width = across->high - across->low, read = 0;
    for (int output = 0; output < request->rows.count; output++) {
        int first = down->first[output], taps = down->taps;
        const int16_t *weights = down->weights + (size_t)output * taps;
        while (taps > 1 && weights[taps - 1] == 0)
            taps--;
        for (; read < first + taps; read++) {
            const uint8_t *line = read_line(decoder, space, skipped_columns);
            int16_t *row = space->ring + (read % space->depth) * space->row;
            if (request->channels == 1)
                widen(line, row, width, VALUE_BITS + 1);
            else
                split(line, row, space->plane, width, VALUE_BITS + 1);
        }
        for (int tap = 0; tap < taps; tap++)
            space->in_use[tap] = space->ring + ((first + tap) % space->depth) * space->row;
        weigh(space->in_use, weights, taps, space->sum, (int)space->row);
        for (int channel = 0; channel < request->channels; channel++)
            resize_row(space->sum + channel * space->plane, across,
                       target->pixels + output * target->row_step + channel * target->channel_step, target->column_step,
                       request->columns.count);
    }
}

static int is_plausible(const Side *side)
{
    return side->image > 0 && side->image <= JPEG_MAX_DIMENSION && side->start >= 0 && side->length > 0 &&
           side->length <= side->image - side->start && side->size > 0 && side->size <= MAX_SIDE && side->cut >= 0 && side->count > 0 &&
           side->count <= side->size - side->cut;
}

static void begin(struct jpeg_decompress_struct *decoder, const uint8_t *jpeg, size_t size, const Request *request)
{
    jpeg_create_decompress(decoder);
    jpeg_mem_src(decoder, jpeg, (unsigned long)size);
    jpeg_read_header(decoder, TRUE);
    if (!is_usual(decoder, request))
        leave((j_common_ptr)decoder);
    decoder->out_color_space = request->channels == 1 ? JCS_GRAYSCALE : JCS_EXT_RGBX;
    decoder->scale_num = 1;
    decoder->scale_denom = (unsigned)request->divisor;
    decoder->dct_method = JDCT_ISLOW;
    decoder->do_fancy_upsampling = !request->coarse_chroma;
    jpeg_start_decompress(decoder);
}

/* Lets libjpeg skip what lies above and beside the window; returns how many columns of a row are still to be skipped. */
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
    begin(&decoder, jpeg, size, request);
    int skipped_columns = skip_to_window(&decoder, down, across);
    if (down->identity && across->identity) {
        copy_rows(&decoder, space, request, target, skipped_columns);
    } else {
        fill_filter(down, &request->rows, request->divisor, 0);
        fill_filter(across, &request->columns, request->divisor, request->mirrored);
        filter_rows(&decoder, space, down, across, request, target, skipped_columns);
    }
    if (down->high == (int)decoder.output_height) { /* the end was read: what libjpeg says of it counts */
        if (decoder.output_scanline < decoder.output_height)
            jpeg_skip_scanlines(&decoder, decoder.output_height - decoder.output_scanline);
        jpeg_finish_decompress(&decoder);
    }
    jpeg_destroy_decompress(&decoder);
    return DECODED;
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
