/* Decodes a window of a JPEG and resizes it, row by row, into memory of the caller. */
#ifndef PENSTOCK_JPEG_WINDOW_H
#define PENSTOCK_JPEG_WINDOW_H

#include <stddef.h>
#include <stdint.h>

/* One side of the window and of the result: its length in the image is resized to `size`, and `count` pixels of that
   are stored, from pixel `cut` on. */
typedef struct {
    int image;  /* length of the whole image, as the caller has read it from the header */
    int start;  /* first pixel of the window */
    int length; /* pixels of the window */
    int size;   /* pixels to which the window is resized */
    int cut;    /* resized pixels that are left out at the beginning */
    int count;  /* resized pixels that are stored */
} Side;

typedef struct {
    Side rows, columns;
    int divisor;       /* 1, 2, 4 or 8: the decoder shrinks the image by it, and the filter does the rest */
    int coarse_chroma; /* whether colours stored at half the size are enlarged without interpolation */
    int mirrored;      /* whether each row is stored from right to left */
    int channels;      /* 3 for RGB, 1 for greyscale */
} Request;

typedef struct {
    uint8_t *pixels;
    ptrdiff_t row_step, column_step, channel_step; /* in bytes */
} Target;

typedef enum {
    DECODED,
    NOT_DECODED, /* libjpeg has reported an error or a warning, or this decoder does not handle the image */
    NO_MEMORY
} Outcome;

/* Returns whether this processor has the instructions that the decoder uses. */
int is_supported(void);

/* Writes rows.count × columns.count pixels. The target has undefined content unless the outcome is DECODED. */
Outcome decode_jpeg_window(const uint8_t *jpeg, size_t size, const Request *request, const Target *target);

#endif
