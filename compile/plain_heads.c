/* routecodex.wire.plain_heads in C. The contract is in wire/plain_heads.py; the tests compare this file with
   tests/reference/plain_heads.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MAX_BYTES 8192
#define MOST 64
#define DIGITS 15
#define CHUNKED (-1)

typedef struct {
    const unsigned char *at;
    Py_ssize_t size;
} Bytes;

#define NAMED(name) {(const unsigned char *)(name), sizeof(name) - 1}

/* Classes of bytes. */
enum { NAME = 1, VALUE = 2, TARGET = 4, BLANK = 8, DIGIT = 16 };

static unsigned char signs[256];

/* Effect of a header on the framing of the message. */
typedef enum { NOTHING, HOST, LENGTH, CODING, CONNECTION, NEVER } Meaning;

static const struct {
    Bytes name;
    Meaning meaning;
} MEANINGS[] = {
    {NAMED("host"), HOST},
    {NAMED("content-length"), LENGTH},
    {NAMED("transfer-encoding"), CODING},
    {NAMED("connection"), CONNECTION},
    {NAMED("expect"), NEVER},
    {NAMED("proxy-connection"), NEVER},
    {NAMED("te"), NEVER},
    {NAMED("trailer"), NEVER},
    {NAMED("upgrade"), NEVER},
};

/* Lengths of these names, as bits: most other names have another length. */
static uint32_t sizes;

#define MOST_MEANT 17

static const Bytes KEPT = NAMED("keep-alive"), IN_CHUNKS = NAMED("chunked");

/* Framing headers so far: their counts, and the length of the body. */
typedef struct {
    unsigned char said[NEVER];
    long long length;
} Framing;

static unsigned char lower(unsigned char sign)
{
    return sign >= 'A' && sign <= 'Z' ? sign | 0x20 : sign;
}

/* Compares without case; the second one is lower case. */
static bool same(Bytes one, Bytes other)
{
    if (one.size != other.size)
        return false;
    for (Py_ssize_t i = 0; i < one.size; i++)
        if (lower(one.at[i]) != other.at[i])
            return false;
    return true;
}

static bool take(Bytes *rest, Bytes what)
{
    if (rest->size < what.size || memcmp(rest->at, what.at, (size_t)what.size) != 0)
        return false;
    rest->at += what.size;
    rest->size -= what.size;
    return true;
}

#define TAKE(rest, what) take(rest, (Bytes)NAMED(what))

static Bytes take_all(Bytes *rest, unsigned char of)
{
    const unsigned char *at = rest->at, *const end = at + rest->size;
    while (at < end && signs[*at] & of)
        at++;
    const Bytes taken = {rest->at, at - rest->at};
    *rest = (Bytes){at, end - at};
    return taken;
}

/* Bytes tested together. */
#define TOGETHER 8

/* Whether all of them may occur in a value; a tab is reported as false. */
static bool all_visible(const unsigned char *at)
{
    const uint64_t every = UINT64_C(0x0101010101010101);
    uint64_t bytes;
    memcpy(&bytes, at, TOGETHER);
    /* Bytes below a blank borrow from the highest bit, bytes from DEL on carry into it. */
    return (((bytes - every * ' ') | (bytes + every) | bytes) & every << 7) == 0;
}

static Bytes take_value(Bytes *rest)
{
    Bytes value = {rest->at, 0};
    for (; rest->size >= TOGETHER && all_visible(rest->at); rest->at += TOGETHER)
        rest->size -= TOGETHER;
    take_all(rest, VALUE);
    value.size = rest->at - value.at;
    return value;
}

static bool take_field(Bytes *rest, Bytes *name, Bytes *value)
{
    *name = take_all(rest, NAME);
    if (name->size == 0 || !TAKE(rest, ":"))
        return false;
    take_all(rest, BLANK);
    *value = take_value(rest);
    return TAKE(rest, "\r\n");
}

static Meaning meaning_of(Bytes name)
{
    if (name.size > MOST_MEANT || !(sizes >> name.size & 1))
        return NOTHING;
    for (size_t i = 0; i < sizeof MEANINGS / sizeof MEANINGS[0]; i++)
        if (same(name, MEANINGS[i].name))
            return MEANINGS[i].meaning;
    return NOTHING;
}

static bool read_length(Bytes value, long long *length)
{
    const Bytes digits = take_all(&value, DIGIT);
    if (value.size > 0 || digits.size == 0 || digits.size > DIGITS)
        return false;
    *length = 0;
    for (Py_ssize_t i = 0; i < digits.size; i++)
        *length = *length * 10 + (digits.at[i] - '0');
    return true;
}

/* Records a header; false if it is not plain. */
static bool note(Framing *framing, Bytes name, Bytes value)
{
    const Meaning meaning = meaning_of(name);
    if (meaning == NOTHING)
        return true;
    if (meaning == NEVER || framing->said[meaning]++ > 0)
        return false;
    if (meaning == LENGTH)
        return read_length(value, &framing->length);
    return meaning == HOST || same(value, meaning == CODING ? IN_CHUNKS : KEPT);
}

