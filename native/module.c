/* The Python module penstock._decode: one function, which decodes and resizes without the interpreter's lock. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>

#include "jpeg_window.h"

enum { ARGUMENTS = 17 };

static int to_int(PyObject *number, int *value)
{
    long found = PyLong_AsLong(number);
    if (found == -1 && PyErr_Occurred())
        return 0;
    if (found < 0 || found > INT_MAX) {
        PyErr_Format(PyExc_ValueError, "%ld is out of range", found);
        return 0;
    }
    *value = (int)found;
    return 1;
}

static int read_request(PyObject *const *numbers, Request *request)
{
    int *fields[] = {&request->divisor,     &request->coarse_chroma,  &request->mirrored,
                     &request->rows.image,  &request->rows.start,     &request->rows.length,
                     &request->rows.size,   &request->rows.cut,       &request->rows.count,
                     &request->columns.image, &request->columns.start, &request->columns.length,
                     &request->columns.size, &request->columns.cut,   &request->columns.count};
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        if (!to_int(numbers[i], fields[i]))
            return 0;
    if (request->divisor != 1 && request->divisor != 2 && request->divisor != 4 && request->divisor != 8) {
        PyErr_Format(PyExc_ValueError, "the divisor is %d, not 1, 2, 4 or 8", request->divisor);
        return 0;
    }
    return 1;
}

/* Checks that the output has the shape (rows, columns, 1 or 3) of the request, in bytes. */
static int fits(const Py_buffer *out, Request *request)
{
    if (out->ndim != 3 || out->itemsize != 1 || out->shape[0] != request->rows.count ||
        out->shape[1] != request->columns.count || (out->shape[2] != 1 && out->shape[2] != 3)) {
        PyErr_SetString(PyExc_ValueError, "the output is not (rows, columns, 1 or 3) bytes");
        return 0;
    }
    request->channels = (int)out->shape[2];
    return 1;
}

PyDoc_STRVAR(decode_window_doc,
             "decode_window(jpeg, out, divisor, coarse_chroma, mirrored, *rows, *columns)\n--\n\n"
             "Decode a window of a JPEG, resize it, and store it in out, of shape (rows, columns, 1 or 3).\n\n"
             "rows and columns are six numbers each: length of the whole image, start and length of the window, length\n"
             "to which it is resized, pixels of that which are left out at the beginning, and pixels that are stored.\n"
             "Return False, with undefined content in out, if libjpeg warns of anything or the image is unusual.");

static PyObject *decode_window(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "decode_window takes %d arguments, not %zd", ARGUMENTS, count);
        return NULL;
    }
    Request request;
    Py_buffer jpeg, out;
    if (!read_request(arguments + 2, &request))
        return NULL;
    if (PyObject_GetBuffer(arguments[0], &jpeg, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(arguments[1], &out, PyBUF_STRIDES | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&jpeg);
        return NULL;
    }
    Outcome outcome = NOT_DECODED;
    int usable = fits(&out, &request);
    if (usable) {
        Target target = {out.buf, out.strides[0], out.strides[1], out.strides[2]};
        Py_BEGIN_ALLOW_THREADS
        outcome = decode_jpeg_window(jpeg.buf, (size_t)jpeg.len, &request, &target);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&jpeg);
    if (!usable)
        return NULL;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    return PyBool_FromLong(outcome == DECODED);
}

static PyMethodDef methods[] = {
    {"decode_window", (PyCFunction)(void (*)(void))decode_window, METH_FASTCALL, decode_window_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    "penstock._decode",
    "Decode and resize a window of a JPEG in one call.",
    0,
    methods,
    slots,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__decode(void)
{
    if (!is_supported()) {
        PyErr_SetString(PyExc_ImportError, "this processor has no AVX2");
        return NULL;
    }
    return PyModuleDef_Init(&module);
}
