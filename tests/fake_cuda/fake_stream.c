/*
 * Streams, each with a thread that does what it is given, late; events; and who is ordered before
 * whom.
 *
 * Every operation has a number in its stream. A stream knows of every other one up to which number
 * it has waited for it (a vector clock): through an event that it waited for, or because the host
 * knew when the operation was submitted. The host knows what it has synchronised with, or asked an
 * event about. Two operations that use the same bytes, one of them to write, must be ordered; and
 * memory that is unmapped, freed or unpinned must have no use that the host does not know to be
 * over. Whether the delays of this run would have shown it does not matter.
 */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { USES_MAX = 1 << 15 };

struct clocks {
    uint64_t at[FAKE_STREAMS_MAX]; /* by number of a stream */
};

struct event {
    struct clocks clocks;
    uint64_t recorded, reached; /* how often */
};

struct operation {
    TAILQ_ENTRY(operation) link;
    uint64_t number;
    void (*fn)(void *arg);
    void *arg;
    struct event *event; /* record, or (waits) wait until it was reached that often */
    uint64_t times;
    bool waits;
};

struct stream {
    unsigned number;
    int device;
    pthread_t thread;
    bool ends;
    TAILQ_HEAD(, operation) line;
    uint64_t done;
    struct clocks clocks;
};

struct use {
    unsigned stream;
    uint64_t number;
    struct fake_use of;
    const char *what;
};

static struct stream *streams[FAKE_STREAMS_MAX];
static uint64_t numbers[FAKE_STREAMS_MAX]; /* goes on when a stream's place is taken again */
static struct clocks host;
static struct use uses[USES_MAX];
static unsigned n_uses, n_events;
static unsigned long n_begun; /* of copies and kernels */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void merge(struct clocks *to, const struct clocks *from)
{
    for (unsigned i = 0; i < FAKE_STREAMS_MAX; i++)
        if (to->at[i] < from->at[i])
            to->at[i] = from->at[i];
}

