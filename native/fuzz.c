/* Gives damaged JPEGs and random requests to decode_jpeg_window, by libFuzzer; scripts/fuzz_decoder.py runs it.

   An input is REQUEST_BYTES that choose a request, and then a JPEG. Every fourth image is decoded twice, into memory of
   different content: a difference means that a pixel was not written, or was computed from memory that was not set. */
#include "jpeg_window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REQUEST_BYTES = 16,
    MAX_PIXELS = 1 << 18, /* larger images are refused, as the guard in Python refuses far larger ones, to save time */
    MAX_SCANS = 20,
    MAX_RESULT = 96
};

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *other, size_t other_size,
                                 uint8_t *out, size_t max_size, unsigned int seed);

static long given, decoded; /* JPEGs that were given to the decoder, and those of which it made pixels */

__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "JPEGs given: %ld, decoded: %ld\n", given, decoded);
}

/* Finds the first frame header, as the guard does; returns the offset of its height, or 0. */
static size_t find_frame(const uint8_t *jpeg, size_t size)
{
    for (size_t at = 2; at + 10 <= size;) {
        if (jpeg[at] != 0xFF) {
            at++;
            continue;
        }
        uint8_t marker = jpeg[at + 1];
        if (marker >= 0xC0 && marker <= 0xC2)
            return at + 5;
        if (marker == 0xDA)
            return 0;
        at += marker == 0xFF ? 1 : 2 + (size_t)(jpeg[at + 2] << 8 | jpeg[at + 3]);
    }
    return 0;
}

static int count_scans(const uint8_t *jpeg, size_t size)
{
    int scans = 0;
    for (size_t at = 0; at + 1 < size; at++)
        scans += jpeg[at] == 0xFF && jpeg[at + 1] == 0xDA;
    return scans;
}

/* Chooses the window and the result along one side by five random bytes. */
static void choose_side(Side *side, int image, const uint8_t *bytes)
{
    side->image = image;
    side->start = (int)((long)(image - 1) * bytes[0] / 255) * (bytes[0] < 192);
    side->length = 1 + (int)((long)(image - side->start - 1) * (bytes[1] < 128 ? bytes[1] * 2 : 255) / 255);
    if (bytes[2] < 64)
        side->size = side->length; /* neither enlarged nor reduced, if the divisor is 1 */
    else
        side->size = 1 + bytes[2] % MAX_RESULT;
    side->cut = bytes[3] < 128 ? 0 : (side->size - 1) * (bytes[3] - 128) / 127;
    side->count = 1 + (side->size - side->cut - 1) * (bytes[4] < 128 ? bytes[4] * 2 : 255) / 255;
}

static uint8_t *decode(const uint8_t *jpeg, size_t size, const Request *request, int planes, int fill, Outcome *outcome)
{
    size_t pixels = (size_t)request->rows.count * request->columns.count;
    size_t bytes = pixels * request->channels;
    uint8_t *out = malloc(bytes);
    if (!out)
        abort();
    memset(out, fill, bytes);
    Target target = {out, request->columns.count * (planes ? 1 : request->channels), planes ? 1 : request->channels,
                     planes ? (ptrdiff_t)pixels : 1};
    *outcome = decode_jpeg_window(jpeg, size, request, &target);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < REQUEST_BYTES + 4)
        return -1;
    const uint8_t *jpeg = data + REQUEST_BYTES;
    size -= REQUEST_BYTES;
    size_t frame = find_frame(jpeg, size);
    if (!frame)
        return -1;
    int height = jpeg[frame] << 8 | jpeg[frame + 1], width = jpeg[frame + 2] << 8 | jpeg[frame + 3];
    if ((long)height * width > MAX_PIXELS || count_scans(jpeg, size) > MAX_SCANS)
        return -1;
    Request request;
    int flags = data[0];
    choose_side(&request.rows, height ? height : 1, data + 2);
    choose_side(&request.columns, width ? width : 1, data + 7);
    if (data[1] >= 250) /* a caller that has read another size */
        request.rows.image += data[1] - 252;
    request.divisor = data[12] < 128 ? 1 : 1 << (data[12] & 3);
    request.coarse_chroma = flags & 1;
    request.mirrored = flags >> 1 & 1;
    request.channels = flags & 4 ? 1 : 3;
    int planes = flags >> 3 & 1;
    Outcome outcome, again;
    uint8_t *out = decode(jpeg, size, &request, planes, 0x55, &outcome);
    given++;
    decoded += outcome == DECODED;
    if ((flags & 0x30) == 0) {
        uint8_t *second = decode(jpeg, size, &request, planes, 0xAA, &again);
        size_t bytes = (size_t)request.rows.count * request.columns.count * request.channels;
        if (again != outcome || (outcome == DECODED && memcmp(out, second, bytes)))
            abort();
        free(second);
    }
    free(out);
    return 0;
}

