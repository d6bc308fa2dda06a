#include "tests/hybrid/hybrid_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = HYBRID_WIDTH,
    HEADS = 2,
    HEAD = WIDTH / HEADS,
    KERNEL = 4,          /* inputs that the convolution sees: the token's own and 3 before */
    WINDOW = KERNEL - 1, /* of which these are state */
    COLUMNS = 4,         /* of the recurrence's memory, a row a channel */
};

/* Weights are [input][output]: all outputs of one input lie together. */
struct recurrent {
    float in[WIDTH][WIDTH], gate[WIDTH][WIDTH], out[WIDTH][WIDTH];
    float kernel[KERNEL][WIDTH];
    float keep[WIDTH][WIDTH], keep_bias[WIDTH];
    float write[WIDTH][COLUMNS], read[WIDTH][COLUMNS];
};

struct attention {
    float q[WIDTH][WIDTH], k[WIDTH][WIDTH], v[WIDTH][WIDTH], out[WIDTH][WIDTH];
};

struct layer {
    bool attends;
    uint32_t nth; /* of its kind: where its KV or state lies */
    struct recurrent recurrent;
    struct attention attention;
};

struct hybrid {
    uint32_t block_tokens, n_recurrent, n_attention;
    float embedding[HYBRID_VOCABULARY][WIDTH];
    float unembedding[WIDTH][HYBRID_VOCABULARY];
    struct layer layers[HYBRID_LAYERS];
    float cosine[HYBRID_POSITIONS][HEAD / 2], sine[HYBRID_POSITIONS][HEAD / 2];
};

struct layer_state {
    float window[WINDOW][WIDTH]; /* inputs of the convolution, oldest first */
    float memory[WIDTH][COLUMNS];
};

struct token_kv {
    float k[WIDTH], v[WIDTH];
};

/* The sizes that the pictures in the header and README name. */
_Static_assert(sizeof(struct layer_state) == 896, "state of a layer");
_Static_assert(sizeof(struct token_kv) == 256, "KV of a token and layer");
_Static_assert(sizeof((struct pfx_extra){0}.digest) == WIDTH, "an image has a value a channel");

/* ---- weights ------------------------------------------------------------------------- */

static void fill(uint64_t *seed, float *w, size_t n, float most)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t z = *seed += 0x9e3779b97f4a7c15ull; /* splitmix64 */
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        w[i] = most * ((float)((z ^ z >> 31) >> 40) * 0x1p-23f - 1.0f);
    }
}

/* An output has unit variance if its inputs have. */
#define FILL(seed, w) fill(seed, &(w)[0][0], sizeof(w) / sizeof(float), sqrtf(3.0f / WIDTH))

static void fill_layer(uint64_t *seed, struct layer *l)
{
    struct recurrent *r = &l->recurrent;
    FILL(seed, r->in);
    FILL(seed, r->gate);
    FILL(seed, r->out);
    fill(seed, &r->kernel[0][0], sizeof r->kernel / sizeof(float), 1.0f);
    FILL(seed, r->keep);
    fill(seed, r->keep_bias, WIDTH, 1.0f);
    for (uint32_t i = 0; i < WIDTH; i++)
        r->keep_bias[i] += 2.0f; /* keeps 70 to 99 of a hundred a token */
    FILL(seed, r->write);
    FILL(seed, r->read);
    FILL(seed, l->attention.q);
    FILL(seed, l->attention.k);
    FILL(seed, l->attention.v);
    FILL(seed, l->attention.out);
}

struct hybrid *hybrid_new(uint64_t seed, uint32_t block_tokens, bool states_only)
{
    struct hybrid *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->block_tokens = block_tokens;
    fill(&seed, &m->embedding[0][0], sizeof m->embedding / sizeof(float), 1.7f);
    FILL(&seed, m->unembedding);
    for (uint32_t i = 0; i < HYBRID_LAYERS; i++) {
        struct layer *l = &m->layers[i];
        l->attends = !states_only && i % 2 == 1;
        l->nth = l->attends ? m->n_attention++ : m->n_recurrent++;
        fill_layer(&seed, l);
    }
    for (uint32_t at = 0; at < HYBRID_POSITIONS; at++)
        for (uint32_t i = 0; i < HEAD / 2; i++) {
            float angle = (float)at * powf(10000.0f, -2.0f * (float)i / HEAD);
            m->cosine[at][i] = cosf(angle);
            m->sine[at][i] = sinf(angle);
        }
    return m;
}

