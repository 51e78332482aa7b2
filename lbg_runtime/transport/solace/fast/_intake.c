/* The message callback of the fast receive path, for installations that could compile it; see gathering.py.

   The client's network thread calls `on_message` for each message of each flow. It puts the message's address where the
   loop will find it and returns. The first one since the loop came rings: a byte in a pipe that the loop watches. No
   message needs the interpreter's lock, so the network thread gathers while the loop handles what came before, and
   neither ever waits for the other's turn at the interpreter.

   What gathers stays here, in one order, until the loop takes it: a flow event only draws a line, by beginning another
   turn, up to which the loop takes what came before the event.

   A flow is identified by the last argument of its callback: the address of its receiver. One lock guards the
   table of flows and what has gathered. Whoever holds it never waits for the interpreter's lock; flows come and go with
   both held. One file of more than 400 lines, because all that the lock guards is read together. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOT_TAKEN = 0, TAKEN = 1 };

typedef struct Intake Intake;

typedef struct Flow {
    void *user;
    Intake *intake;
    PyObject *path;
    Py_ssize_t gathered;        /* messages that have not been handed over */
    unsigned long long told_in; /* `looks` + 1 of when its path was told that the loop is blocked */
    bool is_removed;            /* no longer in the table; freed with its last message */
    bool is_broken;             /* a message was not taken, so none after it may be */
    struct Flow *next, *previous;
} Flow;

typedef struct {
    Flow *flow;
    void *message;
    unsigned long long turn; /* in which it came */
} Entry;

struct Intake {
    PyObject_HEAD
    int (*free)(void **);
    int bell;          /* the pipe's end to write to, which does not block; -1 when it is closed */
    PyObject *blocked; /* (path): the loop has not come in time */
    PyObject *broken;  /* (path, error): a message of this flow was not taken, or the loop was not told of it */
    Py_ssize_t full;
    long patience_ms;
    Flow *flows;
    Entry *entries;
    Py_ssize_t count, room;
    unsigned long long turn;  /* how many lines have been drawn */
    unsigned long long looks; /* how often the loop has come */
    bool has_rung;            /* in this turn, and the loop has not taken what it rang for */
    bool is_stuck, is_closed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t taken; /* something was popped or closed; on the monotonic clock */

/* -- the table of flows: open addressing; an entry is taken out by rebuilding the table */

static Flow **table;
static size_t table_size, table_count; /* size: a power of two, at least twice the count */

static size_t place_of(const void *user)
{
    return (size_t)(((uintptr_t)user >> 4) * (uintptr_t)0x9E3779B97F4A7C15u >> 20) & (table_size - 1);
}

static Flow *find(const void *user)
{
    if (table_size == 0)
        return NULL;
    for (size_t i = place_of(user);; i = (i + 1) & (table_size - 1))
        if (table[i] == NULL || table[i]->user == user)
            return table[i];
}

static void insert(Flow *flow)
{
    size_t i = place_of(flow->user);
    while (table[i] != NULL)
        i = (i + 1) & (table_size - 1);
    table[i] = flow;
    table_count++;
}

/* Rebuilds with room for one more, and without `gone`; false if there is no memory, and then nothing has changed. */
static bool rebuild(const Flow *gone)
{
    Flow **old = table;
    size_t old_size = table_size, size = 64;
    while (size < 2 * (table_count + 2))
        size *= 2;
    Flow **made = calloc(size, sizeof *made);
    if (made == NULL)
        return false;
    table = made;
    table_size = size;
    table_count = 0;
    for (size_t i = 0; i < old_size; i++)
        if (old[i] != NULL && old[i] != gone)
            insert(old[i]);
    free(old);
    return true;
}

/* -- on the client's network thread */

typedef enum { BLOCKED, NO_MEMORY, UNTOLD } Call;

/* Calls the function of the flow's intake for this news, if flow and intake still exist. Takes the interpreter's lock. */
static void call_back(void *user, Call what, int error_number)
{
    PyGILState_STATE state = PyGILState_Ensure();
    pthread_mutex_lock(&lock);
    Flow *flow = find(user);
    Intake *self = flow == NULL ? NULL : flow->intake;
    PyObject *path = flow == NULL ? NULL : Py_NewRef(flow->path);
    Py_XINCREF(self);
    pthread_mutex_unlock(&lock);
    if (self != NULL && self->broken != NULL) {
        PyObject *answer = NULL;
        if (what == BLOCKED)
            answer = PyObject_CallOneArg(self->blocked, path);
        else if (what == NO_MEMORY)
            PyErr_NoMemory();
        else {
            errno = error_number;
            PyErr_SetFromErrno(PyExc_OSError);
        }
        if (answer == NULL) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            PyErr_NormalizeException(&type, &error, &trace);
            answer = PyObject_CallFunctionObjArgs(self->broken, path, error, NULL);
            Py_XDECREF(type);
            Py_XDECREF(error);
            Py_XDECREF(trace);
        }
        if (answer == NULL)
            PyErr_WriteUnraisable(self->broken);
        Py_XDECREF(answer);
    }
    Py_XDECREF(path);
    Py_XDECREF(self);
    PyGILState_Release(state);
}

