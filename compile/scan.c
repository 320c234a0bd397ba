/* routecodex.wire.scan in C. The contract is in wire/scan.py, which does the same in Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const unsigned char *at;
    Py_ssize_t size;
} Bytes;

static Py_ssize_t text_end(Bytes run, Py_ssize_t at)
{
    while (at < run.size && run.at[at] != '"') {
        if (run.at[at] != '\\') {
            at++;
            continue;
        }
        if (at + 1 == run.size || run.at[at + 1] == '\n')
            return at;
        at += 2;
    }
    return at;
}

static bool starts_at(Bytes run, Py_ssize_t at, Bytes what)
{
    return what.size <= run.size - at && memcmp(run.at + at, what.at, (size_t)what.size) == 0;
}

static Py_ssize_t frames_end(Bytes run, Py_ssize_t at, Bytes head, Bytes tail)
{
    while (starts_at(run, at, head)) {
        const Py_ssize_t text = at + head.size;
        const unsigned char *found = memchr(run.at + text, '"', (size_t)(run.size - text));
        if (found == NULL)
            break;
        /* After a backslash the quote may belong to the text. */
        const Py_ssize_t quote = found[-1] == '\\' ? text_end(run, text) : found - run.at;
        if (quote == run.size || !starts_at(run, quote, tail))
            break;
        at = quote + tail.size;
    }
    return at;
}

/* Returns the first quote from `at` on that is not escaped; -1 if there is none. */
static Py_ssize_t string_end(Bytes text, Py_ssize_t at)
{
    const unsigned char *quote;
    for (; (quote = memchr(text.at + at, '"', (size_t)(text.size - at))) != NULL; at = quote - text.at + 1) {
        const unsigned char *before = quote;
        while (before > text.at + at && before[-1] == '\\')
            before--;
        if ((quote - before) % 2 == 0)
            return quote - text.at;
    }
    return -1;
}

static bool is_plain(const unsigned char *at, const unsigned char *end)
{
    unsigned char odd = 0;
    for (; at < end; at++)
        odd |= (unsigned char)(*at - ' ') > '~' - ' ' || *at == '\\';
    return odd == 0;
}

/* Returns a new plain value and its end; NULL if it is not plain, with an error set if memory is exhausted. */
static PyObject *plain(Bytes run, Py_ssize_t at, Py_ssize_t *end)
{
    const Bytes null = {(const unsigned char *)"null", 4};
    const Py_ssize_t start = at;
    if (starts_at(run, at, null)) {
        *end = at + null.size;
        return Py_NewRef(Py_None);
    }
    if (at < run.size && run.at[at] == '"') {
        const unsigned char *const text = run.at + at + 1, *const quote = memchr(text, '"', (size_t)(run.size - at - 1));
        if (quote == NULL || !is_plain(text, quote))
            return NULL;
        *end = quote - run.at + 1;
        return PyUnicode_DecodeASCII((const char *)text, quote - text, NULL);
    }
    long long number = 0;
    for (; at < run.size && run.at[at] >= '0' && run.at[at] <= '9' && at - start < 15; at++)
        number = number * 10 + (run.at[at] - '0');
    if (at == start || (run.at[start] == '0' && at - start > 1))
        return NULL;
    *end = at;
    return PyLong_FromLongLong(number);
}

/* Returns the index of the name of the member at `at`, and the offset of its value; -1 if it is not one of them. */
static Py_ssize_t name_at(Bytes run, Py_ssize_t at, PyObject *names, Py_ssize_t *value)
{
    if (at >= run.size || run.at[at] != '"')
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *const arg = PyTuple_GET_ITEM(names, i);
        const Bytes name = {(const unsigned char *)PyBytes_AS_STRING(arg), PyBytes_GET_SIZE(arg)};
        const Py_ssize_t end = at + 1 + name.size;
        if (end + 2 > run.size || run.at[end] != '"' || run.at[end + 1] != ':' || !starts_at(run, at + 1, name))
            continue;
        *value = end + 2;
        return i;
    }
    return -1;
}

