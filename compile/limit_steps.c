/* routecodex.accounting.limit_steps in C. The contract is in accounting/limit_steps.py; the tests compare this
   file with tests/reference/limit_steps.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The header and the rows of a counter file (accounting/counter_file.py). */
enum { ROWS_USED = 3, LAST_STEP = 6, ROWS_AT = 64, ROW_SIZE = 3, ROW_GENERATION = 1, ROWS = 128 };
/* A slot (accounting/shared_counters.py): digest, length, the cells of a window, what each row holds. */
enum { DIGEST = 0, WINDOW = 2, RING_SIZE = 61, WINDOW_SIZE = 7 + RING_SIZE, HELD = WINDOW + WINDOW_SIZE };
enum { SLOT_SIZE = HELD + ROWS };
/* A window (accounting/windows.py). */
enum { CLOCK = WINDOW, POSITION, END, USED, OLDEST, WARNED, EXCEEDED, RING };

enum { CALENDAR, ROLLING, PRESENT };
enum { REQUESTS, CONCURRENT, TOKENS, INPUT, OUTPUT, UNCACHED, USD, UNITS };

#define MICROS INT64_C(1000000)
#define NANOS INT64_C(1000000000)
#define JITTER (2 * MICROS)
#define MOST_USED (INT64_C(1) << 61)
#define MOST_LIMITS 32
#define BUCKETS 60

/* One limit, as `limit_steps.pack` writes it. */
typedef struct {
    int64_t at, digest, max, warn_above, micros, window, unit, enforced;
} Limit;

/* Limits of one step, in a file that is mapped and locked. */
typedef struct {
    Py_buffer map, packed;
    volatile int64_t *cells;
    int64_t cell_count;
    const Limit *limits;
    Py_ssize_t count;
} Step;

static void leave(Step *step)
{
    PyBuffer_Release(&step->map);
    PyBuffer_Release(&step->packed);
}

static bool is_inside(const Step *step, const Limit *limit)
{
    return limit->at >= 0 && limit->at <= step->cell_count - SLOT_SIZE;
}

/* Read the arguments that all functions have in common; raise what is wrong with them. */
static bool enter(Step *step, PyObject *cells, PyObject *packed, int writable)
{
    if (PyObject_GetBuffer(cells, &step->map, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return false;
    if (PyObject_GetBuffer(packed, &step->packed, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&step->map);
        return false;
    }
    step->cells = step->map.buf;
    step->cell_count = step->map.len / (Py_ssize_t)sizeof(int64_t);
    step->limits = step->packed.buf;
    step->count = step->packed.len / (Py_ssize_t)sizeof(Limit);
    bool fits = step->count <= MOST_LIMITS && step->packed.len % (Py_ssize_t)sizeof(Limit) == 0 &&
                step->cell_count >= ROWS_AT + ROWS * ROW_SIZE;
    for (Py_ssize_t i = 0; fits && i < step->count; i++)
        fits = is_inside(step, &step->limits[i]) && (uint64_t)step->limits[i].unit < UNITS;
    if (!fits) {
        leave(step);
        PyErr_SetString(PyExc_ValueError, "the limits do not fit to the cells");
    }
    return fits;
}

static volatile int64_t *slot_of(const Step *step, Py_ssize_t i)
{
    return step->cells + step->limits[i].at;
}

/* Read integers; one that has more than 64 bits becomes the largest, which no step takes. */
static bool read_numbers(PyObject *const *given, int64_t *numbers, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        int overflow;
        numbers[i] = PyLong_AsLongLongAndOverflow(given[i], &overflow);
        if (overflow)
            numbers[i] = INT64_MAX;
        else if (numbers[i] == -1 && PyErr_Occurred())
            return false;
    }
    return true;
}

static bool has_row(const Step *step, int64_t row, int64_t generation)
{
    return row >= 0 && row < ROWS && step->cells[ROWS_AT + row * ROW_SIZE + ROW_GENERATION] == generation;
}

/* Whether a slot is still that of its limit, and its window need not be moved to this time. */
static bool is_current(const Step *step, Py_ssize_t i, int64_t now)
{
    volatile int64_t *slot = slot_of(step, i);
    int64_t clock = slot[CLOCK];
    if (slot[DIGEST] != step->limits[i].digest || slot[USED] < 0)
        return false;
    return now < clock ? clock - now <= JITTER : now - clock < MICROS && now < slot[END];
}

static __int128 held_by_rows(const Step *step, volatile int64_t *slot)
{
    int64_t rows = step->cells[ROWS_USED];
    __int128 held = 0;
    for (int64_t row = 0; row < rows && row < ROWS; row++)
        held += slot[HELD + row];
    return held;
}

static int64_t at_least_0(int64_t number)
{
    return number > 0 ? number : 0;
}

/* The amount of a unit in an answer, apart from the request itself. */
static int64_t amount_of(int64_t unit, int64_t input, int64_t output, int64_t cache_read, int64_t nanos)
{
    switch (unit) {
    case USD:
        return nanos;
    case INPUT:
        return at_least_0(input);
    case OUTPUT:
        return at_least_0(output);
    case TOKENS:
        return at_least_0(input) + at_least_0(output);
    case UNCACHED:
        return at_least_0(input - cache_read) + at_least_0(output);
    default:
        return 0;
    }
}

static bool is_absurd(const int64_t *numbers, int count)
{
    for (int i = 0; i < count; i++)
        if (numbers[i] > MOST_USED / 4 || numbers[i] < -MOST_USED / 4)
            return true;
    return false;
}

static PyObject *reserve(Step *step, const int64_t *given)
{
    int64_t row = given[0], generation = given[1], now = given[2], amounts[MOST_LIMITS];
    if (!has_row(step, row, generation) || is_absurd(given + 3, 3))
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < step->count; i++) {
        const Limit *limit = &step->limits[i];
        if (!is_current(step, i, now))
            Py_RETURN_NONE;
        bool is_request = limit->unit == REQUESTS || limit->unit == CONCURRENT;
        amounts[i] = is_request ? given[6] != 0 : amount_of(limit->unit, given[3], given[4], 0, given[5]);
        volatile int64_t *slot = slot_of(step, i);
        if (limit->enforced && slot[USED] + held_by_rows(step, slot) + amounts[i] > limit->max)
            Py_RETURN_NONE;
    }
    PyObject *reserved = PyList_New(step->count);
    for (Py_ssize_t i = 0; reserved != NULL && i < step->count; i++) {
        PyObject *amount = PyLong_FromLongLong(amounts[i]);
        if (amount == NULL)
            Py_CLEAR(reserved);
        else
            PyList_SET_ITEM(reserved, i, amount);
    }
    if (reserved == NULL)
        return NULL;
    step->cells[LAST_STEP] = 0;
    for (Py_ssize_t i = 0; i < step->count; i++)
        slot_of(step, i)[HELD + row] += amounts[i];
    return reserved;
}