static void delay(void)
{
    static _Thread_local unsigned seed;
    long most = atol(fake_environment("FAKE_CUDA_DELAY_US", "0"));
    if (most <= 0)
        return;
    if (!seed)
        seed = (unsigned)getpid() ^ (unsigned)(uintptr_t)&seed;
    long us = rand_r(&seed) % (most + 1);
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

bool fake_stuck(void)
{
    unsigned long stuck = strtoul(fake_environment("FAKE_CUDA_STUCK", "0"), NULL, 10);
    return stuck && n_begun >= stuck;
}

/* ---- a stream's thread ------------------------------------------------------------------------
 */

static void perform(struct operation *o)
{
    if (o->waits)
        while (o->event->reached < o->times)
            pthread_cond_wait(&changed, &fake_lock);
    else if (o->event)
        o->event->reached = o->times;
    else {
        ++n_begun;
        while (fake_stuck())
            pthread_cond_wait(&changed, &fake_lock);
        pthread_mutex_unlock(&fake_lock);
        delay();
        o->fn(o->arg);
        pthread_mutex_lock(&fake_lock);
    }
}

static void *run(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        struct operation *o = TAILQ_FIRST(&s->line);
        if (o) {
            perform(o);
            TAILQ_REMOVE(&s->line, o, link);
            s->done = o->number;
            free(o);
            pthread_cond_broadcast(&changed);
        } else if (s->ends) {
            break;
        } else {
            pthread_cond_wait(&changed, &fake_lock);
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* ---- order ------------------------------------------------------------------------------------
 */

static bool conflict(const struct fake_use *a, const struct fake_use *b)
{
    return (a->write || b->write) && a->address < b->address + b->bytes &&
           b->address < a->address + a->bytes;
}

static void forget_known(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < n_uses; i++)
        if (host.at[uses[i].stream] < uses[i].number)
            uses[n++] = uses[i];
    n_uses = n;
}

static void check_order(const struct stream *s, const char *what, const struct fake_use *use)
{
    for (unsigned i = 0; i < n_uses; i++) {
        const struct use *u = &uses[i];
        if (s->clocks.at[u->stream] < u->number && conflict(&u->of, use))
            fake_die("%s: %zu bytes at %llx are used by a %s on another stream that is not ordered "
                     "before it",
                     what, use->bytes, (unsigned long long)use->address, u->what);
    }
}

static void keep_use(const struct stream *s, const char *what, const struct fake_use *use)
{
    if (n_uses == USES_MAX)
        forget_known();
    if (n_uses == USES_MAX)
        fake_die("%s: %d uses of memory are under way, and nothing has waited for any", what,
                 USES_MAX);
    uses[n_uses++] = (struct use){s->number, s->clocks.at[s->number], *use, what};
}

void fake_unused(uint64_t address, size_t bytes, const char *what)
{
    struct fake_use use = {address, bytes, true};
    pthread_mutex_lock(&fake_lock);
    forget_known();
    for (unsigned i = 0; i < n_uses; i++)
        if (conflict(&uses[i].of, &use))
            fake_die("%s: a %s may still use it: nothing has waited for that", what, uses[i].what);
    pthread_mutex_unlock(&fake_lock);
}

/* ---- streams ----------------------------------------------------------------------------------
 */

static struct stream *stream_of(void *stream, const char *what)
{
    for (unsigned i = 0; i < FAKE_STREAMS_MAX; i++)
        if (stream && streams[i] == stream) {
            if (fake_current(what) != streams[i]->device)
                fake_die("%s: the context that is current is not the stream's", what);
            return streams[i];
        }
    fake_die("%s: that is no stream, or was destroyed (the NULL stream is not for us)", what);
}

static void submit(struct stream *s, struct operation *o)
{
    o->number = s->clocks.at[s->number] = ++numbers[s->number];
    TAILQ_INSERT_TAIL(&s->line, o, link);
    pthread_cond_broadcast(&changed);
}

static struct operation *operation_new(const char *what)
{
    struct operation *o = calloc(1, sizeof *o);
    if (!o)
        fake_die("%s: no memory", what);
    return o;
}

int fake_submit(void *stream, const char *what, const struct fake_use *use, unsigned n,
                void (*fn)(void *arg), void *arg)
{
    struct operation *o = operation_new(what);
    o->fn = fn;
    o->arg = arg;
    pthread_mutex_lock(&fake_lock);
    struct stream *s = stream_of(stream, what);
    merge(&s->clocks, &host);
    for (unsigned i = 0; i < n; i++)
        check_order(s, what, &use[i]);
    submit(s, o);
    for (unsigned i = 0; i < n; i++)
        keep_use(s, what, &use[i]);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_OK;
}

static void finish(const struct stream *s, uint64_t number)
{
    while (s->done < number)
        pthread_cond_wait(&changed, &fake_lock);
}

void fake_finish(void *stream)
{
    pthread_mutex_lock(&fake_lock);
    const struct stream *s = stream_of(stream, "a copy");
    finish(s, s->clocks.at[s->number]);
    pthread_mutex_unlock(&fake_lock);
}

int fake_cuStreamCreate(void **stream, unsigned flags)
{
    FAKE_ENTER();
    int device = fake_current("cuStreamCreate");
    if (flags != CUDA_STREAM_NON_BLOCKING)
        fake_die("cuStreamCreate: such a stream waits for the legacy one; use NON_BLOCKING");
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return CUDA_OUT_OF_MEMORY;
    TAILQ_INIT(&s->line);
    s->device = device;
    pthread_mutex_lock(&fake_lock);
    while (s->number < FAKE_STREAMS_MAX && streams[s->number])
        s->number++;
    if (s->number == FAKE_STREAMS_MAX)
        fake_die("cuStreamCreate: there are %d streams", FAKE_STREAMS_MAX);
    s->clocks.at[s->number] = s->done = numbers[s->number];
    if (pthread_create(&s->thread, NULL, run, s))
        fake_die("cuStreamCreate: no thread");
    *stream = streams[s->number] = s;
    pthread_mutex_unlock(&fake_lock);
    return CUDA_OK;
}

int fake_cuStreamDestroy(void *stream)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    struct stream *s = stream_of(stream, "cuStreamDestroy");
    if (host.at[s->number] < s->clocks.at[s->number])
        fake_die("cuStreamDestroy: nothing has waited for what is on it");
    streams[s->number] = NULL;
    s->ends = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&fake_lock);
    pthread_join(s->thread, NULL);
    free(s);
    return CUDA_OK;
}