/* Stores the values of plain members in a tuple, by name; returns the end of the members. */
static Py_ssize_t plain_members(Bytes run, Py_ssize_t at, PyObject *names, PyObject *values)
{
    Py_ssize_t end = at, value, after;
    for (Py_ssize_t begin = at; end == at || run.at[end] == ','; begin = end + 1) {
        const Py_ssize_t i = name_at(run, begin, names, &value);
        if (i < 0 || PyTuple_GET_ITEM(values, i) != NULL)
            break;
        PyObject *const found = plain(run, value, &after);
        if (found == NULL)
            break;
        if (after == run.size || (run.at[after] != ',' && run.at[after] != '}')) {
            Py_DECREF(found);
            break;
        }
        PyTuple_SET_ITEM(values, i, found);
        end = after;
    }
    return end;
}

static int hex_value(unsigned char sign)
{
    if (sign >= '0' && sign <= '9')
        return sign - '0';
    sign |= 0x20; /* capitals */
    return sign >= 'a' && sign <= 'f' ? sign - 'a' + 10 : -1;
}

/* Returns the body of the complete plain chunk at `at`; empty if there is none. */
static Bytes chunk(Bytes data, Py_ssize_t at)
{
    const Bytes none = {data.at, 0};
    const Py_ssize_t line = at;
    Py_ssize_t size = 0;
    for (int digit; at < data.size && (digit = hex_value(data.at[at])) >= 0; at++) {
        if (at - line == 8)
            return none;
        size = size * 16 + digit;
    }
    if (at == line || data.size - at < 2 || data.at[at] != '\r' || data.at[at + 1] != '\n')
        return none;
    at += 2;
    if (size > data.size - at - 2 || data.at[at + size] != '\r' || data.at[at + size + 1] != '\n')
        return none;
    return (Bytes){data.at + at, size};
}

/* Copies the bodies of chunks to `out`, which is as large as the data; returns the end of the chunks. */
static Py_ssize_t unchunk(Bytes data, Py_ssize_t at, char *out, Py_ssize_t *size)
{
    *size = 0;
    for (Bytes body; (body = chunk(data, at)).size > 0; at = body.at - data.at + body.size + 2) {
        memcpy(out + *size, body.at, (size_t)body.size);
        *size += body.size;
    }
    return at;
}

/* Offsets that are tried together: the compiler vectorises a loop of fixed length. For a needle of a few bytes this
   takes a quarter of the time of memmem. */
#define PLACES 128

#if defined(__x86_64__) && defined(__GNUC__)
#define WIDE __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* Whether three bytes of the needle match at one of the next PLACES offsets. */
INLINE bool may_match(const unsigned char *at, Bytes needle)
{
    const Py_ssize_t half = needle.size / 2, end = needle.size - 1;
    const unsigned char first = needle.at[0], middle = needle.at[half], last = needle.at[end];
    unsigned char found = 0;
    for (int i = 0; i < PLACES; i++)
        found |= ((at[i] ^ first) | (at[i + half] ^ middle) | (at[i + end] ^ last)) == 0 ? 0xFF : 0;
    return found != 0;
}

/* Returns the first of these offsets at which the needle occurs; NULL if there is none. */
static const unsigned char *find_within(const unsigned char *at, Py_ssize_t places, Bytes needle)
{
    const unsigned char *const past = at + places;
    while ((at = memchr(at, needle.at[0], (size_t)(past - at))) != NULL) {
        if (memcmp(at, needle.at, (size_t)needle.size) == 0)
            return at;
        at++;
    }
    return NULL;
}