/* Whether use up to `used` must be reported now. */
static bool is_reported(const Limit *limit, volatile int64_t *slot, int64_t used, int64_t now)
{
    if (used < limit->warn_above)
        return false;
    return now >= slot[WARNED] || (!limit->enforced && used >= limit->max && now >= slot[EXCEEDED]);
}

static void use(const Limit *limit, volatile int64_t *slot, int64_t amount)
{
    if (limit->window == PRESENT)
        return;
    int64_t used = slot[USED], room = MOST_USED - used;
    amount = amount < room ? amount : room;
    if (limit->window == ROLLING) {
        int64_t bucket = slot[POSITION];
        slot[RING + bucket % RING_SIZE] += amount;
        slot[USED] = used + amount;
        if (!slot[OLDEST])
            slot[OLDEST] = bucket;
    }
    else
        slot[USED] = used + amount;
}

static PyObject *settle(Step *step, const int64_t *given, PyObject *reserved)
{
    int64_t row = given[0], generation = given[1], now = given[2];
    int64_t held[MOST_LIMITS], used[MOST_LIMITS];
    if (PyList_GET_SIZE(reserved) != step->count || !has_row(step, row, generation) || is_absurd(given + 3, 4))
        Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < step->count; i++) {
        const Limit *limit = &step->limits[i];
        volatile int64_t *slot = slot_of(step, i);
        held[i] = PyLong_AsLongLong(PyList_GET_ITEM(reserved, i));
        if (held[i] == -1 && PyErr_Occurred())
            return NULL;
        used[i] = limit->unit == REQUESTS ? held[i]
                                          : amount_of(limit->unit, given[3], given[4], given[5], given[6]);
        bool is_position_sane = limit->window != ROLLING || slot[POSITION] >= 0;
        if (!is_current(step, i, now) || !is_position_sane ||
            (used[i] && is_reported(limit, slot, slot[USED] + used[i], now)))
            Py_RETURN_FALSE;
    }
    PyObject *nothing = PyLong_FromLong(0);
    step->cells[LAST_STEP] = 0;
    for (Py_ssize_t i = 0; i < step->count; i++) {
        volatile int64_t *slot = slot_of(step, i);
        slot[HELD + row] -= held[i];
        if (used[i])
            use(&step->limits[i], slot, used[i]);
        PyList_SetItem(reserved, i, Py_NewRef(nothing));
    }
    Py_DECREF(nothing);
    Py_RETURN_TRUE;
}

