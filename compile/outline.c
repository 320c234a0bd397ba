/* routecodex.wire.outline in C. The contract is in wire/outline.py; the tests compare this file with
   tests/reference/outline.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const unsigned char *at;
    Py_ssize_t size;
} Bytes;

/* A key, and the depth of the objects that may have it: 1 is the outermost. */
typedef struct {
    Bytes key;
    int depth;
} Place;

#define MOST_PLACES 8

/* Start of a mark, the string in place of a text: a character that texts do not start with. */
#define MARK "\"\\u0000"
#define MARK_SIZE ((Py_ssize_t)sizeof MARK - 1)

typedef struct {
    Place at[MOST_PLACES];
    Py_ssize_t count;
} Places;

/* A string, from its quote to the end of its closing quote. */
typedef struct {
    Py_ssize_t start, end;
} Cut;

typedef struct {
    Cut *at;
    Py_ssize_t count, room;
} Cuts;

typedef struct {
    Bytes body, opening;
    Places places;
    Py_ssize_t shortest;
} Asked;

typedef enum { ODD, READ, NO_MEMORY } Verdict;

#ifdef __SSE2__
#include <immintrin.h>

/* Bytes tested together, as masks with one bit per byte. */
#define BLOCK 64
#define DEEPEST 60
#define LAST_BIT (UINT64_C(1) << (BLOCK - 1))
#define NO_TEXT UINT64_MAX
#define INLINE static inline __attribute__((always_inline))

/* State of the previous block that matters for the next one. */
typedef struct {
    uint64_t escape, inside, text;
} Carry;

typedef struct {
    Bytes body, opening;
    const Places *places;
    Py_ssize_t shortest;
    Cuts *cuts;
    int depth;
    uint64_t lists;         /* one bit per open bracket, set for lists; the innermost is the last bit */
    Py_ssize_t quote;       /* start of the last opened string that may be long */
    Py_ssize_t second_half; /* offset at which the second half of a surrogate pair must be */
    bool no_memory, may_open;
} Reader;

/* Returns the escaped bytes: those after a backslash that is not escaped itself. */
INLINE uint64_t escaped(uint64_t backslashes, uint64_t *carry)
{
    const uint64_t even = UINT64_C(0x5555555555555555);
    backslashes &= ~*carry;
    const uint64_t behind = backslashes << 1 | *carry;
    /* Adding the start of a run at an odd offset carries to its end (as in simdjson). */
    const uint64_t odd_rows = backslashes & ~even & ~behind;
    uint64_t ends;
    *carry = __builtin_add_overflow(odd_rows, backslashes, &ends);
    return (even ^ (ends << 1)) & behind;
}

/* Returns the bytes from each opening quote up to its closing quote. */
INLINE uint64_t between(uint64_t quotes)
{
    for (int step = 1; step < BLOCK; step *= 2)
        quotes ^= quotes << step;
    return quotes;
}

/* Returns the length of the UTF-8 character at `at`; 0 if it is not valid. */
static inline int character(Bytes body, Py_ssize_t at)
{
    unsigned char sign[4] = {0};
    if (body.size - at >= 4)
        memcpy(sign, body.at + at, 4);
    else
        memcpy(sign, body.at + at, (size_t)(body.size - at));
    const bool second = (sign[1] & 0xC0) == 0x80, third = (sign[2] & 0xC0) == 0x80, fourth = (sign[3] & 0xC0) == 0x80;
    if (sign[0] < 0xE0)
        return sign[0] >= 0xC2 && second ? 2 : 0;
    if (sign[0] < 0xF0) {
        /* Neither overlong (two bytes suffice) nor a surrogate. */
        const bool out = (sign[0] == 0xE0 && sign[1] < 0xA0) || (sign[0] == 0xED && sign[1] >= 0xA0);
        return second && third && !out ? 3 : 0;
    }
    /* Neither overlong (three bytes suffice) nor above U+10FFFF. */
    const bool out = sign[0] > 0xF4 || (sign[0] == 0xF0 && sign[1] < 0x90) || (sign[0] == 0xF4 && sign[1] >= 0x90);
    return second && third && fourth && !out ? 4 : 0;
}