/* Waits, with the lock held, until the loop has taken something; returns whether to tell this flow that it has not. */
static bool loop_is_blocked(void *user)
{
    Flow *flow = find(user);
    if (flow == NULL || flow->intake->is_closed || flow->intake->count < flow->intake->full)
        return false;
    if (!flow->intake->is_stuck) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += flow->intake->patience_ms / 1000;
        until.tv_nsec += flow->intake->patience_ms % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        int late = 0;
        while (!late) {
            late = pthread_cond_timedwait(&taken, &lock, &until);
            flow = find(user);
            if (flow == NULL || flow->intake->is_closed || flow->intake->count < flow->intake->full)
                return false;
        }
        flow->intake->is_stuck = true;
    }
    bool is_news = flow->told_in != flow->intake->looks + 1;
    flow->told_in = flow->intake->looks + 1;
    return is_news;
}

/* Tells the loop that messages have gathered; returns 0, or the error number. Called with the lock held, so that nobody
   closes the pipe meanwhile. A full pipe is no error: the loop has yet to read it, and learns of them then. */
static int ring(const Intake *self)
{
    while (write(self->bell, "", 1) < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno != EINTR)
            return errno;
    }
    return 0;
}

static int on_message(void *native_flow, void *message, void *user)
{
    (void)native_flow;
    pthread_mutex_lock(&lock);
    Flow *flow = find(user);
    Intake *self = flow == NULL ? NULL : flow->intake;
    if (self == NULL || self->is_closed || flow->is_broken) {
        /* The message then belongs to the library, which frees it; the flow has ended, or is about to. */
        pthread_mutex_unlock(&lock);
        return NOT_TAKEN;
    }
    if (self->count == self->room) {
        Py_ssize_t room = self->room ? 2 * self->room : 128;
        Entry *entries = realloc(self->entries, (size_t)room * sizeof *entries);
        if (entries == NULL) {
            flow->is_broken = true;
            pthread_mutex_unlock(&lock);
            call_back(user, NO_MEMORY, 0);
            return NOT_TAKEN;
        }
        self->entries = entries;
        self->room = room;
    }
    self->entries[self->count++] = (Entry){flow, message, self->turn};
    flow->gathered++;
    bool is_full = self->count >= self->full;
    int error = self->has_rung ? 0 : ring(self);
    /* If it failed, the next message tries again. */
    self->has_rung = error == 0;
    pthread_mutex_unlock(&lock);
    if (error)
        call_back(user, UNTOLD, error);
    if (is_full) {
        pthread_mutex_lock(&lock);
        bool is_blocked = loop_is_blocked(user);
        pthread_mutex_unlock(&lock);
        if (is_blocked)
            call_back(user, BLOCKED, 0);
    }
    return TAKEN;
}

/* -- called from Python, with the interpreter's lock */

static int intake_init(Intake *self, PyObject *args, PyObject *unused)
{
    unsigned long long free_address;
    int bell;
    PyObject *blocked, *broken;
    (void)unused;
    if (!PyArg_ParseTuple(args, "KiOOnl", &free_address, &bell, &blocked, &broken, &self->full, &self->patience_ms))
        return -1;
    if (self->free != NULL || free_address == 0) {
        PyErr_SetString(PyExc_ValueError, "an intake is made once, with a function that frees");
        return -1;
    }
    self->free = (int (*)(void **))(uintptr_t)free_address;
    self->bell = bell;
    self->blocked = Py_NewRef(blocked);
    self->broken = Py_NewRef(broken);
    return 0;
}

/* Frees a flow that is in no table, once no message of it is left. */
static void drop_if_done(Flow *flow)
{
    if (!flow->is_removed || flow->gathered)
        return;
    if (flow->previous != NULL)
        flow->previous->next = flow->next;
    else
        flow->intake->flows = flow->next;
    if (flow->next != NULL)
        flow->next->previous = flow->previous;
    PyObject *path = flow->path;
    free(flow);
    Py_DECREF(path);
}

