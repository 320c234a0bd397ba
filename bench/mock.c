// A model provider that costs next to nothing: one thread, epoll, every answer built before the first request.
//
// usage: mock EVENTS LIFETIME_SECONDS
//
// Listens on four free loopback ports and prints them as one JSON line:
//   whole  a stream leaves in one write
//   each   one write per event, back to back
//   paced  one event every 10 ms, after the opening events and the first text, which come at once
//   slow   the same with 50 ms (to hold many streams open at once)
// Paths ending in /chat/completions, /messages, /responses, :generateContent and :streamGenerateContent are
// answered in their own protocol; a chat request that ends with CALL_A_TOOL gets a tool call instead of a text. The
// process ends with its parent, or after its lifetime.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum protocol { CHAT, CHAT_WITH_USAGE, CALL, CALL_WITH_USAGE, MESSAGES, RESPONSES, GEMINI, PROTOCOLS };
enum { PORTS = 4, MAX_EVENTS = 1024, WINDOW = 4096 };

struct text {
    char *at;
    size_t length;
};

// An answer is a list of pieces; each piece is handed to the kernel on its own.
struct answer {
    struct text pieces[MAX_EVENTS];
    int count;
    int lead; // pieces up to and with the first one that carries text
};

static struct answer documents[PROTOCOLS]; // not streamed: head and JSON
static struct answer by_event[PROTOCOLS];  // streamed: a piece per event
static struct answer at_once[PROTOCOLS];   // streamed: a single piece
static struct answer not_found;
static int events_per_stream;

struct connection;

struct port {
    const char *name;
    int64_t pace_ns; // 0: no waiting between events
    bool single_piece;
    int listener, timer;
    struct connection *first_due, *last_due; // equal pace: the queue is in order of time by itself
};

static struct port ports[PORTS] = {
    {.name = "whole", .single_piece = true},
    {.name = "each"},
    {.name = "paced", .pace_ns = 10 * 1000 * 1000},
    {.name = "slow", .pace_ns = 50 * 1000 * 1000},
};

enum source { LISTENER, TIMER, CONNECTION };
struct handle {
    enum source source;
    void *subject;
};

struct connection {
    struct handle handle;
    int fd; // -1: dropped, to be freed when the events at hand are done
    struct port *port;
    char *input;
    size_t room, filled;
    size_t head_length, body_length; // of the request being read; head_length 0: head not complete yet
    bool chunked;
    size_t chunk_at; // where the next chunk's size line starts
    const struct answer *answer; // being sent; NULL: none
    int piece, allowed;          // pieces before `allowed` may be sent now
    size_t sent;                 // bytes of `piece` already sent
    bool waiting_for_room;
    int64_t due;
    struct connection *next_due, *previous_due;
    bool queued;
};

static int poller;
static struct connection *dropped; // linked by next_due

static void append(struct text *text, const char *format, ...) {
    va_list arguments;
    char *part;
    va_start(arguments, format);
    int length = vasprintf(&part, format, arguments);
    va_end(arguments);
    text->at = realloc(text->at, text->length + (size_t)length + 1);
    memcpy(text->at + text->length, part, (size_t)length + 1);
    text->length += (size_t)length;
    free(part);
}

static void add_event(struct answer *answer, const char *format, ...) {
    va_list arguments;
    char *event;
    va_start(arguments, format);
    int length = vasprintf(&event, format, arguments);
    va_end(arguments);
    struct text *piece = &answer->pieces[answer->count++];
    append(piece, "%x\r\n%s\r\n", length, event);
    free(event);
}

static const char *word(int index) {
    static const char *const words[] = {"Every", " stream", " has", " a", " first", " word",
                                        " and",  " a",      " last", " one."};
    return words[index % 10];
}

#define CHUNK_HEAD                                                                                            \
    "data: {\"id\":\"chatcmpl-mock0000000000000000000000\",\"object\":\"chat.completion.chunk\","              \
    "\"created\":1760000000,\"model\":\"gpt-mock-2026-01-01\",\"service_tier\":\"default\","                   \
    "\"system_fingerprint\":\"fp_mock\","
#define CHAT_USAGE                                                                                            \
    "\"usage\":{\"prompt_tokens\":128,\"completion_tokens\":48,\"total_tokens\":176,"                          \
    "\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0}}"
#define TEXT "Every document has a first word and a last one. This one is here to be carried, not to be read."

