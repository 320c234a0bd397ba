/* routecodex.protocols.chat.skim as machine code. What `skim` promises is said, and done, by its twin in skim.py.

   That one takes whatever is right; this one leaves out what is rare as well. Strings were checked before, when the
   outline was made: here they are only gone past. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef struct {
    const unsigned char *at;
    Py_ssize_t size;
} Bytes;

/* What has not been read yet. */
typedef struct {
    const unsigned char *at, *end;
} Rest;

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#define DEEPEST 64
#define REMEMBERED 64
#define DIGITS 15

/* The ids of calls that came last, one after the other in a circle. */
typedef struct {
    Bytes ids[REMEMBERED];
    Py_ssize_t count;
} Called;

#define IS(bytes, word) ((bytes).size == sizeof word - 1 && memcmp((bytes).at, word, sizeof word - 1) == 0)

INLINE bool is_next(const Rest *rest, unsigned char sign)
{
    return rest->at < rest->end && *rest->at == sign;
}

INLINE bool take(Rest *rest, unsigned char sign)
{
    const bool is = is_next(rest, sign);
    rest->at += is;
    return is;
}

INLINE void pass_blanks(Rest *rest)
{
    while (rest->at < rest->end && *rest->at <= ' ' && memchr(" \n\r\t", *rest->at, 4) != NULL)
        rest->at++;
}

/* Takes a sign with the blanks around it. */
INLINE bool take_sign(Rest *rest, unsigned char sign)
{
    pass_blanks(rest);
    if (!take(rest, sign))
        return false;
    pass_blanks(rest);
    return true;
}

static bool take_word(Rest *rest, const char *word)
{
    const size_t size = strlen(word);
    if ((size_t)(rest->end - rest->at) < size || memcmp(rest->at, word, size) != 0)
        return false;
    rest->at += size;
    return true;
}

/* Where the first quote or backslash from there on stands; the end if there is none. */
INLINE const unsigned char *next_sign(const unsigned char *at, const unsigned char *end)
{
#ifdef __SSE2__
    for (; end - at >= 16; at += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        const __m128i quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
        const __m128i backslashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
        const int found = _mm_movemask_epi8(_mm_or_si128(quotes, backslashes));
        if (found != 0)
            return at + __builtin_ctz((unsigned)found);
    }
#endif
    while (at < end && *at != '"' && *at != '\\')
        at++;
    return at;
}

/* Takes a string. What is inside is as it is written: with a backslash in it that is not what it says. */
INLINE bool take_string(Rest *rest, Bytes *inside, bool *is_plain)
{
    if (!take(rest, '"'))
        return false;
    inside->at = rest->at;
    *is_plain = true;
    const unsigned char *at = next_sign(rest->at, rest->end);
    while (at < rest->end && *at == '\\') {
        *is_plain = false;
        if (rest->end - at < 2)
            return false;
        at = next_sign(at + 2, rest->end);
    }
    inside->size = at - inside->at;
    rest->at = at + 1;
    return at < rest->end;
}

/* Takes a string that is written as it reads. */
INLINE bool take_plain(Rest *rest, Bytes *inside)
{
    bool is_plain;
    return take_string(rest, inside, &is_plain) && is_plain;
}

static bool pass_string(Rest *rest)
{
    Bytes inside;
    bool is_plain;
    return take_string(rest, &inside, &is_plain);
}

static Py_ssize_t pass_digits(Rest *rest)
{
    const unsigned char *const start = rest->at;
    while (rest->at < rest->end && *rest->at >= '0' && *rest->at <= '9')
        rest->at++;
    return rest->at - start;
}

/* Numbers of which nobody could think that they are too large, or too long. */
static bool pass_number(Rest *rest)
{
    take(rest, '-');
    const bool is_zero = is_next(rest, '0');
    Py_ssize_t digits = pass_digits(rest);
    if (digits == 0 || (is_zero && digits > 1))
        return false;
    if (take(rest, '.')) {
        const Py_ssize_t behind = pass_digits(rest);
        if (behind == 0)
            return false;
        digits += behind;
    }
    return digits <= DIGITS && !is_next(rest, 'e') && !is_next(rest, 'E');
}