void hybrid_free(struct hybrid *m)
{
    free(m);
}

/* ---- where things lie ------------------------------------------------------------------- */

uint32_t hybrid_block_tokens(const struct hybrid *m)
{
    return m->block_tokens;
}

size_t hybrid_block_bytes(const struct hybrid *m)
{
    return sizeof(struct token_kv) * m->block_tokens * m->n_attention;
}

size_t hybrid_state_bytes(const struct hybrid *m)
{
    return sizeof(struct layer_state) * m->n_recurrent;
}

static struct token_kv *kv_of(const struct hybrid *m, float *block, uint32_t nth, uint32_t token)
{
    return (struct token_kv *)block + (size_t)nth * m->block_tokens + token;
}

void hybrid_copy_kv(const struct hybrid *m, float *to, const float *from, uint32_t n_tokens)
{
    const struct token_kv *source = (const struct token_kv *)from;
    for (uint32_t i = 0; i < m->n_attention; i++)
        memcpy(kv_of(m, to, i, 0), source + (size_t)i * m->block_tokens,
               n_tokens * sizeof(struct token_kv));
}

void hybrid_lose(const struct hybrid *m, float *state, enum hybrid_piece piece)
{
    struct layer_state *s = (struct layer_state *)state;
    for (uint32_t i = 0; i < m->n_recurrent; i++)
        if (piece == HYBRID_WINDOW)
            memset(s[i].window, 0, sizeof s[i].window);
        else
            memset(s[i].memory, 0, sizeof s[i].memory);
}

/* ---- one token ----------------------------------------------------------------------------- */

/* y = x * w. The outer loop goes over inputs, so an output's sum has the order of the inputs. */
static inline void times(const float *restrict x, const float *restrict w, uint32_t n_out,
                         float *restrict y)
{
    for (uint32_t j = 0; j < n_out; j++)
        y[j] = 0;
    for (uint32_t i = 0; i < WIDTH; i++)
        for (uint32_t j = 0; j < n_out; j++)
            y[j] += x[i] * w[i * n_out + j];
}

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void normalize(const float x[WIDTH], float y[WIDTH])
{
    float sum = 0;
    for (uint32_t i = 0; i < WIDTH; i++)
        sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / WIDTH + 1e-6f);
    for (uint32_t i = 0; i < WIDTH; i++)
        y[i] = x[i] * scale;
}

/* The last 4 inputs, weighted, a channel by itself; then the window moves on by one. */
static void convolve(const struct recurrent *w, struct layer_state *s, const float in[WIDTH],
                     float y[WIDTH])
{
    for (uint32_t c = 0; c < WIDTH; c++) {
        float sum = 0;
        for (uint32_t k = 0; k < WINDOW; k++)
            sum += w->kernel[k][c] * s->window[k][c];
        sum += w->kernel[WINDOW][c] * in[c];
        y[c] = sum * sigmoid(sum);
    }
    memmove(s->window[0], s->window[1], (WINDOW - 1) * sizeof s->window[0]);
    memcpy(s->window[WINDOW - 1], in, sizeof s->window[0]);
}

