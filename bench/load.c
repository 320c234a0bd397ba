// A closed-loop load generator: N keep-alive connections, each sends the same request as soon as its last answer
// has ended, and every answer is read to its end and checked.
//
// usage: load PORT REQUEST_FILE CONNECTIONS SECONDS WARMUP_SECONDS NEEDLE [MAX_REQUESTS [SESSIONS [RATE]]]
//
// With RATE, the loop is open: so many requests a second are begun over all connections, each on one that is idle; those
// that none is free for within a tenth of a second are not made up for.
// REQUEST_FILE holds the raw bytes of the request. MAX_REQUESTS of 0 is no limit. With SESSIONS, the "########" in the
// request becomes a number below it: where there is a limit one after the other, else a random one each time. An answer is right when its status is 200 and NEEDLE stands in
// the last 4 KB of its body. Prints "measuring" when the warm-up is over, then one JSON line; times in
// microseconds, percentiles exact. Connections are opened one after the other over the first half of the warm-up,
// so that paced streams do not run in lockstep. It never interrupts the mock on the core they share, but reads when
// that waits: else it would be woken for every piece of a stream, and the two would be what is measured. Ends after at most a minute, whatever the server does.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
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
#include <time.h>
#include <unistd.h>

enum { HEAD_ROOM = 16384, TAIL_ROOM = 4096, LONGEST_RUN = 60, TOO_MANY_ERRORS = 10000, DIGITS = 8 };
enum state { HEAD, SIZED_BODY, UNTIL_CLOSE, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER };
enum verdict { MORE, DONE, BROKEN };

struct connection {
    int fd;
    bool waiting_for_room;
    char *request; // what this connection sends: everybody's bytes, or a copy with a number of its own
    size_t written;
    double started, first_byte; // first_byte 0: no body byte yet
    enum state state;
    char head[HEAD_ROOM], tail[TAIL_ROOM], line[64];
    size_t head_filled, tail_filled, line_filled;
    uint64_t left; // bytes of the body or chunk still to come
    uint64_t body;
    int status;
    bool closes;
};

static struct {
    char *bytes;
    size_t length;
    size_t number_at; // where the number of the session stands
} request;
static uint32_t sessions; // 0: every request is the same
static const char *needle;
static int server_port, poller;
static double measure_from, measure_until;
static long wanted = -1;
static double request_gap, next_begin; // microseconds between two requests, 0: as soon as an answer has ended
static struct connection **idle;
static int idle_count;