/* Reads one member of an object behind its key, or one value of a list, which has none; false if it is rare or wrong. */
typedef bool Reader(Rest *rest, Bytes key, void *into);

/* Reads all that stands between brackets. */
INLINE bool take_all(Rest *rest, const char *brackets, Reader *read, void *into)
{
    Bytes key = {NULL, 0};
    if (!take_sign(rest, (unsigned char)brackets[0]))
        return false;
    if (take(rest, (unsigned char)brackets[1]))
        return true;
    do {
        if (brackets[0] == '{' && !(take_plain(rest, &key) && take_sign(rest, ':')))
            return false;
        if (!read(rest, key, into))
            return false;
    } while (take_sign(rest, ','));
    return take(rest, (unsigned char)brackets[1]);
}

#define TAKE_OBJECT(rest, read, into) take_all(rest, "{}", read, into)
#define TAKE_LIST(rest, read, into) take_all(rest, "[]", read, into)

/* Goes past any value; `into` is how deep it lies. */
static bool pass_any(Rest *rest, Bytes Py_UNUSED(key), void *into)
{
    int depth = *(int *)into + 1;
    if (rest->at == rest->end || depth > DEEPEST)
        return false;
    switch (*rest->at) {
    case '"':
        return pass_string(rest);
    case '{':
        return TAKE_OBJECT(rest, pass_any, &depth);
    case '[':
        return TAKE_LIST(rest, pass_any, &depth);
    case 'n':
        return take_word(rest, "null");
    case 't':
        return take_word(rest, "true");
    case 'f':
        return take_word(rest, "false");
    default:
        return pass_number(rest);
    }
}

static bool pass_value(Rest *rest)
{
    int depth = 0;
    return pass_any(rest, (Bytes){NULL, 0}, &depth);
}

static bool pass_text_or_null(Rest *rest)
{
    return is_next(rest, 'n') ? take_word(rest, "null") : pass_string(rest);
}

/* Notes that a field has come; false if it came before. */
INLINE bool is_first(unsigned *seen, unsigned field)
{
    const bool is = (*seen & field) == 0;
    *seen |= field;
    return is;
}

enum { NAME = 1, GIVEN = 2 };

/* A function with its arguments, or a custom tool with its input, as texts. */
static bool read_called(Rest *rest, Bytes key, void *into)
{
    unsigned *const seen = into;
    if (IS(key, "name"))
        return is_first(seen, NAME) && pass_string(rest);
    if (IS(key, "arguments") || IS(key, "input"))
        return is_first(seen, GIVEN) && pass_string(rest);
    return pass_value(rest);
}

static bool take_called(Rest *rest)
{
    unsigned seen = 0;
    return TAKE_OBJECT(rest, read_called, &seen) && (seen & NAME) != 0;
}

/* Whether the id is among those that came last, of this many of them. */
static bool is_among(const Called *called, Bytes id, Py_ssize_t last)
{
    for (Py_ssize_t i = 1; i <= last; i++) {
        const Bytes *const known = &called->ids[(called->count - i) % REMEMBERED];
        if (known->size == id.size && memcmp(known->at, id.at, (size_t)id.size) == 0)
            return true;
    }
    return false;
}

enum { CALL_ID = 1, CALL_TYPE = 2, CALL_FUNCTION = 4, CALL_CUSTOM = 8 };

typedef struct {
    unsigned seen;
    Bytes id;
} Call;

static bool read_call_field(Rest *rest, Bytes key, void *into)
{
    Call *const call = into;
    if (IS(key, "id"))
        return is_first(&call->seen, CALL_ID) && take_plain(rest, &call->id);
    if (IS(key, "type"))
        return is_first(&call->seen, CALL_TYPE) && pass_string(rest);
    if (IS(key, "function"))
        return is_first(&call->seen, CALL_FUNCTION) && take_called(rest);
    if (IS(key, "custom"))
        return is_first(&call->seen, CALL_CUSTOM) && take_called(rest);
    return pass_value(rest);
}