static unsigned int next_number(unsigned int *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Returns the offset of a random marker, or of a random byte if there is none near. */
static size_t random_marker(const uint8_t *data, size_t size, unsigned int *random)
{
    size_t from = REQUEST_BYTES + next_number(random) % (size - REQUEST_BYTES);
    for (size_t at = from; at + 1 < size; at++)
        if (data[at] == 0xFF && data[at + 1] > 0 && data[at + 1] < 0xFF)
            return at;
    return from;
}

static void flip_bits(uint8_t *data, size_t size, unsigned int *random)
{
    for (unsigned int flips = 1 + next_number(random) % 4; flips; flips--)
        data[REQUEST_BYTES + next_number(random) % (size - REQUEST_BYTES)] ^= (uint8_t)(1 << next_number(random) % 8);
}

static void edit_marker(uint8_t *data, size_t size, unsigned int *random)
{
    static const uint8_t markers[] = {0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC9, 0xCC, 0xD0, 0xD5, 0xD7, 0xD8, 0xD9, 0xDA,
                                      0xDB, 0xDC, 0xDD, 0xE0, 0xEE, 0xFE, 0x00, 0x01, 0xFF};
    size_t at = random_marker(data, size, random), byte = next_number(random) % 12;
    if (next_number(random) % 2 && at + 1 < size)
        data[at + 1] = markers[next_number(random) % sizeof(markers)];
    else if (at + 2 + byte < size) /* the segment's length, or the numbers behind it */
        data[at + 2 + byte] = (uint8_t)(next_number(random) % 2 ? next_number(random) : next_number(random) % 5);
}

static void edit_size(uint8_t *data, size_t size, unsigned int *random)
{
    size_t frame = find_frame(data + REQUEST_BYTES, size - REQUEST_BYTES);
    if (frame)
        data[REQUEST_BYTES + frame + 1 + 2 * (next_number(random) % 2)] = (uint8_t)next_number(random);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    unsigned int random = seed * 2654435761u + 1;
    if (size < REQUEST_BYTES + 4)
        return LLVMFuzzerMutate(data, size, max_size);
    for (int at = 0; at < REQUEST_BYTES; at++)
        if (next_number(&random) % 4 == 0)
            data[at] = (uint8_t)next_number(&random);
    switch (next_number(&random) % 8) {
    case 0: /* another request for the same JPEG */
        return size;
    case 1:
    case 2:
        flip_bits(data, size, &random);
        return size;
    case 3:
    case 4:
        edit_marker(data, size, &random);
        return size;
    case 5:
        edit_size(data, size, &random);
        return size;
    case 6:
        return REQUEST_BYTES + 4 + next_number(&random) % (size - REQUEST_BYTES - 3);
    default:
        return REQUEST_BYTES + LLVMFuzzerMutate(data + REQUEST_BYTES, size - REQUEST_BYTES, max_size - REQUEST_BYTES);
    }
}

/* Splices the beginning of one JPEG and the end of another, mostly at markers. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *other, size_t other_size,
                                 uint8_t *out, size_t max_size, unsigned int seed)
{
    unsigned int random = seed * 2654435761u + 1;
    if (one_size <= REQUEST_BYTES + 4 || other_size <= REQUEST_BYTES + 4)
        return 0;
    size_t end = random_marker(one, one_size, &random), start = random_marker(other, other_size, &random);
    end = end > max_size ? max_size : end;
    size_t rest = other_size - start > max_size - end ? max_size - end : other_size - start;
    memcpy(out, one, end);
    memcpy(out + end, other + start, rest);
    return end + rest;
}
