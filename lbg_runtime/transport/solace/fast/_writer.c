/* The message writer of the fast publish path, for installations that could compile it.

   writer.py says what it does and promises; here it is done without a Python object for each argument. It writes what
   publishers usually send: a payload of bytes, properties that are texts and 64-bit integers, of up to a mebibyte
   together, and headers. On anything else, and on every mistake and every error of the library, it returns False, and
   the message is written again from its beginning by the writer in Python, which alone knows what is wrong and says
   so.

   Nothing of the client is linked or included: its functions come as addresses from the handle that
   publish_calls.py has opened. All of it runs with the interpreter's lock held. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { OK = 0, TOPIC_KIND = 0 };
enum { FUNCTIONS = 16, PARTS = 6, HEADERS = 4 };
/* The writer in Python decides whether a larger message can be sent at all. ITEM_BYTES is more than a property adds. */
enum { USUAL_BYTES = 1 << 20, ITEM_BYTES = 32 };

typedef struct {
    int kind;
    const char *name;
} Destination;

typedef struct {
    int (*reset)(void *);
    int (*set_mode)(void *, uint32_t);
    int (*set_dmq_eligible)(void *, int);
    int (*set_destination)(void *, const Destination *, size_t);
    int (*set_payload)(void *, const void *, uint32_t);
    int (*set_message_id)(void *, const char *);
    int (*set_sent_at)(void *, int64_t);
    int (*create_properties)(void *, void **, size_t);
    int (*add_string)(void *, const char *, const char *);
    int (*add_int64)(void *, int64_t, const char *);
    int (*close)(void **);
    int (*set_tag)(void *, const void *, uint32_t);
    int (*set_correlation_id)(void *, const char *);
    int (*set_message_type)(void *, const char *);
    int (*set_sequence_number)(void *, uint64_t);
    int (*set_priority)(void *, int32_t);
} Functions;

typedef struct {
    PyObject_HEAD
    Functions call;
    uint32_t mode, tag_bytes;
    Py_ssize_t topic_bytes;
    PyObject *no_headers; /* of nearly every message */
} Writer;

static const char *const part_texts[PARTS] = {"topic", "payload", "properties", "message_id", "sent_at_ms", "headers"};
static const char *const header_texts[HEADERS] = {"correlation_id", "message_type", "sequence_number", "priority"};
static PyObject *part_names[PARTS], *header_names[HEADERS];

static void writer_dealloc(Writer *self)
{
    Py_XDECREF(self->no_headers);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static void release(PyObject **values, int count)
{
    while (count > 0)
        Py_DECREF(values[--count]);
}

/* Fetches new references to all of these attributes; false if one is missing. */
static bool fetch(PyObject *object, PyObject *const *names, PyObject **values, int count)
{
    for (int i = 0; i < count; i++)
        if ((values[i] = PyObject_GetAttr(object, names[i])) == NULL) {
            release(values, i);
            return false;
        }
    return true;
}

/* Returns its bytes, or NULL if it is not a text or contains a NUL, at which the library would truncate it. */
static const char *text_of(PyObject *object, Py_ssize_t *size)
{
    if (!PyUnicode_CheckExact(object))
        return NULL;
    const char *text = PyUnicode_AsUTF8AndSize(object, size);
    return text != NULL && strlen(text) == (size_t)*size ? text : NULL;
}

static bool int64_of(PyObject *object, int64_t *integer)
{
    int overflow;
    if (!PyLong_CheckExact(object))
        return false;
    *integer = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && !PyErr_Occurred();
}

/* `room`: the bytes that the properties may take. */
static bool write_properties(const Functions *call, void *native, PyObject *properties, Py_ssize_t room)
{
    void *map = NULL;
    PyObject *name, *value;
    Py_ssize_t position = 0, size, value_size;
    int64_t integer;
    if (!PyDict_CheckExact(properties))
        return false;
    if (PyDict_GET_SIZE(properties) == 0)
        return true;
    if (call->create_properties(native, &map, 0) != OK)
        return false;
    /* If this ends half-way, the container is closed with its message. */
    while (PyDict_Next(properties, &position, &name, &value)) {
        const char *name_text = text_of(name, &size);
        if (name_text == NULL || size == 0)
            return false;
        const char *text = text_of(value, &value_size);
        int code = 1;
        room -= ITEM_BYTES + size + (text != NULL ? value_size : 0);
        if (room < 0)
            return false;
        if (text != NULL)
            code = call->add_string(map, text, name_text);
        else if (!PyErr_Occurred() && int64_of(value, &integer))
            code = call->add_int64(map, integer, name_text);
        if (code != OK)
            return false;
    }
    return call->close(&map) == OK;
}

static bool write_header_parts(const Functions *call, void *native, PyObject *const *parts)
{
    Py_ssize_t size;
    int64_t integer;
    if (parts[0] != Py_None) {
        const char *correlation_id = text_of(parts[0], &size);
        if (correlation_id == NULL || size > USUAL_BYTES || call->set_correlation_id(native, correlation_id) != OK)
            return false;
    }
    if (parts[1] != Py_None) {
        const char *message_type = text_of(parts[1], &size);
        if (message_type == NULL || size > USUAL_BYTES || call->set_message_type(native, message_type) != OK)
            return false;
    }
    /* Larger numbers are rare. */
    if (parts[2] != Py_None &&
        (!int64_of(parts[2], &integer) || integer < 0 || call->set_sequence_number(native, (uint64_t)integer) != OK))
        return false;
    return parts[3] == Py_None || (int64_of(parts[3], &integer) && integer >= 0 && integer <= UINT8_MAX &&
                                   call->set_priority(native, (int32_t)integer) == OK);
}

static bool write_headers(const Writer *self, void *native, PyObject *headers)
{
    PyObject *parts[HEADERS];
    if (headers == self->no_headers)
        return true;
    if (Py_TYPE(headers) != Py_TYPE(self->no_headers) || !fetch(headers, header_names, parts, HEADERS))
        return false;
    bool is_written = write_header_parts(&self->call, native, parts);
    release(parts, HEADERS);
    return is_written;
}

/* Writes the parts of the message; false if it must be written in Python instead. */
static bool write_parts(const Writer *self, void *native, PyObject *const *parts, const void *tag)
{
    const Functions *call = &self->call;
    Py_ssize_t size;
    int64_t integer;
    if (call->reset(native) != OK || call->set_mode(native, self->mode) != OK || call->set_dmq_eligible(native, 1) != OK)
        return false;
    Destination destination = {TOPIC_KIND, text_of(parts[0], &size)};
    if (destination.name == NULL || size == 0 || size > self->topic_bytes ||
        call->set_destination(native, &destination, sizeof destination) != OK)
        return false;
    if (!PyBytes_CheckExact(parts[1]) || PyBytes_GET_SIZE(parts[1]) > USUAL_BYTES ||
        call->set_payload(native, PyBytes_AS_STRING(parts[1]), (uint32_t)PyBytes_GET_SIZE(parts[1])) != OK)
        return false;
    if (!write_properties(call, native, parts[2], USUAL_BYTES - PyBytes_GET_SIZE(parts[1])))
        return false;
    if (parts[3] != Py_None) {
        const char *message_id = text_of(parts[3], &size);
        if (message_id == NULL || call->set_message_id(native, message_id) != OK)
            return false;
    }
    if (parts[4] != Py_None && (!int64_of(parts[4], &integer) || call->set_sent_at(native, integer) != OK))
        return false;
    return write_headers(self, native, parts[5]) && call->set_tag(native, tag, self->tag_bytes) == OK;
}

static PyObject *writer_write(Writer *self, PyObject *const *arguments, Py_ssize_t count)
{
    PyObject *parts[PARTS];
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "a native message, a message and a tag");
        return NULL;
    }
    void *native = PyLong_AsVoidPtr(arguments[0]), *tag = PyLong_AsVoidPtr(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    bool is_written = false;
    if (fetch(arguments[1], part_names, parts, PARTS)) {
        is_written = write_parts(self, native, parts, tag);
        release(parts, PARTS);
    }
    /* Whatever the error is, the writer in Python will meet it again. */
    PyErr_Clear();
    return PyBool_FromLong(is_written);
}