/* Text that is written from left to right into a buffer that is large enough. */
static char *put(char *to, const char *text, Py_ssize_t size)
{
    memcpy(to, text, (size_t)size);
    return to + size;
}

static char *put_digits(char *to, int64_t number, int digits)
{
    for (int i = digits - 1; i >= 0; i--, number /= 10)
        to[i] = (char)('0' + number % 10);
    return to + digits;
}

static char *put_number(char *to, int64_t number)
{
    int digits = 1;
    for (int64_t rest = number; rest >= 10; rest /= 10)
        digits++;
    return put_digits(to, number, digits);
}

/* USD without exponent and without trailing zeros. */
static char *put_usd(char *to, int64_t nanos)
{
    to = put_number(to, nanos / NANOS);
    int64_t rest = nanos % NANOS;
    int digits = 9;
    if (!rest)
        return to;
    for (; rest % 10 == 0; rest /= 10)
        digits--;
    *to++ = '.';
    return put_digits(to, rest, digits);
}

/* ISO 8601 in UTC; the days of a date by the rule of the proleptic Gregorian calendar. */
static char *put_time(char *to, int64_t seconds)
{
    int64_t days = seconds / 86400, rest = seconds % 86400, shifted = days + 719468;
    int64_t era = shifted / 146097, of_era = shifted % 146097;
    int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t from_march = (5 * of_year + 2) / 153, day = of_year - (153 * from_march + 2) / 5 + 1;
    int64_t month = from_march < 10 ? from_march + 3 : from_march - 9;
    int64_t year = year_of_era + era * 400 + (month <= 2);
    to = put_digits(to, year, 4);
    *to++ = '-';
    to = put_digits(to, month, 2);
    *to++ = '-';
    to = put_digits(to, day, 2);
    *to++ = 'T';
    to = put_digits(to, rest / 3600, 2);
    *to++ = ':';
    to = put_digits(to, rest / 60 % 60, 2);
    *to++ = ':';
    to = put_digits(to, rest % 60, 2);
    *to++ = 'Z';
    return to;
}

static int64_t up(int64_t number, int64_t by)
{
    return number / by + (number % by > 0);
}

/* A duration as Go writes it, rounded up. */
static char *put_duration(char *to, int64_t micros)
{
    if (micros <= 0)
        return put(to, "0s", 2);
    int64_t millis = up(micros, 1000);
    if (millis < 1000)
        return put(put_number(to, millis), "ms", 2);
    int64_t seconds = up(millis, 1000), minutes = seconds / 60;
    if (minutes >= 60) {
        to = put_number(to, minutes / 60);
        *to++ = 'h';
    }
    if (minutes) {
        to = put_number(to, minutes % 60);
        *to++ = 'm';
    }
    to = put_number(to, seconds % 60);
    *to++ = 's';
    return to;
}

#define MOST_TEXT 512
#define MOST_NUMBERS 128

/* What is left of one limit. */
typedef struct {
    const Limit *limit;
    PyObject *texts;
    int64_t used, left, resets_at;
} Figures;

/* Read the figures of a limit; false if they need more than reading. */
static bool read_figures(const Step *step, Py_ssize_t i, int64_t now, Figures *figures)
{
    const Limit *limit = &step->limits[i];
    volatile int64_t *slot = slot_of(step, i);
    int64_t used = slot[USED], oldest = slot[OLDEST];
    __int128 left = (__int128)limit->max - used - held_by_rows(step, slot);
    if (slot[DIGEST] != limit->digest || used < 0 || used >= limit->warn_above || left > MOST_USED)
        return false;
    figures->limit = limit;
    figures->used = used;
    figures->left = left > 0 ? (int64_t)left : 0;
    figures->resets_at = limit->window == PRESENT ? now : slot[END];
    if (limit->window == ROLLING) {
        __int128 starts = (__int128)(oldest + RING_SIZE) * limit->micros;
        figures->resets_at = oldest ? (int64_t)((starts + BUCKETS - 1) / BUCKETS) : now + limit->micros;
    }
    return figures->resets_at >= 0 && figures->resets_at < 250000000000 * MICROS;
}

static bool is_tighter(const Figures *one, const Figures *other)
{
    return (__int128)one->left * other->limit->max < (__int128)other->left * one->limit->max;
}