/* Checks each character; returns the bytes of the last one in the next block, NO_TEXT if one is not valid. */
static uint64_t past_characters(Bytes body, Py_ssize_t start, uint64_t high, uint64_t lead, uint64_t reached)
{
    uint64_t reaching = 0;
    for (uint64_t left = high & ~reached; left != 0;) {
        const int bit = __builtin_ctzll(left), size = character(body, start + bit);
        if (size == 0)
            return NO_TEXT;
        const uint64_t bytes = (UINT64_C(1) << size) - 1;
        left &= ~(bytes << bit);
        if (bit + size > BLOCK)
            reaching = bytes >> (BLOCK - bit);
    }
    return (reached & ~(high & ~lead)) != 0 ? NO_TEXT : reaching;
}

/* Returns the value of the four hex digits at `at`; -1 if they are not hex digits. */
static int32_t code_unit(Bytes body, Py_ssize_t at)
{
    int32_t unit = 0;
    if (body.size - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const unsigned char sign = body.at[at + i], letter = sign | 0x20;
        if (sign >= '0' && sign <= '9')
            unit = unit * 16 + sign - '0';
        else if (letter >= 'a' && letter <= 'f')
            unit = unit * 16 + letter - 'a' + 10;
        else
            return -1;
    }
    return unit;
}

/* Whether the escape whose `u` is at `at` is neither a character nor half of a complete surrogate pair. */
static bool is_no_unit(Reader *reader, Py_ssize_t at)
{
    const Bytes body = reader->body;
    const int32_t unit = code_unit(body, at + 1);
    reader->may_open |= unit < 0x100;
    if (unit < 0xD800 || unit > 0xDFFF)
        return unit < 0;
    if (unit >= 0xDC00)
        return reader->second_half != at;
    if (body.size - at < 7 || body.at[at + 5] != '\\' || body.at[at + 6] != 'u')
        return true;
    const int32_t second = code_unit(body, at + 7);
    reader->second_half = at + 6;
    return second < 0xDC00 || second > 0xDFFF;
}

static bool are_no_escapes(Reader *reader, Py_ssize_t start, uint64_t places)
{
    for (; places != 0; places &= places - 1) {
        const Py_ssize_t at = start + __builtin_ctzll(places);
        const unsigned char sign = reader->body.at[at];
        if (sign == 'u' ? is_no_unit(reader, at) : memchr("rbf/", sign, 4) == NULL)
            return true;
    }
    return false;
}

/* Whether the opening occurs at one of the offsets. */
static bool is_open(Bytes body, Bytes opening, Py_ssize_t start, uint64_t places)
{
    for (; places != 0; places &= places - 1) {
        const Py_ssize_t at = start + __builtin_ctzll(places);
        if (body.size - at >= opening.size && memcmp(body.at + at, opening.at, (size_t)opening.size) == 0)
            return true;
    }
    return false;
}

static Py_ssize_t past_blanks(Bytes body, Py_ssize_t at, int step)
{
    while (at >= 0 && at < body.size && body.at[at] <= ' ')
        at += step;
    return at;
}

static bool has_key(Bytes body, Py_ssize_t end, Bytes key)
{
    const Py_ssize_t start = end - key.size;
    return start > 1 && body.at[start - 1] == '"' && body.at[start - 2] != '\\' &&
           memcmp(body.at + start, key.at, (size_t)key.size) == 0;
}

/* Whether the key that ends at `end` is one of the places. */
static bool is_in_place(const Reader *reader, Py_ssize_t end)
{
    /* Objects and lists alternate, with an object first and last. */
    if (reader->lists != (UINT64_C(0xAAAAAAAAAAAAAAAA) & ((UINT64_C(1) << reader->depth) - 1)))
        return false;
    for (Py_ssize_t i = 0; i < reader->places->count; i++)
        if (reader->places->at[i].depth == reader->depth && has_key(reader->body, end, reader->places->at[i].key))
            return true;
    return false;
}

/* Whether the last opened string is the value of such a key. */
static bool is_wanted(const Reader *reader)
{
    const Bytes body = reader->body;
    Py_ssize_t at = past_blanks(body, reader->quote - 1, -1);
    if (at < 0 || body.at[at] != ':')
        return false;
    at = past_blanks(body, at - 1, -1);
    return at >= 0 && body.at[at] == '"' && is_in_place(reader, at);
}

