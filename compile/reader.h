/* Walks a JSON document whose strings are valid, for fast_validate.c, without decoding it.

   What is taken is looked at; what is passed only has to be right. Nothing is read again, but by a copy of a Rest. */

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

/* The unread rest of the document. */
typedef struct {
    const unsigned char *at, *end;
} Rest;

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#define DEEPEST 64
#define DIGITS 15

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

/* Reads a byte with the white space around it. */
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

/* Returns the first quote or backslash from `at` on; the end if there is none. */
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

/* Reads a string; `inside` is its text as written, so with escapes if it is not plain. */
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

/* Reads a string without escapes. */
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

/* Reads a number that no parser rejects as too large or too long. */
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

/* Reads the value of a member, or an item of a list, which has no key; false if it is rare or wrong. */
typedef bool Reader(Rest *rest, Bytes key, void *into);

/* Reads everything between brackets. */
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

/* Skips any value; `into` is its depth. */
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

/* Records a field; false if it is repeated. */
INLINE bool is_first(unsigned *seen, unsigned field)
{
    const bool is = (*seen & field) == 0;
    *seen |= field;
    return is;
}