/* The calls of one message, as they come: each must be whole, and have an id of its own. */
typedef struct {
    Called *called;
    Py_ssize_t count;
} Calls;

static bool read_call(Rest *rest, Bytes Py_UNUSED(key), void *into)
{
    Calls *const calls = into;
    Call call = {0, {NULL, 0}};
    if (calls->count == REMEMBERED || !TAKE_OBJECT(rest, read_call_field, &call))
        return false;
    if (call.id.size == 0 || (call.seen & (CALL_FUNCTION | CALL_CUSTOM)) == 0)
        return false;
    if (is_among(calls->called, call.id, calls->count++))
        return false;
    calls->called->ids[calls->called->count++ % REMEMBERED] = call.id;
    return true;
}

enum { URL = 1, DETAIL = 2 };

static bool read_image_field(Rest *rest, Bytes key, void *into)
{
    unsigned *const seen = into;
    Bytes url;
    if (IS(key, "url"))
        return is_first(seen, URL) && take_plain(rest, &url) && url.size > 0;
    if (IS(key, "detail"))
        return is_first(seen, DETAIL) && pass_text_or_null(rest);
    return pass_value(rest);
}

static bool take_image(Rest *rest)
{
    unsigned seen = 0;
    return TAKE_OBJECT(rest, read_image_field, &seen) && (seen & URL) != 0;
}

enum { PART_TYPE = 1, PART_TEXT = 2, PART_IMAGE = 4 };

typedef struct {
    unsigned seen;
    Bytes type;
} Part;

static bool read_part_field(Rest *rest, Bytes key, void *into)
{
    Part *const part = into;
    if (IS(key, "type"))
        return is_first(&part->seen, PART_TYPE) && take_plain(rest, &part->type);
    if (IS(key, "text"))
        return is_first(&part->seen, PART_TEXT) && pass_string(rest);
    if (IS(key, "image_url"))
        return is_first(&part->seen, PART_IMAGE) && take_image(rest);
    if (IS(key, "refusal") || IS(key, "video_url") || IS(key, "input_audio") || IS(key, "file"))
        return false;
    return pass_value(rest);
}

/* A part with a text, or with an image; whatever else it has must be unknown. */
static bool read_part(Rest *rest, Bytes Py_UNUSED(key), void *Py_UNUSED(into))
{
    Part part = {0, {NULL, 0}};
    if (!TAKE_OBJECT(rest, read_part_field, &part))
        return false;
    return IS(part.type, "text") ? (part.seen & PART_TEXT) != 0
                                 : IS(part.type, "image_url") && (part.seen & PART_IMAGE) != 0;
}

/* A content that is there, or null; `is_there` is set to which. */
static bool take_content(Rest *rest, bool *is_there)
{
    *is_there = !is_next(rest, 'n');
    if (!*is_there)
        return take_word(rest, "null");
    return is_next(rest, '[') ? TAKE_LIST(rest, read_part, NULL) : pass_string(rest);
}

typedef enum { NOBODY, PERSON, ASSISTANT, FUNCTION, TOOL } Role;

static bool take_role(Rest *rest, Role *role)
{
    Bytes name;
    if (!take_plain(rest, &name))
        return false;
    if (IS(name, "tool"))
        *role = TOOL;
    else if (IS(name, "assistant"))
        *role = ASSISTANT;
    else if (IS(name, "user") || IS(name, "system") || IS(name, "developer"))
        *role = PERSON;
    else if (IS(name, "function"))
        *role = FUNCTION;
    return *role != NOBODY;
}

enum { ROLE = 1, CONTENT = 2, CALLS = 4, RESULT_OF = 8, SPEAKER = 16, REFUSAL = 32, REASONING = 64 };

typedef struct {
    Called *called;
    unsigned seen;
    Role role;
    bool has_content, has_calls;
    Bytes result_of;
} Message;

