/* The field reader of the fast receive path, for installations that could compile it.

   reader.py says what it does and promises; here it is done without a Python object for each argument. Nothing of
   the client is linked or included: its functions come as addresses from the handle that calls.py has opened, and
   are declared as that module calls them. Rare cases, and every error, are left to Python functions that the reader
   is given, so that one module alone knows what they mean. All of it runs with the interpreter's lock held. One file of
   more than 400 lines, because half of them only take and check what the reader is given. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { OK = 0, END = 4, NOT_FOUND = 5 };                /* what the library returns */
enum { KIND_INT64 = 8, KIND_STRING = 10 };              /* the two kinds of field that our publishers send */
enum { TRANSPORT, CREATION, SPAN_ID_BYTES = 8 };        /* the two trace contexts of a message */
enum { FUNCTIONS = 13, FIELD_ROOM = 64, NAMES_KEPT = 16, TEXT_TAG = 7 }; /* the last as in inbound.py */

typedef struct {
    int kind;
    uint32_t length;
    union {
        const char *text;
        int64_t integer;
        char room[FIELD_ROOM];
    } value;
} Field;

typedef struct {
    int kind;
    const char *name;
} Destination;

typedef struct {
    int (*payload)(void *, const void **, uint32_t *);
    int (*properties)(void *, void **);
    int (*next_field)(void *, Field *, size_t, const char **);
    int (*message_id)(void *, const char **);
    int (*destination)(void *, Destination *, size_t);
    int (*sent_at)(void *, int64_t *);
    int (*correlation_id)(void *, const char **);
    int (*message_type)(void *, const char **);
    int (*sequence_number)(void *, uint64_t *);
    int (*priority)(void *, int32_t *);
    int (*delivery_id)(void *, uint64_t *);
    bool (*is_redelivered)(void *);
    int (*free)(void **);
    int (*span_id)(void *, int, uint8_t *, size_t); /* of a trace context; NULL if nobody wants that */
} Functions;

enum { TOPIC, PAYLOAD, PROPERTIES, MESSAGE_ID, SENT_AT, HEADERS, IS_FIRST, MESSAGE_SLOTS };
enum { QUEUE, EPOCH, DELIVERY_ID, MESSAGE, REDELIVERED, RECEIVED_AT, DELIVERY_SLOTS };

static const char *const message_names[MESSAGE_SLOTS] = {"topic",      "payload", "properties",     "message_id",
                                                         "sent_at_ms", "headers", "is_first_of_key"};
static const char *const delivery_names[DELIVERY_SLOTS] = {"queue",   "epoch",       "delivery_id",
                                                           "message", "redelivered", "received_at_ns"};

typedef struct {
    PyObject_HEAD
    Functions call;
    size_t field_size;
    PyTypeObject *message_type, *delivery_type;
    Py_ssize_t message_slots[MESSAGE_SLOTS], delivery_slots[DELIVERY_SLOTS];
    PyObject *publisher_property; /* messages with it have bytes as payload, unless somebody copied the stamp */
    PyObject *no_headers;         /* of nearly every message */
    int default_priority;         /* which says nothing, as every message has one */
    PyObject *add_property;       /* (properties, name, address of the field) */
    PyObject *add_context;        /* (properties, message), for one with a trace context */
    PyObject *foreign_payload;    /* (message, bytes or None, whether it has our stamp) -> bytes */
    PyObject *headers_of;         /* (texts or None, number or None, priority) -> headers */
    PyObject *failed;             /* (code, what) raises */
    PyObject *unreadable;         /* (error, delivery id or None) raises `UnreadableMessage` from it, or the error itself */
    PyObject *names[NAMES_KEPT];  /* the first property names met, with their hashes, so that they are made only once */
    const char *name_texts[NAMES_KEPT];
    int name_count;
} Reader;

static void reader_dealloc(Reader *self)
{
    Py_XDECREF(self->message_type);
    Py_XDECREF(self->delivery_type);
    Py_XDECREF(self->publisher_property);
    Py_XDECREF(self->no_headers);
    Py_XDECREF(self->add_property);
    Py_XDECREF(self->add_context);
    Py_XDECREF(self->foreign_payload);
    Py_XDECREF(self->headers_of);
    Py_XDECREF(self->failed);
    Py_XDECREF(self->unreadable);
    for (int i = 0; i < self->name_count; i++)
        Py_DECREF(self->names[i]);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Finds the offsets of a class's slots in its instances. */
static int find_slots(PyTypeObject *type, const char *const *names, Py_ssize_t *offsets, int count)
{
    for (int i = 0; i < count; i++) {
        PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, names[i]);
        if (descriptor == NULL)
            return -1;
        bool is_slot = Py_TYPE(descriptor) == &PyMemberDescr_Type;
        if (is_slot) {
            PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
            is_slot = member->type == T_OBJECT_EX;
            offsets[i] = member->offset;
        }
        Py_DECREF(descriptor);
        if (!is_slot) {
            PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, names[i]);
            return -1;
        }
    }
    return 0;
}