static void build_chat(struct answer *answer, bool usage) {
    int last = events_per_stream - 1;
    add_event(answer, CHUNK_HEAD "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\","
                                 "\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    answer->lead = answer->count + 1;
    for (int i = 1; i < last; i++)
        add_event(answer, CHUNK_HEAD "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
                                     "\"finish_reason\":null}]}\n\n", word(i - 1));
    add_event(answer, CHUNK_HEAD "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"
                                 "\"finish_reason\":\"stop\"}]}\n\n");
    if (usage) add_event(answer, CHUNK_HEAD "\"choices\":[]," CHAT_USAGE "}\n\n");
    add_event(answer, "data: [DONE]\n\n");
}

#define CALL_A_TOOL "Now call a tool."
#define CALLED(first, more, arguments)                                                                        \
    "{\"index\":0,\"delta\":{" first "\"tool_calls\":[{\"index\":0," more "\"function\":{" arguments "}}]},"  \
    "\"logprobs\":null,\"finish_reason\":null}"

static void build_call(struct answer *answer, bool usage) {
    int last = events_per_stream - 1;
    add_event(answer, CHUNK_HEAD "\"choices\":[" CALLED("\"role\":\"assistant\",\"content\":null,",
                                                       "\"id\":\"call_mock00000000\",\"type\":\"function\",",
                                                       "\"name\":\"tool_0\",\"arguments\":\"\"") "]}\n\n");
    answer->lead = answer->count + 1;
    for (int i = 1; i < last; i++)
        add_event(answer, CHUNK_HEAD "\"choices\":[" CALLED("", "", "\"arguments\":\"%s%s%s\"") "]}\n\n",
                  i == 1 ? "{\\\"p0\\\":\\\"" : "", word(i - 1), i == last - 1 ? "\\\"}" : "");
    add_event(answer, CHUNK_HEAD "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"
                                 "\"finish_reason\":\"tool_calls\"}]}\n\n");
    if (usage) add_event(answer, CHUNK_HEAD "\"choices\":[]," CHAT_USAGE "}\n\n");
    add_event(answer, "data: [DONE]\n\n");
}

static void build_messages(struct answer *answer) {
    add_event(answer, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_mock00000000\","
                      "\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-mock\",\"content\":[],"
                      "\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":128,"
                      "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":1}}}\n\n");
    add_event(answer, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
                      "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n");
    answer->lead = answer->count + 1;
    for (int i = 0; i < events_per_stream - 5; i++)
        add_event(answer, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
                          "\"delta\":{\"type\":\"text_delta\",\"text\":\"%s\"}}\n\n", word(i));
    add_event(answer, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n");
    add_event(answer, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
                      "\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":48}}\n\n");
    add_event(answer, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

#define RESPONSE(status, completed, output, usage)                                                            \
    "\"response\":{\"id\":\"resp_mock00000000\",\"object\":\"response\",\"created_at\":1760000000,"            \
    "\"status\":\"" status "\",\"background\":false,\"completed_at\":" completed ",\"error\":null,"            \
    "\"frequency_penalty\":0.0,\"incomplete_details\":null,\"instructions\":null,\"max_output_tokens\":null,"  \
    "\"max_tool_calls\":null,\"metadata\":{},\"model\":\"gpt-mock\",\"output\":[" output "],"                  \
    "\"parallel_tool_calls\":true,\"presence_penalty\":0.0,\"previous_response_id\":null,"                     \
    "\"prompt_cache_key\":null,\"reasoning\":{\"effort\":null,\"summary\":null},\"safety_identifier\":null,"   \
    "\"service_tier\":\"default\",\"store\":true,\"temperature\":1.0,\"text\":{\"format\":{\"type\":\"text\"}},"\
    "\"tool_choice\":\"auto\",\"tools\":[],\"top_logprobs\":0,\"top_p\":1.0,\"truncation\":\"disabled\","      \
    "\"usage\":" usage ",\"user\":null}"
#define RESPONSE_PART(text) "{\"type\":\"output_text\",\"annotations\":[],\"text\":\"" text "\"}"
#define RESPONSE_ITEM(status, parts)                                                                          \
    "{\"id\":\"msg_mock00000000\",\"type\":\"message\",\"status\":\"" status "\",\"role\":\"assistant\","      \
    "\"content\":[" parts "]}"
#define RESPONSE_USAGE                                                                                        \
    "{\"input_tokens\":128,\"input_tokens_details\":{\"cached_tokens\":0},\"output_tokens\":48,"               \
    "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":176}"