static bool read_message_field(Rest *rest, Bytes key, void *into)
{
    Message *const message = into;
    Calls calls = {message->called, 0};
    if (IS(key, "role"))
        return is_first(&message->seen, ROLE) && take_role(rest, &message->role);
    if (IS(key, "content"))
        return is_first(&message->seen, CONTENT) && take_content(rest, &message->has_content);
    if (IS(key, "tool_call_id"))
        return is_first(&message->seen, RESULT_OF) && take_plain(rest, &message->result_of);
    if (IS(key, "tool_calls")) {
        message->has_calls = !is_next(rest, 'n');
        return is_first(&message->seen, CALLS) &&
               (message->has_calls ? TAKE_LIST(rest, read_call, &calls) : take_word(rest, "null"));
    }
    if (IS(key, "name"))
        return is_first(&message->seen, SPEAKER) && pass_text_or_null(rest);
    if (IS(key, "refusal"))
        return is_first(&message->seen, REFUSAL) && pass_text_or_null(rest);
    if (IS(key, "reasoning_content"))
        return is_first(&message->seen, REASONING) && pass_text_or_null(rest);
    return !IS(key, "function_call") && pass_value(rest);
}

static bool is_result(const Message *message)
{
    const Called *const called = message->called;
    const Py_ssize_t last = called->count < REMEMBERED ? called->count : REMEMBERED;
    return message->has_content && message->result_of.size > 0 && is_among(called, message->result_of, last);
}

typedef struct {
    Called called;
    Py_ssize_t count;
} Messages;

static bool read_message(Rest *rest, Bytes Py_UNUSED(key), void *into)
{
    Messages *const messages = into;
    Message message = {.called = &messages->called, .role = NOBODY};
    if (!TAKE_OBJECT(rest, read_message_field, &message) || (message.has_calls && message.role != ASSISTANT))
        return false;
    messages->count++;
    switch (message.role) {
    case ASSISTANT:
    case FUNCTION:
        return true;
    case PERSON:
        return message.has_content;
    case TOOL:
        return is_result(&message);
    case NOBODY:
        break;
    }
    return false;
}

/* Where the messages of a request stand, and how many there are. */
typedef struct {
    Bytes at;
    Py_ssize_t count;
} Found;

static bool read_request_field(Rest *rest, Bytes key, void *into)
{
    Found *const found = into;
    if (!IS(key, "messages"))
        return pass_value(rest);
    const unsigned char *const start = rest->at;
    Messages messages;
    messages.called.count = messages.count = 0;
    if (found->count != 0 || !TAKE_LIST(rest, read_message, &messages))
        return false;
    *found = (Found){{start, rest->at - start}, messages.count};
    return messages.count > 0;
}

static PyObject *without(Bytes outline, Bytes messages)
{
    const Py_ssize_t before = messages.at - outline.at, behind = outline.size - before - messages.size;
    PyObject *const made = PyBytes_FromStringAndSize(NULL, before + 2 + behind);
    if (made == NULL)
        return NULL;
    char *const to = PyBytes_AS_STRING(made);
    memcpy(to, outline.at, (size_t)before);
    memcpy(to + before, "[]", 2);
    memcpy(to + before + 2, messages.at + messages.size, (size_t)behind);
    return made;
}

static PyObject *call_skim(PyObject *Py_UNUSED(module), PyObject *given)
{
    if (!PyBytes_CheckExact(given))
        return PyErr_Format(PyExc_TypeError, "bytes expected, not %.100s", Py_TYPE(given)->tp_name);
    const Bytes outline = {(const unsigned char *)PyBytes_AS_STRING(given), PyBytes_GET_SIZE(given)};
    Rest rest = {outline.at, outline.at + outline.size};
    Found found = {{NULL, 0}, 0};
    const bool is_read = TAKE_OBJECT(&rest, read_request_field, &found);
    pass_blanks(&rest);
    if (!is_read || rest.at != rest.end || found.count == 0)
        Py_RETURN_NONE;
    PyObject *const skeleton = without(outline, found.at);
    if (skeleton == NULL)
        return NULL;
    return Py_BuildValue("(Ny#n)", skeleton, (const char *)found.at.at, found.at.size, found.count);
}

static PyMethodDef functions[] = {
    {"skim", call_skim, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "skim", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_skim(void)
{
    return PyModuleDef_Init(&module);
}