static bool add(Cuts *cuts, Cut cut)
{
    if (cuts->count == cuts->room) {
        const Py_ssize_t room = cuts->room == 0 ? 64 : cuts->room * 2;
        Cut *const at = PyMem_Realloc(cuts->at, (size_t)room * sizeof *at);
        if (at == NULL)
            return false;
        cuts->at = at;
        cuts->room = room;
    }
    cuts->at[cuts->count++] = cut;
    return true;
}

static bool closes_odd(Reader *reader, Py_ssize_t at)
{
    if (at + 1 - reader->quote < reader->shortest)
        return false;
    if (is_wanted(reader) && !add(reader->cuts, (Cut){reader->quote, at + 1}))
        reader->no_memory = true;
    return reader->no_memory;
}

/* Whether one of the strings at these offsets starts like a mark. */
static bool are_marks(Bytes body, Py_ssize_t start, uint64_t places)
{
    for (; places != 0; places &= places - 1) {
        const Py_ssize_t at = start + __builtin_ctzll(places);
        if (body.size - at >= MARK_SIZE && memcmp(body.at + at, MARK, MARK_SIZE) == 0)
            return true;
    }
    return false;
}

/* Without branches: the next bracket cannot be predicted. */
INLINE bool nests_odd(Reader *reader, unsigned char sign)
{
    const bool opens = (sign & ('{' & ~'}')) != 0, of_list = (sign & ('{' & ~'[')) == 0;
    reader->depth += opens ? 1 : -1;
    reader->lists = opens ? reader->lists << 1 | of_list : reader->lists >> 1;
    return (unsigned)reader->depth > DEEPEST;
}

/* Quotes and brackets of a block; `inside` are the bytes in strings. */
typedef struct {
    uint64_t quotes, brackets, inside;
    bool begins_inside, ends_inside;
} Turns;

static bool walks_odd(Reader *reader, Py_ssize_t start, Turns turns)
{
    for (uint64_t left = turns.quotes | turns.brackets; left != 0; left &= left - 1) {
        const int bit = __builtin_ctzll(left);
        const Py_ssize_t at = start + bit;
        if ((turns.brackets >> bit & 1) != 0) {
            if (nests_odd(reader, reader->body.at[at]))
                return true;
        } else if ((turns.inside >> bit & 1) != 0)
            reader->quote = at;
        else if (closes_odd(reader, at))
            return true;
    }
    return false;
}

/* The same if only strings longer than a block are cut: those inside of a block are skipped. */
INLINE bool strides_odd(Reader *reader, Py_ssize_t start, Turns turns)
{
    if (turns.begins_inside && closes_odd(reader, start + __builtin_ctzll(turns.quotes)))
        return true;
    for (uint64_t left = turns.brackets; left != 0; left &= left - 1)
        if (nests_odd(reader, reader->body.at[start + __builtin_ctzll(left)]))
            return true;
    if (turns.ends_inside)
        reader->quote = start + BLOCK - 1 - __builtin_clzll(turns.quotes);
    return false;
}

/* The same for vectors of each size: the larger ones where the processor has them. With those of 64 bytes this is
   faster still, but no request is. */
#define WIDTH 16
#define TARGET
#include "blocks.h"
#define WIDTH 32
#define TARGET __attribute__((target("avx2,bmi,bmi2")))
#include "blocks.h"

static int widest(void)
{
    const bool wide = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx2");
    return wide ? 32 : 16;
}

static Verdict find(const Asked *asked, Cuts *cuts, int width, bool *may_open)
{
    Reader reader = {.body = asked->body,
                     .opening = asked->opening,
                     .places = &asked->places,
                     .shortest = asked->shortest,
                     .cuts = cuts,
                     .second_half = -1};
    const bool odd = width == 32 ? are_odd_32(&reader) : are_odd_16(&reader);
    *may_open = reader.may_open;
    if (reader.no_memory)
        return NO_MEMORY;
    return odd || reader.depth != 0 ? ODD : READ;
}
#else
static int widest(void)
{
    return 0;
}

/* Without vectors the search takes longer than it saves. */
static Verdict find(const Asked *asked, Cuts *cuts, int width, bool *may_open)
{
    (void)asked, (void)cuts, (void)width, (void)may_open;
    return ODD;
}
#endif