/* memory = keep * memory + (1 - keep) * input x write; what is read of it is gated. */
static void recur(const struct recurrent *w, struct layer_state *s, const float x[WIDTH],
                  float y[WIDTH])
{
    float in[WIDTH], u[WIDTH], keep[WIDTH], gate[WIDTH], write[COLUMNS], read[COLUMNS], o[WIDTH];
    times(x, &w->in[0][0], WIDTH, in);
    convolve(w, s, in, u);
    times(x, &w->keep[0][0], WIDTH, keep);
    times(x, &w->gate[0][0], WIDTH, gate);
    times(x, &w->write[0][0], COLUMNS, write);
    times(x, &w->read[0][0], COLUMNS, read);
    for (uint32_t c = 0; c < WIDTH; c++) {
        float a = sigmoid(keep[c] + w->keep_bias[c]);
        float sum = 0;
        for (uint32_t j = 0; j < COLUMNS; j++) {
            s->memory[c][j] = a * s->memory[c][j] + (1.0f - a) * u[c] * write[j];
            sum += s->memory[c][j] * read[j];
        }
        o[c] = (sum + u[c]) * gate[c] * sigmoid(gate[c]);
    }
    times(o, &w->out[0][0], WIDTH, y);
}

/* Rotary positions: pairs of a head's channels turn with the position. */
static void rotate(const struct hybrid *m, uint32_t at, float x[WIDTH])
{
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < HEAD / 2; i++) {
            float *a = &x[h * HEAD + i], *b = a + HEAD / 2;
            float c = m->cosine[at][i], s = m->sine[at][i], a_was = *a;
            *a = a_was * c - *b * s;
            *b = a_was * s + *b * c;
        }
}

static float score(const float *q, const float *k)
{
    float sum = 0;
    for (uint32_t i = 0; i < HEAD; i++)
        sum += q[i] * k[i];
    return sum * (1.0f / 4.0f); /* the root of HEAD */
}

/* One head over positions 0 .. at, by the pages they lie in. */
static void attend_head(const struct hybrid *m, uint32_t nth, float *const *blocks, uint32_t at,
                        uint32_t first, const float q[WIDTH], float o[WIDTH])
{
    float weight[HYBRID_POSITIONS], most = -INFINITY, sum = 0;
    for (uint32_t p = 0; p <= at; p++) {
        const struct token_kv *kv = kv_of(m, blocks[p / m->block_tokens], nth, p % m->block_tokens);
        weight[p] = score(q + first, kv->k + first);
        most = weight[p] > most ? weight[p] : most;
    }
    for (uint32_t i = 0; i < HEAD; i++)
        o[first + i] = 0;
    for (uint32_t p = 0; p <= at; p++) {
        const struct token_kv *kv = kv_of(m, blocks[p / m->block_tokens], nth, p % m->block_tokens);
        float e = expf(weight[p] - most);
        sum += e;
        for (uint32_t i = 0; i < HEAD; i++)
            o[first + i] += e * kv->v[first + i];
    }
    for (uint32_t i = 0; i < HEAD; i++)
        o[first + i] /= sum;
}

static void attend(const struct hybrid *m, const struct layer *l, float *const *blocks, uint32_t at,
                   const float x[WIDTH], float y[WIDTH])
{
    const struct attention *w = &l->attention;
    struct token_kv *own = kv_of(m, blocks[at / m->block_tokens], l->nth, at % m->block_tokens);
    float q[WIDTH], o[WIDTH];
    times(x, &w->q[0][0], WIDTH, q);
    times(x, &w->k[0][0], WIDTH, own->k);
    times(x, &w->v[0][0], WIDTH, own->v);
    rotate(m, at, q);
    rotate(m, at, own->k);
    for (uint32_t h = 0; h < HEADS; h++)
        attend_head(m, l->nth, blocks, at, h * HEAD, q, o);
    times(o, &w->out[0][0], WIDTH, y);
}

static void embed(const struct hybrid *m, const struct hybrid_text *text, uint32_t at,
                  float x[WIDTH])
{
    memcpy(x, m->embedding[text->tokens[at] % HYBRID_VOCABULARY], WIDTH * sizeof x[0]);
    for (size_t i = 0; i < text->n_images; i++) {
        const struct pfx_extra *image = &text->images[i];
        if (at < image->at || at - image->at >= image->len)
            continue;
        for (uint32_t c = 0; c < WIDTH; c++)
            x[c] += (float)image->digest[(c + at - image->at) % WIDTH] * 0x1p-7f - 1.0f;
    }
}