static int reader_init(Reader *self, PyObject *args, PyObject *unused)
{
    unsigned long long addresses[FUNCTIONS], span_id;
    (void)unused;
    if (!PyArg_ParseTuple(args, "(KKKKKKKKKKKKK)KnO!O!O!OiOOOOOO", &addresses[0], &addresses[1], &addresses[2],
                          &addresses[3], &addresses[4], &addresses[5], &addresses[6], &addresses[7], &addresses[8],
                          &addresses[9], &addresses[10], &addresses[11], &addresses[12], &span_id, &self->field_size,
                          &PyType_Type, &self->message_type, &PyType_Type, &self->delivery_type, &PyUnicode_Type,
                          &self->publisher_property, &self->no_headers, &self->default_priority, &self->add_property,
                          &self->add_context, &self->foreign_payload, &self->headers_of, &self->failed,
                          &self->unreadable)) {
        self->message_type = self->delivery_type = NULL;
        self->publisher_property = self->no_headers = self->add_property = self->add_context = NULL;
        self->foreign_payload = self->headers_of = self->failed = self->unreadable = NULL;
        return -1;
    }
    void *kept[] = {self->message_type, self->delivery_type,   self->publisher_property, self->no_headers,
                    self->add_property, self->add_context,     self->foreign_payload,    self->headers_of,
                    self->failed,       self->unreadable};
    for (int i = 0; i < 10; i++)
        Py_INCREF((PyObject *)kept[i]);
    self->call.span_id = (int (*)(void *, int, uint8_t *, size_t))(uintptr_t)span_id;
    void **functions[FUNCTIONS] = {
        (void **)&self->call.payload,         (void **)&self->call.properties,     (void **)&self->call.next_field,
        (void **)&self->call.message_id,      (void **)&self->call.destination,    (void **)&self->call.sent_at,
        (void **)&self->call.correlation_id,  (void **)&self->call.message_type,
        (void **)&self->call.sequence_number, (void **)&self->call.priority,       (void **)&self->call.delivery_id,
        (void **)&self->call.is_redelivered,  (void **)&self->call.free,
    };
    for (int i = 0; i < FUNCTIONS; i++) {
        if (addresses[i] == 0) {
            PyErr_SetString(PyExc_ValueError, "a function has no address");
            return -1;
        }
        *functions[i] = (void *)(uintptr_t)addresses[i];
    }
    if (self->field_size > sizeof(Field)) {
        PyErr_SetString(PyExc_ValueError, "a field is larger than expected");
        return -1;
    }
    if (find_slots(self->message_type, message_names, self->message_slots, MESSAGE_SLOTS) < 0)
        return -1;
    return find_slots(self->delivery_type, delivery_names, self->delivery_slots, DELIVERY_SLOTS);
}

static inline void put(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    *(PyObject **)((char *)object + offset) = value;
}

