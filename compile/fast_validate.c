/* routecodex.protocols.chat.fast_validate in C. The contract is in protocols/chat/fast_validate.py; the tests compare
   this file with tests/reference/fast_validate.py.

   The reference accepts every valid request; this file returns None for what is rare as well. Strings were validated
   when the outline was made, and are only skipped here. */

#include "reader.h"

#define REMEMBERED 64

/* Ring buffer of the latest call ids. */
typedef struct {
    Bytes ids[REMEMBERED];
    Py_ssize_t count;
} Called;

enum { NAME = 1, GIVEN = 2 };

/* Reads a function with arguments, or a custom tool with input, as strings. */
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

/* Whether the id is among the last ones, of this many. */
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

/* The calls of one message: each must be complete and have a unique id. */
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

/* Reads a part with a text or an image; its other fields must be unknown. */
static bool read_part(Rest *rest, Bytes Py_UNUSED(key), void *Py_UNUSED(into))
{
    Part part = {0, {NULL, 0}};
    if (!TAKE_OBJECT(rest, read_part_field, &part))
        return false;
    return IS(part.type, "text") ? (part.seen & PART_TEXT) != 0
                                 : IS(part.type, "image_url") && (part.seen & PART_IMAGE) != 0;
}

/* Reads a content or null; sets `is_there`. */
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

enum { TOOL_TYPE = 1, TOOL_FUNCTION = 2 };

typedef struct {
    unsigned seen;
    Bytes type;
} Tool;

enum { TITLE = 1, DESCRIPTION = 2, PARAMETERS = 4, STRICT = 8 };

static bool read_function_field(Rest *rest, Bytes key, void *into)
{
    unsigned *const seen = into;
    Bytes name;
    if (IS(key, "name"))
        return is_first(seen, TITLE) && take_plain(rest, &name) && name.size > 0;
    if (IS(key, "description"))
        return is_first(seen, DESCRIPTION) && pass_text_or_null(rest);
    if (IS(key, "parameters"))
        return is_first(seen, PARAMETERS) && (is_next(rest, '{') || is_next(rest, 'n')) && pass_value(rest);
    if (IS(key, "strict"))
        return is_first(seen, STRICT) && (take_word(rest, "true") || take_word(rest, "false") || take_word(rest, "null"));
    return pass_value(rest);
}

static bool read_tool_field(Rest *rest, Bytes key, void *into)
{
    Tool *const tool = into;
    unsigned seen = 0;
    if (IS(key, "type"))
        return is_first(&tool->seen, TOOL_TYPE) && take_plain(rest, &tool->type);
    if (IS(key, "function"))
        return is_first(&tool->seen, TOOL_FUNCTION) && TAKE_OBJECT(rest, read_function_field, &seen) &&
               (seen & TITLE) != 0;
    return !IS(key, "custom") && pass_value(rest);
}

/* Reads a function tool of the client; Mistral's SDK leaves out its type. */
static bool read_tool(Rest *rest, Bytes Py_UNUSED(key), void *Py_UNUSED(into))
{
    Tool tool = {0, {NULL, 0}};
    return TAKE_OBJECT(rest, read_tool_field, &tool) && (tool.seen & TOOL_FUNCTION) != 0 &&
           ((tool.seen & TOOL_TYPE) == 0 || IS(tool.type, "function"));
}

/* Offsets of messages and tools of a request, and the number of messages, unless one of them is rare. */
typedef struct {
    Bytes messages, tools;
    Py_ssize_t count;
    bool has_tools;
} Found;

static bool find_messages(Rest *rest, Found *found)
{
    const unsigned char *const start = rest->at;
    Messages messages;
    messages.called.count = messages.count = 0;
    if (found->count != 0 || !TAKE_LIST(rest, read_message, &messages))
        return false;
    found->messages = (Bytes){start, rest->at - start};
    found->count = messages.count;
    return messages.count > 0;
}

static bool find_tools(Rest *rest, Found *found)
{
    Rest tools = *rest;
    if (found->has_tools)
        return false;
    found->has_tools = true;
    if (!TAKE_LIST(&tools, read_tool, NULL))
        return pass_value(rest);
    found->tools = (Bytes){rest->at, tools.at - rest->at};
    rest->at = tools.at;
    return true;
}

static bool read_request_field(Rest *rest, Bytes key, void *into)
{
    if (IS(key, "messages"))
        return find_messages(rest, into);
    return IS(key, "tools") ? find_tools(rest, into) : pass_value(rest);
}

static char *put(char *to, const unsigned char *from, const unsigned char *end)
{
    memcpy(to, from, (size_t)(end - from));
    return to + (end - from);
}

/* Returns the outline with empty lists in place of messages and tools. */
static PyObject *without(Bytes outline, const Found *found)
{
    const bool in_order = found->tools.size == 0 || found->messages.at < found->tools.at;
    const Bytes first = in_order ? found->messages : found->tools, second = in_order ? found->tools : found->messages;
    const Py_ssize_t kept = outline.size - first.size - second.size;
    PyObject *const made = PyBytes_FromStringAndSize(NULL, kept + 2 + (second.size > 0 ? 2 : 0));
    if (made == NULL)
        return NULL;
    const unsigned char *from = first.at + first.size;
    char *to = put(PyBytes_AS_STRING(made), outline.at, first.at);
    memcpy(to, "[]", 2);
    to += 2;
    if (second.size > 0) {
        to = put(to, from, second.at);
        memcpy(to, "[]", 2);
        to += 2;
        from = second.at + second.size;
    }
    put(to, from, outline.at + outline.size);
    return made;
}

static PyObject *call_fast_validate(PyObject *Py_UNUSED(module), PyObject *given)
{
    if (!PyBytes_CheckExact(given))
        return PyErr_Format(PyExc_TypeError, "bytes expected, not %.100s", Py_TYPE(given)->tp_name);
    const Bytes outline = {(const unsigned char *)PyBytes_AS_STRING(given), PyBytes_GET_SIZE(given)};
    Rest rest = {outline.at, outline.at + outline.size};
    Found found = {.count = 0, .tools = {outline.at, 0}};
    const bool is_read = TAKE_OBJECT(&rest, read_request_field, &found);
    pass_blanks(&rest);
    if (!is_read || rest.at != rest.end || found.count == 0)
        Py_RETURN_NONE;
    PyObject *const skeleton = without(outline, &found);
    if (skeleton == NULL)
        return NULL;
    const Bytes messages = found.messages, tools = found.tools;
    return Py_BuildValue("(Ny#ny#)", skeleton, messages.at, messages.size, found.count, tools.at, tools.size);
}

static PyMethodDef functions[] = {
    {"fast_validate", call_fast_validate, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "fast_validate", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit_fast_validate(void)
{
    return PyModuleDef_Init(&module);
}