static float *latencies, *first_bytes;
static size_t samples, sample_room;
static unsigned long errors, warmup_requests;
static uint64_t body_bytes;
static char first_error[512];

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void note_error(const char *format, ...) {
    errors++;
    if (first_error[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(first_error, sizeof first_error, format, arguments);
    va_end(arguments);
    for (char *c = first_error; *c; c++)
        if (!isprint((unsigned char)*c) || *c == '"' || *c == '\\') *c = '.';
}

static void watch(struct connection *c, bool for_room) {
    if (c->waiting_for_room == for_room) return;
    c->waiting_for_room = for_room;
    struct epoll_event event = {.events = EPOLLIN | (for_room ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static bool write_request(struct connection *c) {
    while (c->written < request.length) {
        ssize_t n = send(c->fd, c->request + c->written, request.length - c->written, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) return false;
        if (n < 0) {
            watch(c, true);
            return true;
        }
        c->written += (size_t)n;
    }
    watch(c, false);
    return true;
}

static uint32_t random_below(uint32_t limit) {
    // xorshift: another sequence in every run, because the sessions of an earlier one are not new any more
    static uint64_t state;
    if (!state) state = 88172645463325252 ^ ((uint64_t)now_us() << 20) ^ (uint64_t)getpid();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % limit;
}

static void choose_session(struct connection *c) {
    static uint32_t begun;
    uint32_t number = wanted < 0 ? random_below(sessions) : begun++ % sessions;
    for (int i = DIGITS - 1; i >= 0; i--, number /= 10) c->request[request.number_at + i] = (char)('0' + number % 10);
}

static void begin(struct connection *c) {
    if (sessions) choose_session(c);
    c->written = 0;
    c->state = HEAD;
    c->head_filled = c->tail_filled = c->line_filled = 0;
    c->body = 0;
    c->first_byte = 0;
    c->closes = false;
    c->started = now_us();
    write_request(c); // a failure shows as a hang-up event
}

static void open_connection(struct connection *c) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)server_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0) {
        perror("load: cannot open a connection (is the limit of open files too low?)");
        exit(2);
    }
    c->waiting_for_room = false;
    if (!c->request && sessions) c->request = memcpy(malloc(request.length), request.bytes, request.length);
    else if (!c->request) c->request = request.bytes;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
    connect(c->fd, (void *)&address, sizeof address);
    begin(c);
}

static void reopen(struct connection *c) {
    close(c->fd);
    open_connection(c);
}

static void take_body(struct connection *c, const char *bytes, size_t n) {
    if (!c->first_byte) c->first_byte = now_us();
    c->body += n;
    if (n >= TAIL_ROOM) {
        memcpy(c->tail, bytes + n - TAIL_ROOM, TAIL_ROOM);
        c->tail_filled = TAIL_ROOM;
        return;
    }
    if (c->tail_filled + n > TAIL_ROOM) {
        size_t excess = c->tail_filled + n - TAIL_ROOM;
        memmove(c->tail, c->tail + excess, c->tail_filled - excess);
        c->tail_filled -= excess;
    }
    memcpy(c->tail + c->tail_filled, bytes, n);
    c->tail_filled += n;
}

static const char *header(const char *head, const char *name) {
    const char *line = strcasestr(head, name);
    return line ? line + strlen(name) + strspn(line + strlen(name), " \t") : NULL;
}

static enum verdict read_head(struct connection *c) {
    const char *length = header(c->head, "\r\ncontent-length:");
    const char *coding = header(c->head, "\r\ntransfer-encoding:");
    const char *persistence = header(c->head, "\r\nconnection:");
    c->head_filled = 0;
    if (strncmp(c->head, "HTTP/1.", 7)) return BROKEN;
    c->status = atoi(c->head + 9);
    if (c->status >= 100 && c->status < 200) return MORE; // an interim answer; the real head follows
    c->closes = persistence && !strncasecmp(persistence, "close", 5);
    c->state = UNTIL_CLOSE;
    if (coding && !strncasecmp(coding, "chunked", 7)) c->state = CHUNK_SIZE;
    else if (length) {
        c->left = strtoull(length, NULL, 10);
        c->state = SIZED_BODY;
        return c->left ? MORE : DONE;
    }
    return MORE;
}

static enum verdict feed_head(struct connection *c, const char **at, size_t *n) {
    size_t before = c->head_filled, space = HEAD_ROOM - 1 - before, taken = *n < space ? *n : space;
    if (!space) return BROKEN;
    memcpy(c->head + before, *at, taken);
    c->head_filled += taken;
    size_t from = before > 3 ? before - 3 : 0;
    char *end = memmem(c->head + from, c->head_filled - from, "\r\n\r\n", 4);
    size_t used = end ? (size_t)(end + 4 - c->head) - before : taken;
    *at += used;
    *n -= used;
    if (!end) return MORE;
    end[2] = 0;
    return read_head(c);
}

// Reads one line into c->line; true when it is complete.
static bool feed_line(struct connection *c, const char **at, size_t *n) {
    while (*n) {
        char byte = *(*at)++;
        --*n;
        if (byte == '\n') {
            if (c->line_filled && c->line[c->line_filled - 1] == '\r') c->line_filled--;
            c->line[c->line_filled] = 0;
            c->line_filled = 0;
            return true;
        }
        if (c->line_filled < sizeof c->line - 1) c->line[c->line_filled++] = byte;
    }
    return false;
}

static enum verdict feed_chunk_line(struct connection *c, const char **at, size_t *n) {
    if (!feed_line(c, at, n)) return MORE;
    if (c->state == TRAILER) return c->line[0] ? MORE : DONE;
    if (c->state == CHUNK_END) {
        c->state = CHUNK_SIZE;
        return c->line[0] ? BROKEN : MORE;
    }
    if (!isxdigit((unsigned char)c->line[0])) return BROKEN;
    c->left = strtoull(c->line, NULL, 16);
    c->state = c->left ? CHUNK_DATA : TRAILER;
    return MORE;
}

static enum verdict feed_body(struct connection *c, const char **at, size_t *n) {
    size_t taken = c->state == UNTIL_CLOSE || *n < c->left ? *n : (size_t)c->left;
    take_body(c, *at, taken);
    *at += taken;
    *n -= taken;
    if (c->state == UNTIL_CLOSE) return MORE;
    c->left -= taken;
    if (c->left) return MORE;
    if (c->state == SIZED_BODY) return DONE;
    c->state = CHUNK_END;
    return MORE;
}

static enum verdict feed(struct connection *c, const char **at, size_t *n) {
    switch (c->state) {
    case HEAD: return feed_head(c, at, n);
    case SIZED_BODY:
    case UNTIL_CLOSE:
    case CHUNK_DATA: return feed_body(c, at, n);
    case CHUNK_SIZE:
    case CHUNK_END:
    case TRAILER: return feed_chunk_line(c, at, n);
    }
    return BROKEN;
}

static void add_sample(const struct connection *c, double now) {
    if (samples == sample_room) {
        sample_room = sample_room ? sample_room * 2 : 1 << 16;
        latencies = realloc(latencies, sample_room * sizeof *latencies);
        first_bytes = realloc(first_bytes, sample_room * sizeof *first_bytes);
    }
    latencies[samples] = (float)(now - c->started);
    first_bytes[samples] = (float)((c->first_byte ? c->first_byte : now) - c->started);
    samples++;
    body_bytes += c->body;
}

static void finish(struct connection *c) {
    double now = now_us();
    bool early = c->written < request.length; // answered before the request was read: the rest must not follow
    bool right = c->status == 200 && memmem(c->tail, c->tail_filled, needle, strlen(needle));
    if (!right)
        note_error("status %d, body ends: %.*s", c->status, c->tail_filled > 300 ? 300 : (int)c->tail_filled,
                   c->tail + (c->tail_filled > 300 ? c->tail_filled - 300 : 0));
    else if (now >= measure_from && now <= measure_until) add_sample(c, now);
    else warmup_requests++;
    if (c->closes || early) reopen(c);
    else if (request_gap > 0) idle[idle_count++] = c;
    else begin(c);
}

static void begin_due(void) {
    double now = now_us();
    if (next_begin < now - 1e5) next_begin = now;
    for (; idle_count && next_begin <= now; next_begin += request_gap) begin(idle[--idle_count]);
}

static void fail(struct connection *c, const char *what) {
    note_error("%s in state %d after %llu body bytes", what, c->state, (unsigned long long)c->body);
    reopen(c);
}

static void handle(struct connection *c, uint32_t events) {
    static char buffer[262144];
    if ((events & EPOLLOUT) && !write_request(c)) return fail(c, "write refused");
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got == 0 && c->state == UNTIL_CLOSE) {
        c->closes = true;
        return finish(c);
    }
    if (got <= 0) return fail(c, got ? strerror(errno) : "closed by the server");
    const char *at = buffer;
    size_t n = (size_t)got;
    enum verdict verdict = MORE;
    while (n && verdict == MORE) verdict = feed(c, &at, &n);
    if (verdict == BROKEN || (verdict == DONE && n)) fail(c, "malformed answer");
    else if (verdict == DONE) finish(c);
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double percentile(const float *sorted, double share) {
    return samples ? (double)sorted[(size_t)(share * (double)(samples - 1) + 0.5)] : 0;
}

static void report(double seconds, unsigned long stalled) {
    qsort(latencies, samples, sizeof *latencies, by_size);
    qsort(first_bytes, samples, sizeof *first_bytes, by_size);
    printf("{\"requests\": %zu, \"errors\": %lu, \"stalled\": %lu, \"seconds\": %.3f, \"rps\": %.2f, "
           "\"latency_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f}, "
           "\"ttfb_us\": {\"p50\": %.1f, \"p99\": %.1f}, \"body_bytes\": %.0f, \"warmup_requests\": %lu, "
           "\"first_error\": \"%s\"}\n",
           samples, errors, stalled, seconds, seconds > 0 ? (double)samples / seconds : 0,
           percentile(latencies, .5), percentile(latencies, .9), percentile(latencies, .99),
           percentile(first_bytes, .5), percentile(first_bytes, .99),
           samples ? (double)body_bytes / (double)samples : 0, warmup_requests, first_error);
}

static void read_request(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    fseek(file, 0, SEEK_END);
    request.length = (size_t)ftell(file);
    rewind(file);
    request.bytes = malloc(request.length);
    if (fread(request.bytes, 1, request.length, file) != request.length) exit(2);
    fclose(file);
    if (!sessions) return;
    char *number = memmem(request.bytes, request.length, "########", DIGITS);
    if (!number) {
        fprintf(stderr, "load: the request has no ######## for the number of its session\n");
        exit(2);
    }
    request.number_at = (size_t)(number - request.bytes);
}

static void tell_measuring(void) {
    puts("measuring");
    fflush(stdout);
}

static void pass_until_end(struct connection *all, int connections, double gap) {
    struct epoll_event ready[512];
    bool measuring = false;
    int opened = 0;
    double start = now_us();
    while (now_us() < measure_until && errors < TOO_MANY_ERRORS && (wanted < 0 || samples < (size_t)wanted)) {
        if (!measuring && now_us() >= measure_from) {
            measuring = true;
            tell_measuring();
        }
        while (opened < connections && now_us() >= start + gap * opened) open_connection(&all[opened++]);
        if (request_gap > 0) begin_due();
        int n = epoll_wait(poller, ready, 512, opened < connections || idle_count ? 1 : 20);
        for (int i = 0; i < n; i++) handle(ready[i].data.ptr, ready[i].events);
    }
    // Too many errors, or a machine that stood still: whoever waits for the beginning is told in any case.
    if (!measuring) tell_measuring();
}

int main(int count, char **arguments) {
    if (count < 7) {
        fprintf(stderr, "usage: load PORT REQUEST_FILE CONNECTIONS SECONDS WARMUP_SECONDS NEEDLE "
                        "[MAX_REQUESTS [SESSIONS [RATE]]]\n");
        return 2;
    }
    server_port = atoi(arguments[1]);
    if (count > 7 && atol(arguments[7]) > 0) wanted = atol(arguments[7]);
    if (count > 8) sessions = (uint32_t)strtoul(arguments[8], NULL, 10);
    read_request(arguments[2]);
    int connections = atoi(arguments[3]);
    double seconds = atof(arguments[4]), warmup = atof(arguments[5]);
    needle = arguments[6];
    if (seconds + warmup > LONGEST_RUN) {
        fprintf(stderr, "load: a run is bounded to %d seconds\n", LONGEST_RUN);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    alarm(LONGEST_RUN + 10);
    poller = epoll_create1(0);
    measure_from = now_us() + warmup * 1e6;
    measure_until = measure_from + seconds * 1e6;
    struct connection *all = calloc((size_t)connections, sizeof *all);
    idle = calloc((size_t)connections, sizeof *idle);
    if (count > 9 && atof(arguments[9]) > 0) request_gap = 1e6 / atof(arguments[9]);
    pass_until_end(all, connections, warmup * 1e6 / 2 / connections);
    double end = now_us();
    unsigned long stalled = 0;
    for (int i = 0; i < connections; i++) stalled += all[i].started < measure_from;
    report((end < measure_until ? end : measure_until) / 1e6 - measure_from / 1e6, stalled);
    return 0;
}