static PyObject *lowered_text(Bytes name)
{
    PyObject *const text = PyUnicode_New(name.size, 127);
    if (text != NULL)
        for (Py_ssize_t i = 0; i < name.size; i++)
            PyUnicode_1BYTE_DATA(text)[i] = lower(name.at[i]);
    return text;
}

static PyObject *lowered_bytes(Bytes name)
{
    PyObject *const bytes = PyBytes_FromStringAndSize(NULL, name.size);
    if (bytes != NULL)
        for (Py_ssize_t i = 0; i < name.size; i++)
            PyBytes_AS_STRING(bytes)[i] = (char)lower(name.at[i]);
    return bytes;
}

static PyObject *bytes_of(Bytes run)
{
    return PyBytes_FromStringAndSize((const char *)run.at, run.size);
}

/* Spellings that were looked up before, each at the place that a few of its bytes say; an object of bytes costs more
   to make and to look up than all else about a header. */
static struct {
    unsigned char spelling[40];
    Py_ssize_t size;
    PyObject *text;
} seen[256];

static PyObject *names_of_seen;

static void forget_seen(PyObject *names)
{
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++)
        Py_CLEAR(seen[i].text);
    Py_XSETREF(names_of_seen, Py_XNewRef(names));
}

static PyObject *look_up(Bytes name, PyObject *names)
{
    PyObject *const spelling = bytes_of(name);
    if (spelling == NULL)
        return NULL;
    PyObject *const text = PyDict_GetItemWithError(names, spelling);
    Py_DECREF(spelling);
    return text;
}

/* Returns the name in lower case: the shared string of this spelling, or a new one. */
static PyObject *known(Bytes name, PyObject *names)
{
    const unsigned char first = name.at[0], middle = name.at[name.size / 2], last = name.at[name.size - 1];
    const size_t place = (first * 7u + middle * 5u + last * 3u + (size_t)name.size) % (sizeof seen / sizeof seen[0]);
    if (names != names_of_seen)
        forget_seen(names);
    if (seen[place].text != NULL && seen[place].size == name.size &&
        memcmp(seen[place].spelling, name.at, (size_t)name.size) == 0)
        return Py_NewRef(seen[place].text);
    PyObject *const text = look_up(name, names);
    if (text == NULL)
        return PyErr_Occurred() ? NULL : lowered_text(name);
    if (name.size <= (Py_ssize_t)sizeof seen[place].spelling) {
        memcpy(seen[place].spelling, name.at, (size_t)name.size);
        seen[place].size = name.size;
        Py_XSETREF(seen[place].text, Py_NewRef(text));
    }
    return Py_NewRef(text);
}

static PyObject *text_of(Bytes value)
{
    while (value.size > 0 && signs[value.at[value.size - 1]] & BLANK)
        value.size--;
    PyObject *const text = PyUnicode_New(value.size, 127);
    if (text != NULL && value.size > 0)
        memcpy(PyUnicode_1BYTE_DATA(text), value.at, (size_t)value.size);
    return text;
}

/* Adds a header to a dict; false if it is there already, or on failure. */
static bool put(PyObject *headers, Bytes name, Bytes value, PyObject *names)
{
    const Py_ssize_t before = PyDict_GET_SIZE(headers);
    PyObject *const key = known(name, names), *const text = key == NULL ? NULL : text_of(value);
    const bool done = text != NULL && PyDict_SetItem(headers, key, text) == 0;
    Py_XDECREF(key);
    Py_XDECREF(text);
    return done && PyDict_GET_SIZE(headers) > before;
}

/* Appends a header to a list of pairs; false on failure. */
static bool append(PyObject *headers, Bytes name, Bytes value)
{
    PyObject *const key = lowered_bytes(name), *const bytes = key == NULL ? NULL : bytes_of(value);
    PyObject *const pair = bytes == NULL ? NULL : PyTuple_Pack(2, key, bytes);
    const bool done = pair != NULL && PyList_Append(headers, pair) == 0;
    Py_XDECREF(key);
    Py_XDECREF(bytes);
    Py_XDECREF(pair);
    return done;
}

/* Reads headers up to the empty line, into a dict if there are names for it, else into a list; false if they are not
   plain, or if it fails. */
static bool read_fields(Bytes *rest, Framing *framing, PyObject *headers, PyObject *names)
{
    Bytes name, value;
    for (int count = 0; !TAKE(rest, "\r\n"); count++) {
        if (count == MOST || !take_field(rest, &name, &value) || !note(framing, name, value))
            return false;
        if (names == NULL ? !append(headers, name, value) : !put(headers, name, value, names))
            return false;
    }
    return true;
}