/* Returns a new reference to the text; what is not UTF-8 in it becomes U+FFFD, as in `text_of` of properties.py. */
static PyObject *text_of(const char *text)
{
    return text == NULL ? PyUnicode_FromStringAndSize("", 0)
                        : PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* Returns a new reference to the name of a property. */
static PyObject *name_of(Reader *self, const char *text)
{
    for (int i = 0; i < self->name_count; i++)
        if (strcmp(self->name_texts[i], text) == 0)
            return Py_NewRef(self->names[i]);
    PyObject *name = text_of(text);
    if (name != NULL && self->name_count < NAMES_KEPT) {
        const char *kept = PyUnicode_AsUTF8(name);
        if (kept == NULL) {
            Py_DECREF(name);
            return NULL;
        }
        /* Not kept if some of it was not UTF-8: the text is then another one, and would never be found again. */
        if (strcmp(kept, text) == 0) {
            self->names[self->name_count] = Py_NewRef(name);
            self->name_texts[self->name_count++] = kept;
        }
    }
    return name;
}

static PyObject *fail(Reader *self, int code, const char *what)
{
    PyObject *answer = PyObject_CallFunction(self->failed, "is", code, what);
    if (answer != NULL) {
        Py_DECREF(answer);
        PyErr_SetString(PyExc_SystemError, "an error of the client was not raised");
    }
    return NULL;
}

static PyObject *read_properties(Reader *self, void *message)
{
    PyObject *properties = PyDict_New();
    if (properties == NULL)
        return NULL;
    void *container = NULL;
    int code = self->call.properties(message, &container);
    if (code == NOT_FOUND)
        return properties;
    if (code != OK)
        goto failed;
    Field field;
    const char *text = NULL;
    /* The map is closed with its message. */
    while ((code = self->call.next_field(container, &field, self->field_size, &text)) == OK) {
        /* See `read_properties` of properties.py. */
        if (text == NULL || *text == '\0')
            continue;
        PyObject *name = name_of(self, text);
        if (name == NULL)
            goto error;
        int answer = 0;
        if (field.kind == KIND_STRING || field.kind == KIND_INT64) {
            PyObject *value =
                field.kind == KIND_STRING ? text_of(field.value.text) : PyLong_FromLongLong(field.value.integer);
            answer = value == NULL ? -1 : PyDict_SetItem(properties, name, value);
            Py_XDECREF(value);
        } else {
            PyObject *done = PyObject_CallFunction(self->add_property, "OOK", properties, name,
                                                   (unsigned long long)(uintptr_t)&field);
            answer = done == NULL ? -1 : 0;
            Py_XDECREF(done);
        }
        Py_DECREF(name);
        if (answer < 0)
            goto error;
    }
    if (code == END)
        return properties;
failed:
    fail(self, code, "read properties");
error:
    Py_DECREF(properties);
    return NULL;
}

static PyObject *read_payload(Reader *self, void *message, PyObject *properties)
{
    const void *address = NULL;
    uint32_t size = 0;
    int code = self->call.payload(message, &address, &size);
    if (code != OK && code != NOT_FOUND)
        return fail(self, code, "read payload");
    int is_ours = PyDict_Contains(properties, self->publisher_property);
    if (is_ours < 0)
        return NULL;
    PyObject *attachment =
        code == OK ? PyBytes_FromStringAndSize((const char *)address, (Py_ssize_t)size) : Py_NewRef(Py_None);
    if (attachment == NULL || (is_ours && code == OK && (size == 0 || *(const uint8_t *)address >> 2 != TEXT_TAG)))
        return attachment;
    return PyObject_CallFunction(self->foreign_payload, "KNO", (unsigned long long)(uintptr_t)message, attachment,
                                 is_ours ? Py_True : Py_False);
}

/* Returns a text that a message may have, or NULL. None of these is a reason to keep the message from its handler: one
   that the client cannot read, being of another type, is as good as none. */
static const char *find_text(int (*get)(void *, const char **), void *native)
{
    const char *text = NULL;
    if (get(native, &text) != OK)
        return NULL;
    return text == NULL ? "" : text;
}

/* Returns a new reference to a text that a message may have, or None. */
static PyObject *text_or_none(const char *text)
{
    return text == NULL ? Py_NewRef(Py_None) : text_of(text);
}

/* Returns a new reference to what the message says in its headers, which nearly always is nothing. */
static PyObject *read_headers(Reader *self, void *message)
{
    const char *correlation_id = find_text(self->call.correlation_id, message);
    const char *type = find_text(self->call.message_type, message);
    uint64_t number = 0;
    int32_t priority = 0;
    bool has_number = self->call.sequence_number(message, &number) == OK;
    if (self->call.priority(message, &priority) != OK)
        priority = self->default_priority;
    if (correlation_id == NULL && type == NULL && !has_number && priority == self->default_priority)
        return Py_NewRef(self->no_headers);
    PyObject *its_id = text_or_none(correlation_id), *its_type = text_or_none(type);
    PyObject *its_number = has_number ? PyLong_FromUnsignedLongLong(number) : Py_NewRef(Py_None);
    PyObject *headers = NULL;
    if (its_id != NULL && its_type != NULL && its_number != NULL)
        headers = PyObject_CallFunction(self->headers_of, "OOOi", its_id, its_type, its_number, (int)priority);
    Py_XDECREF(its_id);
    Py_XDECREF(its_type);
    Py_XDECREF(its_number);
    return headers;
}

/* Puts the trace context of a message that has one among its properties. Returns -1 after an error. */
static int add_context(Reader *self, void *native, PyObject *properties)
{
    uint8_t span_id[SPAN_ID_BYTES];
    if (self->call.span_id(native, TRANSPORT, span_id, sizeof span_id) != OK &&
        self->call.span_id(native, CREATION, span_id, sizeof span_id) != OK)
        return 0;
    PyObject *done =
        PyObject_CallFunction(self->add_context, "OK", properties, (unsigned long long)(uintptr_t)native);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Returns a new `Message`. If a field cannot be read, its slot stays empty, and the object is freed. */
static PyObject *read_message(Reader *self, void *native)
{
    PyObject *message = self->message_type->tp_alloc(self->message_type, 0);
    if (message == NULL)
        return NULL;
    const Py_ssize_t *slots = self->message_slots;
    PyObject *properties = read_properties(self, native);
    if (properties == NULL)
        goto error;
    put(message, slots[PROPERTIES], properties);
    if (self->call.span_id != NULL && add_context(self, native, properties) < 0)
        goto error;

    PyObject *value = read_payload(self, native, properties);
    if (value == NULL)
        goto error;
    put(message, slots[PAYLOAD], value);

    Destination destination = {0, NULL};
    int code = self->call.destination(native, &destination, sizeof destination);
    if (code != OK && code != NOT_FOUND) {
        fail(self, code, "read destination");
        goto error;
    }
    if ((value = text_of(code == OK ? destination.name : NULL)) == NULL)
        goto error;
    put(message, slots[TOPIC], value);

    if ((value = text_or_none(find_text(self->call.message_id, native))) == NULL)
        goto error;
    put(message, slots[MESSAGE_ID], value);

    int64_t sent_at = 0;
    code = self->call.sent_at(native, &sent_at);
    if ((value = code == OK ? PyLong_FromLongLong(sent_at) : Py_NewRef(Py_None)) == NULL)
        goto error;
    put(message, slots[SENT_AT], value);
    if ((value = read_headers(self, native)) == NULL)
        goto error;
    put(message, slots[HEADERS], value);
    put(message, slots[IS_FIRST], Py_NewRef(Py_False));
    return message;
error:
    Py_DECREF(message);
    return NULL;
}

static PyObject *read_delivery(Reader *self, void *native, PyObject *queue, PyObject *epoch)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    PyObject *message = read_message(self, native);
    if (message == NULL)
        return NULL;
    uint64_t id = 0;
    int code = self->call.delivery_id(native, &id);
    if (code != OK) {
        Py_DECREF(message);
        return fail(self, code, "read delivery id");
    }
    PyObject *delivery = self->delivery_type->tp_alloc(self->delivery_type, 0);
    if (delivery == NULL) {
        Py_DECREF(message);
        return NULL;
    }
    const Py_ssize_t *slots = self->delivery_slots;
    put(delivery, slots[MESSAGE], message);
    put(delivery, slots[QUEUE], Py_NewRef(queue));
    put(delivery, slots[EPOCH], Py_NewRef(epoch));
    put(delivery, slots[REDELIVERED], Py_NewRef(self->call.is_redelivered(native) ? Py_True : Py_False));
    PyObject *value = PyLong_FromUnsignedLongLong(id);
    put(delivery, slots[DELIVERY_ID], value);
    if (value != NULL) {
        value = PyLong_FromLongLong((long long)now.tv_sec * 1000000000 + now.tv_nsec);
        put(delivery, slots[RECEIVED_AT], value);
    }
    if (value == NULL)
        Py_CLEAR(delivery);
    return delivery;
}

/* Frees the message, and turns the failure into the error that the reader's caller expects. */
static void give_up(Reader *self, void *native)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    uint64_t id = 0;
    bool has_id = self->call.delivery_id(native, &id) == OK;
    self->call.free(&native);
    PyErr_NormalizeException(&type, &error, &trace);
    if (error != NULL && trace != NULL)
        PyException_SetTraceback(error, trace);
    PyObject *its_id = has_id ? PyLong_FromUnsignedLongLong(id) : Py_NewRef(Py_None);
    PyObject *answer = its_id == NULL ? NULL
                                      : PyObject_CallFunctionObjArgs(self->unreadable, error == NULL ? Py_None : error,
                                                                     its_id, NULL);
    Py_XDECREF(its_id);
    if (answer == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    } else {
        Py_DECREF(answer);
        PyErr_Restore(type, error, trace);
    }
}

static PyObject *reader_read(Reader *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "a message, a queue and an epoch are expected");
        return NULL;
    }
    void *native = PyLong_AsVoidPtr(args[0]);
    if (native == NULL && PyErr_Occurred())
        return NULL;
    PyObject *delivery = read_delivery(self, native, args[1], args[2]);
    if (delivery == NULL)
        give_up(self, native);
    else
        self->call.free(&native);
    return delivery;
}

static PyMethodDef reader_methods[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL,
     "Takes the address of a native message, a queue and an epoch; frees the message whatever happens."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "lbg_runtime.transport.solace.fast._reader.Reader",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Reads native messages; for one thread.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)reader_init,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_methods = reader_methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_reader", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reader(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made == NULL)
        return NULL;
    if (PyModule_AddType(made, &reader_type) < 0)
        Py_CLEAR(made);
    return made;
}