#define RESPONSE_EVENT(kind) "event: " kind "\ndata: {\"type\":\"" kind "\",\"sequence_number\":%d,"
#define IN_ITEM "\"item_id\":\"msg_mock00000000\",\"output_index\":0,\"content_index\":0,"

static void build_responses(struct answer *answer) {
    struct text said = {0};
    int number = 0;
    add_event(answer, RESPONSE_EVENT("response.created") RESPONSE("in_progress", "null", "", "null") "}\n\n",
              number++);
    add_event(answer, RESPONSE_EVENT("response.in_progress") RESPONSE("in_progress", "null", "", "null") "}\n\n",
              number++);
    add_event(answer, RESPONSE_EVENT("response.output_item.added") "\"output_index\":0,\"item\":"
                      RESPONSE_ITEM("in_progress", "") "}\n\n", number++);
    add_event(answer, RESPONSE_EVENT("response.content_part.added") IN_ITEM "\"part\":" RESPONSE_PART("") "}\n\n",
              number++);
    answer->lead = answer->count + 1;
    for (int i = 0; i < events_per_stream - 8; i++) {
        append(&said, "%s", word(i));
        add_event(answer, RESPONSE_EVENT("response.output_text.delta") IN_ITEM "\"delta\":\"%s\"}\n\n", number++,
                  word(i));
    }
    add_event(answer, RESPONSE_EVENT("response.output_text.done") IN_ITEM "\"text\":\"%s\"}\n\n", number++, said.at);
    add_event(answer, RESPONSE_EVENT("response.content_part.done") IN_ITEM "\"part\":" RESPONSE_PART("%s") "}\n\n",
              number++, said.at);
    add_event(answer, RESPONSE_EVENT("response.output_item.done") "\"output_index\":0,\"item\":"
                      RESPONSE_ITEM("completed", RESPONSE_PART("%s")) "}\n\n", number++, said.at);
    add_event(answer, RESPONSE_EVENT("response.completed")
                      RESPONSE("completed", "1760000002", RESPONSE_ITEM("completed", RESPONSE_PART("%s")),
                               RESPONSE_USAGE) "}\n\n",
              number, said.at);
    free(said.at);
}

#define GEMINI_USAGE                                                                                          \
    "\"usageMetadata\":{\"promptTokenCount\":128,\"candidatesTokenCount\":48,\"totalTokenCount\":176},"        \
    "\"modelVersion\":\"gemini-mock\",\"responseId\":\"mock00000000\""

static void build_gemini(struct answer *answer) {
    int last = events_per_stream - 1;
    answer->lead = 1;
    for (int i = 0; i <= last; i++)
        add_event(answer, "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"%s\"}],\"role\":\"model\"},%s"
                          "\"index\":0}]," GEMINI_USAGE "}\r\n\r\n",
                  word(i), i == last ? "\"finishReason\":\"STOP\"," : "");
}

static const char *const document_bodies[PROTOCOLS] = {
    [CHAT] = "{\"id\":\"chatcmpl-mock0000000000000000000000\",\"object\":\"chat.completion\",\"created\":1760000000,"
             "\"model\":\"gpt-mock-2026-01-01\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
             "\"content\":\"" TEXT "\",\"refusal\":null,\"annotations\":[]},\"logprobs\":null,"
             "\"finish_reason\":\"stop\"}]," CHAT_USAGE ",\"service_tier\":\"default\","
             "\"system_fingerprint\":\"fp_mock\"}",
    [CALL] = "{\"id\":\"chatcmpl-mock0000000000000000000000\",\"object\":\"chat.completion\",\"created\":1760000000,"
             "\"model\":\"gpt-mock-2026-01-01\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
             "\"content\":null,\"tool_calls\":[{\"id\":\"call_mock00000000\",\"type\":\"function\",\"function\":"
             "{\"name\":\"tool_0\",\"arguments\":\"{}\"}}]},\"logprobs\":null,\"finish_reason\":\"tool_calls\"}],"
             CHAT_USAGE "}",
    [MESSAGES] = "{\"id\":\"msg_mock00000000\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-mock\","
                 "\"content\":[{\"type\":\"text\",\"text\":\"" TEXT "\"}],\"stop_reason\":\"end_turn\","
                 "\"stop_sequence\":null,\"usage\":{\"input_tokens\":128,\"cache_creation_input_tokens\":0,"
                 "\"cache_read_input_tokens\":0,\"output_tokens\":48}}",
    [RESPONSES] = "{\"id\":\"resp_mock00000000\",\"object\":\"response\",\"created_at\":1760000000,"
                  "\"status\":\"completed\",\"error\":null,\"incomplete_details\":null,\"model\":\"gpt-mock\","
                  "\"parallel_tool_calls\":true,\"tools\":[],\"output\":["
                  RESPONSE_ITEM("completed", RESPONSE_PART(TEXT)) "],\"usage\":" RESPONSE_USAGE "}",
    [GEMINI] = "{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"" TEXT "\"}],\"role\":\"model\"},"
               "\"finishReason\":\"STOP\",\"index\":0}]," GEMINI_USAGE "}",
};