/* Takes a flow out of the table; false if there is no memory for a new table. */
static bool take_out(Flow *flow)
{
    pthread_mutex_lock(&lock);
    bool is_out = rebuild(flow);
    if (is_out)
        flow->is_removed = true;
    pthread_mutex_unlock(&lock);
    return is_out;
}

/* Stops taking messages of a flow; false if an error is set. */
static bool forget(Flow *flow)
{
    if (!take_out(flow)) {
        PyErr_NoMemory();
        return false;
    }
    drop_if_done(flow);
    return true;
}

static PyObject *intake_remove(Intake *self, PyObject *args)
{
    unsigned long long user;
    PyObject *path;
    if (!PyArg_ParseTuple(args, "KO", &user, &path))
        return NULL;
    Flow *flow = find((void *)(uintptr_t)user); /* the table changes only under the interpreter's lock, which we hold */
    if (flow != NULL && flow->intake == self && flow->path == path && !forget(flow))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *intake_add(Intake *self, PyObject *args)
{
    unsigned long long address;
    PyObject *path;
    if (!PyArg_ParseTuple(args, "KO", &address, &path))
        return NULL;
    void *user = (void *)(uintptr_t)address;
    Flow *older = find(user); /* its receiver is gone, and the address is used again */
    if (older != NULL && !forget(older))
        return NULL;
    Flow *flow = calloc(1, sizeof *flow);
    if (flow == NULL)
        return PyErr_NoMemory();
    *flow = (Flow){.user = user, .intake = self, .path = path, .next = self->flows};
    pthread_mutex_lock(&lock);
    bool has_room = rebuild(NULL);
    if (has_room)
        insert(flow);
    pthread_mutex_unlock(&lock);
    if (!has_room) {
        free(flow);
        return PyErr_NoMemory();
    }
    Py_INCREF(path);
    if (self->flows != NULL)
        self->flows->previous = flow;
    self->flows = flow;
    Py_RETURN_NONE;
}

/* Takes away what has gathered up to the end of a turn; less than 0 if there is no memory for what stays, and then all of
   it does. Called with the lock, which it releases. */
static Py_ssize_t take_entries(Intake *self, unsigned long long last, Entry **entries)
{
    Py_ssize_t count = self->count;
    while (count > 0 && self->entries[count - 1].turn > last)
        count--;
    Py_ssize_t left = self->count - count;
    Entry *rest = NULL;
    if (left > 0 && count > 0) {
        rest = malloc((size_t)left * sizeof *rest);
        if (rest == NULL)
            count = -1;
        else
            memcpy(rest, self->entries + count, (size_t)left * sizeof *rest);
    }
    if (left == 0 || count > 0) {
        *entries = self->entries;
        self->entries = rest;
        self->count = self->room = left;
        self->has_rung = self->has_rung && left > 0;
    }
    self->is_stuck = false;
    self->looks++;
    pthread_cond_broadcast(&taken);
    pthread_mutex_unlock(&lock);
    return count;
}

/* Releases entries that were taken; a flow is freed with the last of its messages. */
static void release(Entry *entries, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        pthread_mutex_lock(&lock);
        entries[i].flow->gathered--;
        pthread_mutex_unlock(&lock);
        drop_if_done(entries[i].flow);
    }
    free(entries);
}

static PyObject *intake_pop(Intake *self, PyObject *turn_object)
{
    Entry *entries = NULL;
    unsigned long long turn = PyLong_AsUnsignedLongLong(turn_object);
    if (PyErr_Occurred())
        return NULL;
    pthread_mutex_lock(&lock);
    Py_ssize_t count = take_entries(self, turn, &entries);
    if (count < 0)
        return PyErr_NoMemory();
    PyObject *parts = PyList_New(0);
    Py_ssize_t done = 0;
    while (parts != NULL && done < count) {
        Flow *flow = entries[done].flow;
        Py_ssize_t end = done;
        while (end < count && entries[end].flow == flow)
            end++;
        PyObject *messages = PyList_New(end - done);
        for (Py_ssize_t i = done; messages != NULL && i < end; i++) {
            PyObject *address = PyLong_FromVoidPtr(entries[i].message);
            if (address == NULL)
                Py_CLEAR(messages);
            else
                PyList_SET_ITEM(messages, i - done, address);
        }
        PyObject *part = messages == NULL ? NULL : PyTuple_Pack(2, flow->path, messages);
        Py_XDECREF(messages);
        if (part == NULL || PyList_Append(parts, part) < 0)
            Py_CLEAR(parts);
        Py_XDECREF(part);
        done = end;
    }
    /* Without memory, what has gathered is lost for these handles, and the caller gives them up. */
    for (Py_ssize_t i = 0; parts == NULL && i < count; i++)
        self->free(&entries[i].message);
    release(entries, count);
    return parts;
}

