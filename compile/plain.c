/* routecodex.protocols.chat.plain as machine code. What `are_plain` promises is said, and done, by its twin in plain.py.

   Fields of structs are read from where they lie: to look each up by its name takes most of the time otherwise. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>
#include <structmember.h>

enum { ROLE, CONTENT, TOOL_CALLS, TOOL_CALL_ID, ID = 0, FUNCTION, CUSTOM, MOST_FIELDS = 4 };

static const char *const MESSAGE_FIELDS[] = {"role", "content", "tool_calls", "tool_call_id", NULL};
static const char *const CALL_FIELDS[] = {"id", "function", "custom", NULL};

/* Where the fields lie in the objects of a type. */
typedef struct {
    PyTypeObject *type;
    Py_ssize_t at[MOST_FIELDS];
} Layout;

typedef struct {
    Layout message, call;
} State;

#define REMEMBERED 64

/* The ids of calls that came last, one after the other in a circle. */
typedef struct {
    PyObject *ids[REMEMBERED];
    Py_ssize_t count;
} Called;

typedef enum { NO, YES, FAILED } Answer;

static bool field_at(PyTypeObject *type, const char *name, Py_ssize_t *at)
{
    PyObject *const found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL)
        return false;
    const bool is_member = Py_IS_TYPE(found, &PyMemberDescr_Type);
    const PyMemberDef *const member = is_member ? ((PyMemberDescrObject *)found)->d_member : NULL;
    const bool is_object = member != NULL && (member->type == T_OBJECT_EX || member->type == T_OBJECT);
    if (is_object)
        *at = member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%.100s.%s is no field", type->tp_name, name);
    Py_DECREF(found);
    return is_object;
}

static bool learn(Layout *layout, PyObject *schema, const char *name, const char *const *fields)
{
    PyObject *const type = PyObject_GetAttrString(schema, name);
    if (type == NULL)
        return false;
    bool learned = PyType_Check(type);
    if (!learned)
        PyErr_Format(PyExc_TypeError, "%s is no type", name);
    for (int i = 0; learned && fields[i] != NULL; i++)
        learned = field_at((PyTypeObject *)type, fields[i], &layout->at[i]);
    if (learned)
        layout->type = (PyTypeObject *)type;
    else
        Py_DECREF(type);
    return learned;
}

/* The value of a field; NULL if it has none. */
static PyObject *value_of(const Layout *layout, PyObject *object, int field)
{
    return *(PyObject **)((char *)object + layout->at[field]);
}

static bool is_there(PyObject *value)
{
    return value != NULL && value != Py_None;
}

static bool is_text(PyObject *value)
{
    return value != NULL && PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) > 0;
}

static bool is_ascii(PyObject *text, const char *other)
{
    return PyUnicode_CompareWithASCIIString(text, other) == 0;
}

static bool are_same(PyObject *one, PyObject *other)
{
    const Py_ssize_t size = PyUnicode_GET_LENGTH(one);
    return size == PyUnicode_GET_LENGTH(other) && PyUnicode_KIND(one) == PyUnicode_KIND(other) &&
           memcmp(PyUnicode_DATA(one), PyUnicode_DATA(other), (size_t)(size * PyUnicode_KIND(one))) == 0;
}

/* Whether the id is among those that came last, of this many of them. */
static bool is_among(const Called *called, PyObject *id, Py_ssize_t last)
{
    for (Py_ssize_t i = 1; i <= last; i++)
        if (are_same(called->ids[(called->count - i) % REMEMBERED], id))
            return true;
    return false;
}

static Py_ssize_t remembered(const Called *called)
{
    return called->count < REMEMBERED ? called->count : REMEMBERED;
}

/* Whether a call list is one in which all are whole, and each has an id of its own; these are remembered then. */
static bool are_whole(const Layout *layout, PyObject *calls, Called *called)
{
    if (!PyList_CheckExact(calls) || PyList_GET_SIZE(calls) > REMEMBERED)
        return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); i++) {
        PyObject *const call = PyList_GET_ITEM(calls, i);
        if (!Py_IS_TYPE(call, layout->type))
            return false;
        PyObject *const id = value_of(layout, call, ID);
        if (!is_text(id) || is_among(called, id, i))
            return false;
        if (!is_there(value_of(layout, call, FUNCTION)) && !is_there(value_of(layout, call, CUSTOM)))
            return false;
        called->ids[called->count++ % REMEMBERED] = id;
    }
    return true;
}

/* Whether a content is a text, or missing where it may be. */
static Answer is_plain(PyObject *content, bool may_miss)
{
    Py_buffer view;
    if (PyObject_GetBuffer(content, &view, PyBUF_SIMPLE) < 0)
        return FAILED;
    const char sign = view.len > 0 ? *(const char *)view.buf : 'n';
    PyBuffer_Release(&view);
    return sign == '"' || (sign == 'n' && may_miss) ? YES : NO;
}

static Answer is_right(const State *state, PyObject *message, Called *called)
{
    const Layout *const layout = &state->message;
    if (!Py_IS_TYPE(message, layout->type))
        return NO;
    PyObject *const role = value_of(layout, message, ROLE), *const content = value_of(layout, message, CONTENT);
    if (!is_text(role) || content == NULL)
        return NO;
    bool may_miss = false;
    if (is_ascii(role, "tool")) {
        PyObject *const id = value_of(layout, message, TOOL_CALL_ID);
        if (!is_text(id) || !is_among(called, id, remembered(called)))
            return NO;
    } else if (is_ascii(role, "assistant")) {
        PyObject *const calls = value_of(layout, message, TOOL_CALLS);
        if (is_there(calls) && !are_whole(&state->call, calls, called))
            return NO;
        may_miss = true;
    } else if (is_ascii(role, "function"))
        may_miss = true;
    else if (!is_ascii(role, "user") && !is_ascii(role, "system") && !is_ascii(role, "developer"))
        return NO;
    return is_plain(content, may_miss);
}

static PyObject *call_are_plain(PyObject *module, PyObject *given)
{
    if (!PyList_CheckExact(given))
        return PyErr_Format(PyExc_TypeError, "list expected, not %.100s", Py_TYPE(given)->tp_name);
    Called called;
    called.count = 0;
    const State *const state = PyModule_GetState(module);
    Answer answer = YES;
    for (Py_ssize_t i = 0; answer == YES && i < PyList_GET_SIZE(given); i++)
        answer = is_right(state, PyList_GET_ITEM(given, i), &called);
    return answer == FAILED ? NULL : PyBool_FromLong(answer == YES);
}

static int prepare(PyObject *module)
{
    State *const state = PyModule_GetState(module);
    PyObject *const schema = PyImport_ImportModule("routecodex.protocols.chat.schema");
    if (schema == NULL)
        return -1;
    const bool learned = learn(&state->message, schema, "Message", MESSAGE_FIELDS) &&
                         learn(&state->call, schema, "Call", CALL_FIELDS);
    Py_DECREF(schema);
    return learned ? 0 : -1;
}

static int visit(PyObject *module, visitproc visit, void *arg)
{
    State *const state = PyModule_GetState(module);
    Py_VISIT(state->message.type);
    Py_VISIT(state->call.type);
    return 0;
}

static int clear(PyObject *module)
{
    State *const state = PyModule_GetState(module);
    Py_CLEAR(state->message.type);
    Py_CLEAR(state->call.type);
    return 0;
}

static PyMethodDef functions[] = {
    {"are_plain", call_are_plain, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "plain",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = visit,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit_plain(void)
{
    return PyModuleDef_Init(&module);
}