static void await_stream(struct stream *s)
{
    struct clocks then = s->clocks;
    finish(s, then.at[s->number]);
    merge(&host, &then);
}

int fake_cuStreamSynchronize(void *stream)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    await_stream(stream_of(stream, "cuStreamSynchronize"));
    pthread_mutex_unlock(&fake_lock);
    return CUDA_OK;
}

int fake_cuCtxSynchronize(void)
{
    FAKE_ENTER();
    int device = fake_current("cuCtxSynchronize");
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < FAKE_STREAMS_MAX; i++)
        if (streams[i] && streams[i]->device == device)
            await_stream(streams[i]);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_OK;
}

/* ---- events ------------------------------------------------------------------------------------
 */

int fake_cuEventCreate(void **event, unsigned flags)
{
    FAKE_ENTER();
    (void)fake_current("cuEventCreate");
    struct event *e = calloc(1, sizeof *e);
    if (!e)
        return CUDA_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    n_events++;
    pthread_mutex_unlock(&fake_lock);
    *event = e;
    return CUDA_OK;
}

int fake_cuEventDestroy(void *event)
{
    FAKE_ENTER();
    struct event *e = event;
    pthread_mutex_lock(&fake_lock);
    if (e->reached != e->recorded)
        fake_die("cuEventDestroy: it was recorded and not reached");
    n_events--;
    pthread_mutex_unlock(&fake_lock);
    free(e);
    return CUDA_OK;
}

int fake_cuEventRecord(void *event, void *stream)
{
    FAKE_ENTER();
    struct event *e = event;
    struct operation *o = operation_new("cuEventRecord");
    pthread_mutex_lock(&fake_lock);
    struct stream *s = stream_of(stream, "cuEventRecord");
    merge(&s->clocks, &host);
    o->event = e;
    o->times = ++e->recorded;
    submit(s, o);
    e->clocks = s->clocks;
    pthread_mutex_unlock(&fake_lock);
    return CUDA_OK;
}

int fake_cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    FAKE_ENTER();
    struct event *e = event;
    struct operation *o = operation_new("cuStreamWaitEvent");
    pthread_mutex_lock(&fake_lock);
    struct stream *s = stream_of(stream, "cuStreamWaitEvent");
    o->event = e;
    o->times = e->recorded;
    o->waits = true;
    merge(&s->clocks, &e->clocks);
    submit(s, o);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_OK;
}

int fake_cuEventQuery(void *event)
{
    FAKE_ENTER();
    struct event *e = event;
    pthread_mutex_lock(&fake_lock);
    bool reached = e->reached == e->recorded;
    if (reached)
        merge(&host, &e->clocks);
    pthread_mutex_unlock(&fake_lock);
    return reached ? CUDA_OK : CUDA_NOT_READY;
}

int fake_cuEventSynchronize(void *event)
{
    FAKE_ENTER();
    struct event *e = event;
    pthread_mutex_lock(&fake_lock);
    struct clocks then = e->clocks;
    uint64_t times = e->recorded;
    while (e->reached < times)
        pthread_cond_wait(&changed, &fake_lock);
    merge(&host, &then);
    pthread_mutex_unlock(&fake_lock);
    return CUDA_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------
 */

void fake_streams_forked(void)
{
    memset(streams, 0, sizeof streams);
    memset(&host, 0, sizeof host);
    pthread_cond_init(&changed, NULL);
    n_uses = n_events = 0;
}

const char *fake_streams_of_context(int device)
{
    const char *what = NULL;
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < FAKE_STREAMS_MAX; i++)
        if (streams[i] && streams[i]->device == device)
            what = "a stream";
    pthread_mutex_unlock(&fake_lock);
    return what;
}

void fake_streams_facts(struct fake_facts *facts)
{
    for (unsigned i = 0; i < FAKE_STREAMS_MAX; i++)
        facts->streams += streams[i] != NULL;
    facts->events = n_events;
}