INLINE const unsigned char *find_portable(Bytes body, Bytes needle)
{
    if (needle.size == 0 || needle.size > body.size)
        return needle.size == 0 ? body.at : NULL;
    const Py_ssize_t places = body.size - needle.size + 1;
    const unsigned char *at = memchr(body.at, needle.at[0], (size_t)places), *found;
    if (at == NULL)
        return NULL;
    const unsigned char *const past = body.at + places;
    for (; past - at >= PLACES; at += PLACES)
        if (may_match(at, needle) && (found = find_within(at, PLACES, needle)) != NULL)
            return found;
    if (places >= PLACES && !may_match(past - PLACES, needle))
        return NULL;
    return find_within(at, past - at, needle);
}

static const unsigned char *find_narrow(Bytes body, Bytes needle)
{
    return find_portable(body, needle);
}

#ifdef WIDE
/* The same with vectors of twice the size, if the processor has them. */
static WIDE const unsigned char *find_wide(Bytes body, Bytes needle)
{
    return find_portable(body, needle);
}
#endif

static const unsigned char *(*find)(Bytes body, Bytes needle) = find_narrow;

/* UTF-8 as a state machine; a byte without a transition leads to FAULT. A state is the shift at which a byte's word in
   `steps` holds the next state, six bits wide: one shift is one step. */
enum { FAULT = 0, START = 6, ONE = 12, TWO = 18, THREE = 24, LOW_3 = 30, NO_PAIR = 36, LOW_4 = 42, HIGH_4 = 48 };

static const struct {
    unsigned char from, low, high, to;
} STEPS[] = {
    {START, 0x00, 0x7F, START},
    {START, 0xC2, 0xDF, ONE},
    {START, 0xE0, 0xE0, LOW_3},
    {START, 0xE1, 0xEC, TWO},
    {START, 0xED, 0xED, NO_PAIR},
    {START, 0xEE, 0xEF, TWO},
    {START, 0xF0, 0xF0, LOW_4},
    {START, 0xF1, 0xF3, THREE},
    {START, 0xF4, 0xF4, HIGH_4},
    {LOW_3, 0xA0, 0xBF, ONE},   /* below: overlong, two bytes suffice */
    {NO_PAIR, 0x80, 0x9F, ONE}, /* above: surrogates */
    {LOW_4, 0x90, 0xBF, TWO},   /* below: overlong, three bytes suffice */
    {HIGH_4, 0x80, 0x8F, TWO},  /* above: more than U+10FFFF */
    {THREE, 0x80, 0xBF, TWO},
    {TWO, 0x80, 0xBF, ONE},
    {ONE, 0x80, 0xBF, START},
};

static uint64_t steps[256];

static uint64_t step(uint64_t state, unsigned char byte)
{
    return steps[byte] >> state & 63;
}

/* Bytes tested together: few, so that little ASCII is decoded because of a neighbour that is not ASCII. */
#define TOGETHER 8

static bool is_ascii(const unsigned char *at)
{
    uint64_t bytes;
    memcpy(&bytes, at, TOGETHER);
    return (bytes & UINT64_C(0x8080808080808080)) == 0;
}

static Py_ssize_t find_invalid_utf8(Bytes body)
{
    Py_ssize_t at = 0;
    uint64_t state = START;
    for (; body.size - at >= TOGETHER; at += TOGETHER) {
        if (state == START) {
            while (body.size - at >= 2 * TOGETHER && is_ascii(body.at + at) && is_ascii(body.at + at + TOGETHER))
                at += 2 * TOGETHER;
            if (body.size - at < TOGETHER)
                break;
            if (is_ascii(body.at + at))
                continue;
        }
        uint64_t after = state;
        for (int i = 0; i < TOGETHER; i++)
            after = step(after, body.at[at + i]);
        if (after == FAULT)
            break;
        state = after;
    }
    /* The block with a fault, and the last bytes, are decoded one by one. */
    for (; at < body.size; at++) {
        const uint64_t after = step(state, body.at[at]);
        if (after == FAULT)
            break;
        state = after;
    }
    if (state == START)
        return at < body.size ? at : -1;
    /* Inside of a character: report its first byte. */
    do
        at--;
    while ((body.at[at] & 0xC0) == 0x80);
    return at;
}