/* Returns the four values as a tuple, which owns the objects; NULL if one of these is missing. */
static PyObject *result(PyObject *first, PyObject *headers, Py_ssize_t start, long long length)
{
    PyObject *const values[] = {first, headers, PyLong_FromSsize_t(start), PyLong_FromLongLong(length)};
    PyObject *made = NULL;
    if (first != NULL && values[2] != NULL && values[3] != NULL)
        made = PyTuple_Pack(4, first, headers, values[2], values[3]);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(values[i]);
    return made;
}

static PyObject *not_plain(PyObject *headers)
{
    Py_XDECREF(headers);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *parse_request(Bytes rest, PyObject *names)
{
    const unsigned char *const begin = rest.at;
    if (!TAKE(&rest, "POST "))
        return not_plain(NULL);
    const Bytes target = take_all(&rest, TARGET);
    if (target.size == 0 || target.at[0] != '/' || !TAKE(&rest, " HTTP/1.1\r\n"))
        return not_plain(NULL);
    Framing framing = {{0}, 0};
    PyObject *const headers = PyDict_New();
    if (headers == NULL || !read_fields(&rest, &framing, headers, names))
        return not_plain(headers);
    if (!framing.said[HOST] || !framing.said[LENGTH] || framing.said[CODING])
        return not_plain(headers);
    return result(bytes_of(target), headers, rest.at - begin, framing.length);
}

/* Reads a status that a body follows; 0 for any other. */
static int take_status(Bytes *rest)
{
    Bytes digits = take_all(rest, DIGIT);
    if (digits.size != 3 || digits.at[0] < '2' || digits.at[0] > '5')
        return 0;
    const int status = (digits.at[0] - '0') * 100 + (digits.at[1] - '0') * 10 + (digits.at[2] - '0');
    return status == 204 || status == 304 ? 0 : status;
}

static PyObject *parse_response(Bytes rest)
{
    const unsigned char *const begin = rest.at;
    if (!TAKE(&rest, "HTTP/1.1 "))
        return not_plain(NULL);
    const int status = take_status(&rest);
    if (status == 0 || !TAKE(&rest, " "))
        return not_plain(NULL);
    take_value(&rest);
    if (!TAKE(&rest, "\r\n"))
        return not_plain(NULL);
    Framing framing = {{0}, CHUNKED};
    PyObject *const headers = PyList_New(0);
    if (headers == NULL || !read_fields(&rest, &framing, headers, NULL))
        return not_plain(headers);
    if (framing.said[LENGTH] == framing.said[CODING])
        return not_plain(headers);
    return result(PyLong_FromLong(status), headers, rest.at - begin, framing.length);
}

/* Reads the bytes, at most as many as a plain head has. */
static bool read_bytes(PyObject *given, Bytes *into)
{
    if (!PyBytes_CheckExact(given)) {
        PyErr_Format(PyExc_TypeError, "bytes expected, not %.100s", Py_TYPE(given)->tp_name);
        return false;
    }
    *into = (Bytes){(const unsigned char *)PyBytes_AS_STRING(given), PyBytes_GET_SIZE(given)};
    if (into->size > MAX_BYTES)
        into->size = MAX_BYTES;
    return true;
}

static PyObject *call_parse_request(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    Bytes data;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "2 arguments expected, not %zd", count);
    if (!PyDict_CheckExact(given[1]))
        return PyErr_Format(PyExc_TypeError, "dict expected, not %.100s", Py_TYPE(given[1])->tp_name);
    return read_bytes(given[0], &data) ? parse_request(data, given[1]) : NULL;
}

static PyObject *call_parse_response(PyObject *Py_UNUSED(module), PyObject *given)
{
    Bytes data;
    return read_bytes(given, &data) ? parse_response(data) : NULL;
}

static void sort_signs(void)
{
    for (int sign = '!'; sign <= '~'; sign++)
        signs[sign] = VALUE | (sign == '#' ? 0 : TARGET);
    for (const char *sign = "!#$%&'*+-.^_`|~"; *sign; sign++)
        signs[(unsigned char)*sign] |= NAME;
    for (int sign = '0'; sign <= '9'; sign++)
        signs[sign] |= NAME | DIGIT;
    for (int sign = 'a'; sign <= 'z'; sign++) {
        signs[sign] |= NAME;
        signs[sign - 'a' + 'A'] |= NAME;
    }
    signs[' '] = signs['\t'] = VALUE | BLANK;
}

static int prepare(PyObject *module)
{
    sort_signs();
    for (size_t i = 0; i < sizeof MEANINGS / sizeof MEANINGS[0]; i++)
        sizes |= UINT32_C(1) << MEANINGS[i].name.size;
    return PyModule_AddIntConstant(module, "MAX_BYTES", MAX_BYTES);
}

static PyMethodDef functions[] = {
    {"parse_request", (PyCFunction)(void (*)(void))call_parse_request, METH_FASTCALL, NULL},
    {"parse_response", call_parse_response, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "plain_heads", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_plain_heads(void)
{
    return PyModuleDef_Init(&module);
}