static void run_token(const struct hybrid *m, struct layer_state *state, float *const *blocks,
                      const struct hybrid_text *text, uint32_t at, float *logits)
{
    float x[WIDTH], y[WIDTH], add[WIDTH];
    embed(m, text, at, x);
    for (uint32_t i = 0; i < HYBRID_LAYERS; i++) {
        const struct layer *l = &m->layers[i];
        normalize(x, y);
        if (l->attends)
            attend(m, l, blocks, at, y, add);
        else
            recur(&l->recurrent, &state[l->nth], y, add);
        for (uint32_t c = 0; c < WIDTH; c++)
            x[c] += add[c];
    }
    if (!logits)
        return;
    normalize(x, y);
    times(y, &m->unembedding[0][0], HYBRID_VOCABULARY, logits);
}

void hybrid_run(const struct hybrid *m, float *state, float *const *blocks,
                const struct hybrid_text *text, uint32_t from, uint32_t to, float *logits)
{
    for (uint32_t at = from; at < to; at++)
        run_token(m, (struct layer_state *)state, blocks, text, at, at + 1 == to ? logits : NULL);
}

uint32_t hybrid_choice(const float *logits)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < HYBRID_VOCABULARY; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* ---- answers --------------------------------------------------------------------------------- */

bool hybrid_answers_equal(const struct hybrid_answer *a, const struct hybrid_answer *b)
{
    return a->n == b->n && memcmp(a->tokens, b->tokens, a->n * sizeof a->tokens[0]) == 0 &&
           memcmp(a->logits, b->logits, a->n * sizeof a->logits[0]) == 0;
}

bool hybrid_answer_finite(const struct hybrid_answer *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t t = 0; t < HYBRID_VOCABULARY; t++)
            if (!isfinite(a->logits[i][t]))
                return false;
    return true;
}

/* Memory for n tokens: the state, pages, and the pages' addresses. */
struct plain {
    float *state, *kv, **blocks;
    uint32_t *tokens;
};

static void plain_free(struct plain *p)
{
    free(p->state);
    free(p->kv);
    free(p->blocks);
    free(p->tokens);
}

static bool plain_new(struct plain *p, const struct hybrid *m, uint32_t n)
{
    uint32_t n_blocks = n / m->block_tokens + 1;
    size_t floats = hybrid_block_bytes(m) / sizeof(float);
    p->state = calloc(1, hybrid_state_bytes(m));
    p->kv = malloc(n_blocks * floats * sizeof(float) + 1);
    p->blocks = malloc(n_blocks * sizeof p->blocks[0]);
    p->tokens = malloc(n * sizeof p->tokens[0]);
    if (!p->state || !p->kv || !p->blocks || !p->tokens) {
        plain_free(p);
        return false;
    }
    for (uint32_t i = 0; i < n_blocks; i++)
        p->blocks[i] = p->kv + i * floats;
    return true;
}

bool hybrid_plain(const struct hybrid *m, const struct hybrid_text *prompt, uint32_t n_tokens,
                  uint32_t n_decode, uint32_t chunk, struct hybrid_answer *out)
{
    struct plain p;
    if (!plain_new(&p, m, n_tokens + n_decode))
        return false;
    memcpy(p.tokens, prompt->tokens, n_tokens * sizeof p.tokens[0]);
    struct hybrid_text all = {p.tokens, prompt->images, prompt->n_images};
    for (uint32_t at = 0; at < n_tokens; at += chunk) {
        uint32_t to = n_tokens - at < chunk ? n_tokens : at + chunk;
        hybrid_run(m, p.state, p.blocks, &all, at, to, out->logits[0]);
    }
    out->n = n_decode;
    for (uint32_t i = 0; i < n_decode; i++) {
        uint32_t n = n_tokens + i;
        p.tokens[n] = out->tokens[i] = hybrid_choice(out->logits[i]);
        if (i + 1 < n_decode)
            hybrid_run(m, p.state, p.blocks, &all, n, n + 1, out->logits[i + 1]);
    }
    plain_free(&p);
    return true;
}