static int digits_of(Py_ssize_t number)
{
    int digits = 1;
    for (; number >= 10; number /= 10)
        digits++;
    return digits;
}

/* Returns the body with a mark and the offset of the string in place of each cut. */
static PyObject *without(Bytes body, Cuts cuts)
{
    Py_ssize_t size = body.size, at = 0;
    for (Py_ssize_t i = 0; i < cuts.count; i++)
        size += MARK_SIZE + digits_of(cuts.at[i].start) + 1 - (cuts.at[i].end - cuts.at[i].start);
    PyObject *const made = PyBytes_FromStringAndSize(NULL, size);
    if (made == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(made);
    for (Py_ssize_t i = 0; i < cuts.count; i++) {
        Py_ssize_t number = cuts.at[i].start;
        memcpy(to, body.at + at, (size_t)(number - at));
        to += number - at;
        memcpy(to, MARK, MARK_SIZE);
        to += MARK_SIZE + digits_of(number);
        *to = '"';
        for (char *digit = to - 1; digit >= to - digits_of(cuts.at[i].start); digit--, number /= 10)
            *digit = (char)('0' + number % 10);
        to++;
        at = cuts.at[i].end;
    }
    memcpy(to, body.at + at, (size_t)(body.size - at));
    return made;
}

static bool read_bytes(PyObject *given, Bytes *into)
{
    if (!PyBytes_CheckExact(given)) {
        PyErr_Format(PyExc_TypeError, "bytes expected, not %.100s", Py_TYPE(given)->tp_name);
        return false;
    }
    *into = (Bytes){(const unsigned char *)PyBytes_AS_STRING(given), PyBytes_GET_SIZE(given)};
    return true;
}

static bool read_places(PyObject *given, Places *into)
{
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) > MOST_PLACES) {
        PyErr_SetString(PyExc_TypeError, "a few places expected, in a tuple");
        return false;
    }
    into->count = PyTuple_GET_SIZE(given);
    for (Py_ssize_t i = 0; i < into->count; i++) {
        PyObject *key, *const place = PyTuple_GET_ITEM(given, i);
        if (!PyTuple_CheckExact(place) || !PyArg_ParseTuple(place, "Si", &key, &into->at[i].depth)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a place is a key and a depth");
            return false;
        }
        if (!read_bytes(key, &into->at[i].key))
            return false;
    }
    return true;
}

static int width;

static bool read_asked(PyObject *const *given, Py_ssize_t count, Asked *asked)
{
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "4 arguments expected, not %zd", count);
        return false;
    }
    if (!read_bytes(given[0], &asked->body) || !read_places(given[1], &asked->places) ||
        !read_bytes(given[3], &asked->opening))
        return false;
    asked->shortest = PyNumber_AsSsize_t(given[2], NULL);
    if (asked->opening.size == 0)
        PyErr_SetString(PyExc_ValueError, "what opens must be something");
    return !PyErr_Occurred();
}

static PyObject *call_cut(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    Asked asked;
    if (!read_asked(given, count, &asked))
        return NULL;
    Cuts cuts = {NULL, 0, 0};
    bool may_open = false;
    PyObject *made = NULL;
    switch (find(&asked, &cuts, width, &may_open)) {
    case ODD:
        made = Py_NewRef(Py_None);
        break;
    case READ:
        made = cuts.count == 0 ? Py_NewRef(given[0]) : without(asked.body, cuts);
        if (made != NULL)
            made = Py_BuildValue("(NO)", made, may_open ? Py_True : Py_False);
        break;
    case NO_MEMORY:
        PyErr_NoMemory();
    }
    PyMem_Free(cuts.at);
    return made;
}

/* For tests: with vectors of this many bytes, or the largest there are if these are too large; their size. */
static PyObject *call_use_width(PyObject *Py_UNUSED(module), PyObject *given)
{
    const long wanted = PyLong_AsLong(given);
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    width = widest();
    if (wanted < width)
        width = 16;
    return PyLong_FromLong(width);
}

static int prepare(PyObject *Py_UNUSED(module))
{
    width = widest();
    return 0;
}

static PyMethodDef functions[] = {
    {"cut", (PyCFunction)(void (*)(void))call_cut, METH_FASTCALL, NULL},
    {"use_width", call_use_width, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "outline", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_outline(void)
{
    return PyModuleDef_Init(&module);
}