/* Write the lines of one limit from its texts: None if the protocol has no header for it. */
static char *put_lines(char *to, const Figures *figures, int64_t now, bool is_messages)
{
    PyObject *first = PyTuple_GET_ITEM(figures->texts, 0);
    to = put(to, PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first));
    if (figures->limit->unit == USD) {
        to = put(put_usd(to, figures->used), "; remaining=", 12);
        to = put(put_usd(to, figures->left), "; resets=", 9);
        to = put_time(to, figures->resets_at / MICROS);
    }
    else {
        PyObject *second = PyTuple_GET_ITEM(figures->texts, 1);
        to = put_number(to, figures->left);
        to = put(to, PyBytes_AS_STRING(second), PyBytes_GET_SIZE(second));
        to = is_messages ? put_time(to, up(figures->resets_at, MICROS))
                         : put_duration(to, figures->resets_at - now);
    }
    return put(to, "\r\n", 2);
}

/* The size of the texts of a limit, or -1. */
static Py_ssize_t size_of(PyObject *texts)
{
    if (!PyTuple_Check(texts) || PyTuple_GET_SIZE(texts) != 2)
        return -1;
    PyObject *first = PyTuple_GET_ITEM(texts, 0), *second = PyTuple_GET_ITEM(texts, 1);
    if (!PyBytes_Check(first) || !PyBytes_Check(second))
        return -1;
    return PyBytes_GET_SIZE(first) + PyBytes_GET_SIZE(second);
}

static PyObject *header_lines(Step *step, PyObject *texts, int64_t now, bool is_messages)
{
    Figures shown[UNITS];
    int count = 0;
    for (Py_ssize_t i = 0; i < step->count; i++) {
        Figures figures = {.texts = PyTuple_GET_ITEM(texts, i)};
        if (!read_figures(step, i, now, &figures))
            Py_RETURN_NONE;
        if (!figures.limit->enforced)
            continue;
        int at = 0;
        while (at < count && shown[at].limit->unit != figures.limit->unit)
            at++;
        if (at == count)
            shown[count++] = figures;
        else if (is_tighter(&figures, &shown[at]))
            shown[at] = figures;
    }
    char lines[UNITS * (MOST_TEXT + MOST_NUMBERS)], *to = lines;
    for (int i = 0; i < count; i++) {
        if (shown[i].texts == Py_None)
            continue;
        Py_ssize_t size = size_of(shown[i].texts);
        if (size < 0 || size > MOST_TEXT)
            Py_RETURN_NONE;
        to = put_lines(to, &shown[i], now, is_messages);
    }
    return PyBytes_FromStringAndSize(lines, to - lines);
}

static PyObject *call_reserve(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    Step step;
    int64_t numbers[7];
    if (count != 9)
        return PyErr_Format(PyExc_TypeError, "9 arguments expected, not %zd", count);
    if (!read_numbers(given + 2, numbers, 7) || !enter(&step, given[0], given[1], true))
        return NULL;
    PyObject *result = reserve(&step, numbers);
    leave(&step);
    return result;
}

static PyObject *call_settle(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    Step step;
    int64_t numbers[7];
    if (count != 10)
        return PyErr_Format(PyExc_TypeError, "10 arguments expected, not %zd", count);
    if (!PyList_CheckExact(given[2]))
        return PyErr_Format(PyExc_TypeError, "list expected, not %.100s", Py_TYPE(given[2])->tp_name);
    if (!read_numbers(given + 3, numbers, 7) || !enter(&step, given[0], given[1], true))
        return NULL;
    PyObject *result = settle(&step, numbers, given[2]);
    leave(&step);
    return result;
}

static PyObject *call_header_lines(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    Step step;
    int64_t now;
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "5 arguments expected, not %zd", count);
    if (!PyTuple_CheckExact(given[2]))
        return PyErr_Format(PyExc_TypeError, "tuple expected, not %.100s", Py_TYPE(given[2])->tp_name);
    if (!read_numbers(given + 3, &now, 1) || !enter(&step, given[0], given[1], false))
        return NULL;
    PyObject *result = NULL;
    if (PyTuple_GET_SIZE(given[2]) != step.count)
        PyErr_SetString(PyExc_ValueError, "one entry for each limit expected");
    else
        result = header_lines(&step, given[2], now, given[4] == Py_True);
    leave(&step);
    return result;
}

static int prepare(PyObject *module)
{
    return PyModule_AddIntConstant(module, "SLOT_SIZE", SLOT_SIZE);
}

static PyMethodDef functions[] = {
    {"reserve", (PyCFunction)(void (*)(void))call_reserve, METH_FASTCALL, NULL},
    {"settle", (PyCFunction)(void (*)(void))call_settle, METH_FASTCALL, NULL},
    {"header_lines", (PyCFunction)(void (*)(void))call_header_lines, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "limit_steps", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_limit_steps(void)
{
    return PyModuleDef_Init(&module);
}