static PyObject *intake_cut(Intake *self, PyObject *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    bool is_empty = self->count == 0;
    unsigned long long ended = self->turn++;
    self->has_rung = false;
    pthread_mutex_unlock(&lock);
    if (is_empty)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(ended);
}

static PyObject *intake_close(Intake *self, PyObject *unused)
{
    (void)unused;
    Entry *entries;
    pthread_mutex_lock(&lock);
    self->is_closed = true;
    if (self->bell >= 0)
        close(self->bell);
    self->bell = -1;
    Py_ssize_t count = take_entries(self, ULLONG_MAX, &entries);
    for (Py_ssize_t i = 0; i < count; i++)
        self->free(&entries[i].message);
    release(entries, count);
    Py_RETURN_NONE;
}

static int intake_traverse(Intake *self, visitproc visit, void *arg)
{
    Py_VISIT(self->blocked);
    Py_VISIT(self->broken);
    for (Flow *flow = self->flows; flow != NULL; flow = flow->next)
        Py_VISIT(flow->path);
    return 0;
}

static int intake_clear(Intake *self)
{
    Py_XDECREF(intake_close(self, NULL));
    /* Without memory, a flow stays in the table, and its closed intake with it. */
    while (self->flows != NULL && (self->flows->is_removed || take_out(self->flows)))
        drop_if_done(self->flows);
    Py_CLEAR(self->blocked);
    Py_CLEAR(self->broken);
    return 0;
}

static void intake_dealloc(Intake *self)
{
    PyObject_GC_UnTrack(self);
    if (self->free != NULL)
        intake_clear(self);
    if (self->flows == NULL)
        Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef intake_methods[] = {
    {"add", (PyCFunction)intake_add, METH_VARARGS, "Take the messages of this flow, for this path."},
    {"remove", (PyCFunction)intake_remove, METH_VARARGS, "Take nothing more of this flow; what has gathered is handed over."},
    {"pop", (PyCFunction)intake_pop, METH_O, "What has gathered up to the end of this turn."},
    {"cut", (PyCFunction)intake_cut, METH_NOARGS, "Begin another turn; the one that ended, if anything waits."},
    {"close", (PyCFunction)intake_close, METH_NOARGS, "Free what has gathered, and take nothing more."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef intake_members[] = {
    {"turn", T_ULONGLONG, offsetof(Intake, turn), READONLY, "How many turns have ended."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject intake_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "lbg_runtime.transport.solace.fast._intake.Intake",
    .tp_basicsize = sizeof(Intake),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "The messages of a session's flows on their way to the loop.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)intake_init,
    .tp_dealloc = (destructor)intake_dealloc,
    .tp_traverse = (traverseproc)intake_traverse,
    .tp_clear = (inquiry)intake_clear,
    .tp_methods = intake_methods,
    .tp_members = intake_members,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_intake", NULL, -1, NULL, NULL, NULL, NULL, NULL};

/* A process that is forked while the network thread, which it does not have, holds the lock would wait for ever. */
static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void let_go(void)
{
    pthread_mutex_unlock(&lock);
}

PyMODINIT_FUNC PyInit__intake(void)
{
    static bool is_held_at_forks; /* the handlers stay, also if the module is loaded once more */
    if (!is_held_at_forks && pthread_atfork(hold, let_go, let_go)) {
        PyErr_SetString(PyExc_ImportError, "the system has no room for what is done at a fork");
        return NULL;
    }
    is_held_at_forks = true;
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) || pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) ||
        pthread_cond_init(&taken, &attributes)) {
        PyErr_SetString(PyExc_ImportError, "the system has no condition on its monotonic clock");
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made == NULL)
        return NULL;
    PyObject *callback = PyLong_FromVoidPtr((void *)(uintptr_t)on_message);
    if (callback == NULL || PyModule_AddType(made, &intake_type) < 0 ||
        PyModule_AddObjectRef(made, "CALLBACK", callback) < 0)
        Py_CLEAR(made);
    Py_XDECREF(callback);
    return made;
}
