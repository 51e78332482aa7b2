/* The settling of the fast receive path, for installations that could compile it: `accept_of` of calls.py says what
   it does. It releases the interpreter's lock meanwhile, as the library may wait for its own or write to a socket. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD
    int (*settle)(void *, uint64_t, int);
    void **place;
    PyObject *owner; /* owner of the place */
} Settler;

static int settler_init(Settler *self, PyObject *args, PyObject *unused)
{
    unsigned long long address, place;
    PyObject *owner;
    (void)unused;
    if (!PyArg_ParseTuple(args, "KKO", &address, &place, &owner))
        return -1;
    self->settle = (int (*)(void *, uint64_t, int))(uintptr_t)address;
    self->place = (void **)(uintptr_t)place;
    Py_XSETREF(self->owner, Py_NewRef(owner));
    return 0;
}

static void settler_dealloc(Settler *self)
{
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *settler_accept(Settler *self, PyObject *delivery_id)
{
    unsigned long long id = PyLong_AsUnsignedLongLong(delivery_id);
    if (PyErr_Occurred())
        return NULL;
    /* The client takes the handle away when the flow ends, so it is read now. */
    void *handle = *self->place;
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = self->settle(handle, id, 0);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}

static PyMethodDef settler_methods[] = {
    {"accept", (PyCFunction)settler_accept, METH_O, "Settles a delivery as accepted; answers the library's code."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject settler_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "lbg_runtime.transport.solace.fast._settler.Settler",
    .tp_basicsize = sizeof(Settler),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Settles the deliveries of one flow: the function's address, where its handle stands, and who keeps that.",
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)settler_init,
    .tp_dealloc = (destructor)settler_dealloc,
    .tp_methods = settler_methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_settler", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__settler(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddType(made, &settler_type) < 0)
        Py_CLEAR(made);
    return made;
}