static void finish_stream(enum protocol protocol) {
    struct answer *answer = &by_event[protocol];
    struct text first = {0};
    append(&first, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
                   "Transfer-Encoding: chunked\r\nx-request-id: req_mock\r\n\r\n%s", answer->pieces[0].at);
    answer->pieces[0] = first;
    append(&answer->pieces[answer->count - 1], "0\r\n\r\n");
    for (int i = 0; i < answer->count; i++) append(&at_once[protocol].pieces[0], "%s", answer->pieces[i].at);
    at_once[protocol].count = 1;
}

static void build_answers(void) {
    build_chat(&by_event[CHAT], false);
    build_chat(&by_event[CHAT_WITH_USAGE], true);
    build_call(&by_event[CALL], false);
    build_call(&by_event[CALL_WITH_USAGE], true);
    build_messages(&by_event[MESSAGES]);
    build_responses(&by_event[RESPONSES]);
    build_gemini(&by_event[GEMINI]);
    for (int p = 0; p < PROTOCOLS; p++) {
        const char *body = document_bodies[p] ? document_bodies[p] : document_bodies[p - 1]; // with usage or not
        append(&documents[p].pieces[0], "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                                        "x-request-id: req_mock\r\n\r\n%s", strlen(body), body);
        documents[p].count = 1;
        finish_stream((enum protocol)p);
    }
    append(&not_found.pieces[0], "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    not_found.count = 1;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void set_timer(struct port *port) {
    struct itimerspec when = {0};
    if (port->first_due) {
        when.it_value.tv_sec = port->first_due->due / 1000000000;
        when.it_value.tv_nsec = port->first_due->due % 1000000000;
    }
    timerfd_settime(port->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void enqueue(struct connection *c) {
    struct port *port = c->port;
    c->previous_due = port->last_due;
    c->next_due = NULL;
    if (port->last_due) port->last_due->next_due = c;
    else port->first_due = c;
    port->last_due = c;
    c->queued = true;
    if (port->first_due == c) set_timer(port);
}

static void dequeue(struct connection *c) {
    struct port *port = c->port;
    if (!c->queued) return;
    if (c->previous_due) c->previous_due->next_due = c->next_due;
    else port->first_due = c->next_due;
    if (c->next_due) c->next_due->previous_due = c->previous_due;
    else port->last_due = c->previous_due;
    c->queued = false;
}

static void watch(struct connection *c, bool for_room) {
    if (c->waiting_for_room == for_room) return;
    c->waiting_for_room = for_room;
    struct epoll_event event = {.events = EPOLLIN | (for_room ? EPOLLOUT : 0), .data.ptr = &c->handle};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void drop(struct connection *c) {
    dequeue(c);
    close(c->fd);
    c->fd = -1;
    c->next_due = dropped;
    dropped = c;
}

static void free_dropped(void) {
    while (dropped) {
        struct connection *c = dropped;
        dropped = c->next_due;
        free(c->input);
        free(c);
    }
}

// Sends what may be sent. False: the peer is gone.
static bool flush(struct connection *c) {
    while (c->answer && c->piece < c->allowed) {
        const struct text *piece = &c->answer->pieces[c->piece];
        ssize_t n = send(c->fd, piece->at + c->sent, piece->length - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return false;
        if (n < 0) {
            watch(c, true);
            return true;
        }
        c->sent += (size_t)n;
        if (c->sent < piece->length) continue;
        c->sent = 0;
        if (++c->piece == c->answer->count) c->answer = NULL;
    }
    watch(c, false);
    return true;
}

static const char *find(const char *in, size_t length, const char *what) {
    return memmem(in, length, what, strlen(what));
}

// 1: "stream": true stands here, 0: "stream": false does, -1: neither.
static int stream_flag(const char *body, size_t length) {
    const char *end = body + length, *key = find(body, length, "\"stream\"");
    for (; key; key = find(key + 1, (size_t)(end - key - 1), "\"stream\"")) {
        const char *value = key + 8;
        while (value < end && (*value == ' ' || *value == ':')) value++;
        if (end - value >= 4 && !memcmp(value, "true", 4)) return 1;
        if (end - value >= 5 && !memcmp(value, "false", 5)) return 0;
    }
    return -1;
}

// Bodies are large and the flag stands near an end of them: the middle is read only when it must be.
static bool wants_stream(const char *body, size_t length) {
    size_t window = length < WINDOW ? length : WINDOW;
    int flag = stream_flag(body, window);
    if (flag < 0 && length > window) flag = stream_flag(body + length - window, window);
    if (flag < 0 && length > 2 * WINDOW) flag = stream_flag(body, length);
    return flag == 1;
}

static bool wants_usage(const char *body, size_t length) {
    size_t window = length < WINDOW ? length : WINDOW;
    return find(body, window, "\"include_usage\"") || find(body + length - window, window, "\"include_usage\"");
}

// What is asked for last stands at the end of the messages, and these near the end of the body.
static enum protocol kind_of_chat(const char *body, size_t length) {
    size_t window = length < WINDOW ? length : WINDOW;
    bool call = find(body + length - window, window, CALL_A_TOOL), usage = wants_usage(body, length);
    if (call) return usage ? CALL_WITH_USAGE : CALL;
    return usage ? CHAT_WITH_USAGE : CHAT;
}

static const struct answer *choose(struct connection *c, size_t total) {
    const char *line_end = memchr(c->input, '\r', c->head_length);
    size_t line = (size_t)(line_end - c->input);
    const char *body = c->input + c->head_length;
    size_t length = total - c->head_length;
    bool stream = find(c->input, line, ":streamGenerateContent") || wants_stream(body, length);
    enum protocol protocol;
    if (find(c->input, line, "/chat/completions")) protocol = kind_of_chat(body, length);
    else if (find(c->input, line, "/messages")) protocol = MESSAGES;
    else if (find(c->input, line, "/responses")) protocol = RESPONSES;
    else if (find(c->input, line, "enerateContent")) protocol = GEMINI;
    else return &not_found;
    if (!stream) return &documents[protocol];
    return c->port->single_piece ? &at_once[protocol] : &by_event[protocol];
}

static bool respond(struct connection *c, size_t total) {
    c->answer = choose(c, total);
    c->piece = 0;
    c->sent = 0;
    bool paced = c->port->pace_ns && c->answer->count > 1;
    c->allowed = paced ? c->answer->lead : c->answer->count;
    if (paced) {
        c->due = now_ns() + c->port->pace_ns;
        enqueue(c);
    }
    return flush(c);
}

static const char *header(const char *head, const char *name) {
    const char *line = strcasestr(head, name);
    return line ? line + strlen(name) + strspn(line + strlen(name), " \t") : NULL;
}

static bool read_head(struct connection *c) {
    char *end = memmem(c->input, c->filled, "\r\n\r\n", 4);
    if (!end) return false;
    c->head_length = (size_t)(end - c->input) + 4;
    *end = 0;
    const char *length = header(c->input, "\r\ncontent-length:");
    const char *coding = header(c->input, "\r\ntransfer-encoding:");
    const char *expect = header(c->input, "\r\nexpect:");
    c->body_length = length ? strtoul(length, NULL, 10) : 0;
    c->chunked = coding && !strncasecmp(coding, "chunked", 7);
    c->chunk_at = c->head_length;
    if (expect && !strncasecmp(expect, "100", 3)) send(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
    *end = '\r';
    return true;
}

// The request's whole length once all of it has arrived, else 0.
static size_t complete(struct connection *c) {
    if (!c->chunked) {
        size_t total = c->head_length + c->body_length;
        return c->filled >= total ? total : 0;
    }
    for (;;) {
        char *line = c->input + c->chunk_at;
        if (c->chunk_at >= c->filled) return 0;
        char *end = memmem(line, c->filled - c->chunk_at, "\r\n", 2);
        if (!end) return 0;
        size_t size = strtoul(line, NULL, 16);
        size_t next = (size_t)(end - c->input) + 2 + size + 2;
        if (size == 0) return c->filled >= next ? next : 0;
        c->chunk_at = next;
    }
}

static bool serve(struct connection *c) {
    while (c->filled && !c->answer) {
        if (!c->head_length && !read_head(c)) return true;
        size_t total = complete(c);
        if (!total) return true;
        bool alive = respond(c, total);
        memmove(c->input, c->input + total, c->filled - total);
        c->filled -= total;
        c->head_length = 0;
        if (!alive) return false;
    }
    return true;
}

// Reads what has come. False: the peer is gone.
static bool fill(struct connection *c) {
    for (;;) {
        size_t wanted = c->head_length + c->body_length + 1;
        if (c->head_length && c->room < wanted) c->room = wanted;
        else if (c->filled == c->room) c->room *= 2;
        c->input = realloc(c->input, c->room);
        size_t space = c->room - c->filled;
        ssize_t n = recv(c->fd, c->input + c->filled, space, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
        if (n < 0) return true;
        c->filled += (size_t)n;
        if (!c->head_length) read_head(c);
        if ((size_t)n < space) return true;
    }
}

static void send_due(struct port *port) {
    uint64_t expirations;
    if (read(port->timer, &expirations, sizeof expirations) < 0) return;
    int64_t now = now_ns();
    while (port->first_due && port->first_due->due <= now) {
        struct connection *c = port->first_due;
        dequeue(c);
        if (++c->allowed < c->answer->count) {
            c->due += port->pace_ns;
            enqueue(c);
        }
        if (!flush(c) || (!c->answer && !serve(c))) drop(c);
    }
    set_timer(port);
}

static void accept_all(struct port *port) {
    int fd, on = 1;
    while ((fd = accept4(port->listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        *c = (struct connection){{CONNECTION, c}, .fd = fd, .port = port, .room = 16384, .input = malloc(16384)};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c->handle};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static void handle_connection(struct connection *c, uint32_t events) {
    bool alive = true;
    if (c->fd < 0) return;
    if (events & EPOLLOUT) alive = flush(c) && (c->answer || serve(c));
    if (alive && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) alive = fill(c) && serve(c);
    if (!alive) drop(c);
}

static int open_port(struct port *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    port->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(port->listener, (void *)&address, size) || listen(port->listener, 4096)) {
        perror("mock: cannot listen");
        exit(1);
    }
    getsockname(port->listener, (void *)&address, &size);
    port->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    static struct handle handles[PORTS][2];
    struct handle *own = handles[port - ports];
    own[0] = (struct handle){LISTENER, port};
    own[1] = (struct handle){TIMER, port};
    epoll_ctl(poller, EPOLL_CTL_ADD, port->listener, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &own[0]});
    epoll_ctl(poller, EPOLL_CTL_ADD, port->timer, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &own[1]});
    return ntohs(address.sin_port);
}

int main(int count, char **arguments) {
    events_per_stream = count > 1 ? atoi(arguments[1]) : 50;
    int lifetime = count > 2 ? atoi(arguments[2]) : 3600;
    if (events_per_stream < 10 || events_per_stream > MAX_EVENTS - 8) {
        fprintf(stderr, "mock: EVENTS must lie between 10 and %d\n", MAX_EVENTS - 8);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    alarm((unsigned)lifetime);
    build_answers();
    poller = epoll_create1(0);
    for (int i = 0; i < PORTS; i++)
        printf("%s\"%s\": %d", i ? ", " : "{", ports[i].name, open_port(&ports[i]));
    printf("}\n");
    fflush(stdout);
    struct epoll_event ready[256];
    for (;;) {
        int n = epoll_wait(poller, ready, 256, -1);
        for (int i = 0; i < n; i++) {
            struct handle *handle = ready[i].data.ptr;
            if (handle->source == LISTENER) accept_all(handle->subject);
            else if (handle->source == TIMER) send_due(handle->subject);
            else handle_connection(handle->subject, ready[i].events);
        }
        free_dropped();
    }
}