static int writer_init(Writer *self, PyObject *args, PyObject *unused)
{
    PyObject *functions, *no_headers;
    unsigned int mode, tag_bytes;
    unsigned long long addresses[FUNCTIONS];
    (void)unused;
    if (!PyArg_ParseTuple(args, "O!IInO", &PyTuple_Type, &functions, &mode, &tag_bytes, &self->topic_bytes,
                          &no_headers))
        return -1;
    if (PyTuple_GET_SIZE(functions) != FUNCTIONS) {
        PyErr_SetString(PyExc_TypeError, "the addresses of sixteen functions");
        return -1;
    }
    for (int i = 0; i < FUNCTIONS; i++) {
        addresses[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(functions, i));
        if (PyErr_Occurred())
            return -1;
    }
    self->mode = mode;
    self->tag_bytes = tag_bytes;
    Py_XSETREF(self->no_headers, Py_NewRef(no_headers));
    self->call = (Functions){
        (int (*)(void *))(uintptr_t)addresses[0],
        (int (*)(void *, uint32_t))(uintptr_t)addresses[1],
        (int (*)(void *, int))(uintptr_t)addresses[2],
        (int (*)(void *, const Destination *, size_t))(uintptr_t)addresses[3],
        (int (*)(void *, const void *, uint32_t))(uintptr_t)addresses[4],
        (int (*)(void *, const char *))(uintptr_t)addresses[5],
        (int (*)(void *, int64_t))(uintptr_t)addresses[6],
        (int (*)(void *, void **, size_t))(uintptr_t)addresses[7],
        (int (*)(void *, const char *, const char *))(uintptr_t)addresses[8],
        (int (*)(void *, int64_t, const char *))(uintptr_t)addresses[9],
        (int (*)(void **))(uintptr_t)addresses[10],
        (int (*)(void *, const void *, uint32_t))(uintptr_t)addresses[11],
        (int (*)(void *, const char *))(uintptr_t)addresses[12],
        (int (*)(void *, const char *))(uintptr_t)addresses[13],
        (int (*)(void *, uint64_t))(uintptr_t)addresses[14],
        (int (*)(void *, int32_t))(uintptr_t)addresses[15],
    };
    return 0;
}

static PyMethodDef writer_methods[] = {
    {"write", (PyCFunction)(void (*)(void))writer_write, METH_FASTCALL,
     "Takes the address of a native message, a message, and its tag; False where it is to be written in Python."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject writer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "lbg_runtime.transport.solace.fast._writer.Writer",
    .tp_basicsize = sizeof(Writer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Writes native messages: addresses of the functions, delivery mode, size of a tag and of the longest topic, "
              "and the headers of a message that has none.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)writer_init,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_methods = writer_methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_writer", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__writer(void)
{
    for (int i = 0; i < PARTS; i++)
        if ((part_names[i] = PyUnicode_InternFromString(part_texts[i])) == NULL)
            return NULL;
    for (int i = 0; i < HEADERS; i++)
        if ((header_names[i] = PyUnicode_InternFromString(header_texts[i])) == NULL)
            return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddType(made, &writer_type) < 0)
        Py_CLEAR(made);
    return made;
}