static bool read_bytes(PyObject *arg, Bytes *into)
{
    if (!PyBytes_CheckExact(arg)) {
        PyErr_Format(PyExc_TypeError, "bytes expected, not %.100s", Py_TYPE(arg)->tp_name);
        return false;
    }
    *into = (Bytes){(const unsigned char *)PyBytes_AS_STRING(arg), PyBytes_GET_SIZE(arg)};
    return true;
}

/* Clamps numbers that are too large for an index. */
static bool read_offset(PyObject *arg, Py_ssize_t *into)
{
    if (!PyLong_Check(arg)) {
        PyErr_Format(PyExc_TypeError, "int expected, not %.100s", Py_TYPE(arg)->tp_name);
        return false;
    }
    *into = PyNumber_AsSsize_t(arg, NULL);
    return true;
}

static bool check_all_bytes(PyObject *arg)
{
    Bytes each;
    if (!PyTuple_CheckExact(arg)) {
        PyErr_Format(PyExc_TypeError, "tuple expected, not %.100s", Py_TYPE(arg)->tp_name);
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arg); i++)
        if (!read_bytes(PyTuple_GET_ITEM(arg, i), &each))
            return false;
    return true;
}

static bool check_count(Py_ssize_t expected, Py_ssize_t count)
{
    if (count != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments expected, not %zd", expected, count);
    return count == expected;
}

static PyObject *call_frames_end(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Bytes run, head, tail;
    Py_ssize_t at;
    if (!check_count(4, count) || !read_bytes(args[0], &run) || !read_offset(args[1], &at))
        return NULL;
    if (!read_bytes(args[2], &head) || !read_bytes(args[3], &tail))
        return NULL;
    if (at < 0 || at > run.size || head.size == 0)
        return Py_NewRef(args[1]);
    return PyLong_FromSsize_t(frames_end(run, at, head, tail));
}

static PyObject *call_text_length(PyObject *Py_UNUSED(module), PyObject *arg)
{
    Bytes text;
    return read_bytes(arg, &text) ? PyLong_FromSsize_t(text_end(text, 0)) : NULL;
}

static PyObject *call_string_end(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Bytes text;
    Py_ssize_t at;
    if (!check_count(2, count) || !read_bytes(args[0], &text) || !read_offset(args[1], &at))
        return NULL;
    return PyLong_FromSsize_t(at < 0 || at > text.size ? -1 : string_end(text, at));
}

static PyObject *call_plain_members(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Bytes run;
    Py_ssize_t at;
    if (!check_count(3, count) || !read_bytes(args[0], &run) || !read_offset(args[1], &at) || !check_all_bytes(args[2]))
        return NULL;
    PyObject *const values = PyTuple_New(PyTuple_GET_SIZE(args[2]));
    if (values == NULL)
        return NULL;
    const bool within = at >= 0 && at <= run.size;
    const Py_ssize_t end = within ? plain_members(run, at, args[2], values) : at;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (PyTuple_GET_ITEM(values, i) == NULL)
            PyTuple_SET_ITEM(values, i, Py_NewRef(Py_None));
    if (!PyErr_Occurred())
        return within ? Py_BuildValue("(Nn)", values, end) : Py_BuildValue("(NO)", values, args[1]);
    Py_DECREF(values);
    return NULL;
}

static PyObject *call_unchunk(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Bytes data;
    Py_ssize_t at, size;
    if (!check_count(2, count) || !read_bytes(args[0], &data) || !read_offset(args[1], &at))
        return NULL;
    if (at < 0 || at > data.size || chunk(data, at).size == 0)
        return Py_BuildValue("(yO)", "", args[1]);
    PyObject *body = PyBytes_FromStringAndSize(NULL, data.size - at);
    if (body == NULL)
        return NULL;
    const Py_ssize_t end = unchunk(data, at, PyBytes_AS_STRING(body), &size);
    return _PyBytes_Resize(&body, size) < 0 ? NULL : Py_BuildValue("(Nn)", body, end);
}

static PyObject *call_contains(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Bytes body, needle;
    if (!check_count(2, count) || !read_bytes(args[0], &body) || !read_bytes(args[1], &needle))
        return NULL;
    return PyBool_FromLong(find(body, needle) != NULL);
}

static PyObject *call_find(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Bytes body, needle;
    Py_ssize_t at;
    if (!check_count(3, count) || !read_bytes(args[0], &body) || !read_bytes(args[1], &needle))
        return NULL;
    if (!read_offset(args[2], &at))
        return NULL;
    if (at < 0 || at > body.size)
        return PyLong_FromLong(-1);
    const unsigned char *const found = find((Bytes){body.at + at, body.size - at}, needle);
    return PyLong_FromSsize_t(found == NULL ? -1 : found - body.at);
}

static PyObject *call_find_first(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Bytes body, needle;
    Py_ssize_t at, found = -1;
    if (!check_count(3, count) || !read_bytes(args[0], &body) || !check_all_bytes(args[1]))
        return NULL;
    if (!read_offset(args[2], &at))
        return NULL;
    for (Py_ssize_t i = 0; at >= 0 && at <= body.size && i < PyTuple_GET_SIZE(args[1]); i++) {
        read_bytes(PyTuple_GET_ITEM(args[1], i), &needle);
        /* Search only before the earliest needle found so far. */
        const Py_ssize_t end = found < 0 || found + needle.size - 1 > body.size ? body.size : found + needle.size - 1;
        const unsigned char *const place = end < at ? NULL : find((Bytes){body.at + at, end - at}, needle);
        if (place != NULL)
            found = place - body.at;
    }
    return PyLong_FromSsize_t(found);
}

static PyObject *call_find_invalid_utf8(PyObject *Py_UNUSED(module), PyObject *arg)
{
    Bytes body;
    return read_bytes(arg, &body) ? PyLong_FromSsize_t(find_invalid_utf8(body)) : NULL;
}

static PyObject *call_first_byte(PyObject *Py_UNUSED(module), PyObject *arg)
{
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *byte = NULL;
    if (view.len > 0)
        byte = PyLong_FromLong(*(const unsigned char *)view.buf);
    else
        PyErr_SetString(PyExc_ValueError, "an empty value has no first byte");
    PyBuffer_Release(&view);
    return byte;
}

static int prepare(PyObject *module)
{
    for (size_t i = 0; i < sizeof STEPS / sizeof STEPS[0]; i++)
        for (int byte = STEPS[i].low; byte <= STEPS[i].high; byte++)
            steps[byte] |= (uint64_t)STEPS[i].to << STEPS[i].from;
#ifdef WIDE
    if (__builtin_cpu_supports("avx2"))
        find = find_wide;
#endif
    return PyModule_AddObjectRef(module, "IN_C", Py_True);
}

static PyMethodDef functions[] = {
    {"frames_end", (PyCFunction)(void (*)(void))call_frames_end, METH_FASTCALL, NULL},
    {"text_length", call_text_length, METH_O, NULL},
    {"string_end", (PyCFunction)(void (*)(void))call_string_end, METH_FASTCALL, NULL},
    {"plain_members", (PyCFunction)(void (*)(void))call_plain_members, METH_FASTCALL, NULL},
    {"unchunk", (PyCFunction)(void (*)(void))call_unchunk, METH_FASTCALL, NULL},
    {"contains", (PyCFunction)(void (*)(void))call_contains, METH_FASTCALL, NULL},
    {"find", (PyCFunction)(void (*)(void))call_find, METH_FASTCALL, NULL},
    {"find_first", (PyCFunction)(void (*)(void))call_find_first, METH_FASTCALL, NULL},
    {"find_invalid_utf8", call_find_invalid_utf8, METH_O, NULL},
    {"first_byte", call_first_byte, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "scan", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_scan(void)
{
    return PyModuleDef_Init(&module);
}
