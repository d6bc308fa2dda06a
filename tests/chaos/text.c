#include "tests/chaos/text.h"

#include <stdlib.h>
#include <string.h>

enum { PICTURE_ONE_IN = 23 }; /* segments that begin with a picture */

static void make_room(struct text *t, uint32_t n)
{
    if (n <= t->room)
        return;
    t->token = realloc(t->token, n * sizeof *t->token);
    t->key = realloc(t->key, n * sizeof *t->key);
    t->room = n;
    if (!t->token || !t->key)
        abort();
}

void text_free(struct text *t)
{
    free(t->token);
    free(t->key);
    *t = (struct text){0};
}

static void add_picture(struct text *t, uint64_t seed, uint32_t at, uint32_t len)
{
    if (t->n_extras == EXTRAS_MAX)
        return;
    struct pfx_extra *x = &t->extra[t->n_extras++];
    x->at = at;
    x->len = len;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t word = random_word(seed, i);
        memcpy(x->digest + 8 * i, &word, sizeof word);
    }
}

void text_make(struct text *t, const struct plan *p, const struct workload *work, size_t prompt,
               uint32_t variant, uint32_t most)
{
    const struct prompt *from = &work->prompt[prompt];
    t->n = t->n_extras = 0;
    make_room(t, most);
    for (uint32_t i = 0; i < from->n_segments && t->n < most; i++) {
        const struct segment *s = &work->segment[from->first + i];
        uint32_t n = (uint32_t)((uint64_t)s->n_tokens * p->id_tokens / TRACE_BLOCK) + 1;
        uint64_t seed = mix64(s->seed + 1);
        n = s->n_tokens == TRACE_BLOCK ? p->id_tokens : n;
        n = n < most - t->n ? n : most - t->n;
        if (seed % PICTURE_ONE_IN == 0)
            add_picture(t, seed + variant, t->n, n < 24 ? n : 24);
        for (uint32_t k = 0; k < n; k++)
            t->token[t->n++] = (uint32_t)random_word(seed, k);
    }
}

static uint64_t picture_at(const struct text *t, uint32_t *next, uint32_t at)
{
    uint64_t word;
    while (*next < t->n_extras && at >= t->extra[*next].at + t->extra[*next].len)
        ++*next;
    if (*next == t->n_extras || at < t->extra[*next].at)
        return 0;
    memcpy(&word, t->extra[*next].digest, sizeof word);
    return word;
}

void text_key(struct text *t, unsigned space, uint64_t version)
{
    uint64_t key = mix64(version * SPACES + space + 1);
    uint32_t next = 0;
    for (uint32_t i = 0; i < t->n; i++)
        t->key[i] = key =
            mix64(key * 0x9e3779b97f4a7c15ull + t->token[i] + picture_at(t, &next, i));
}

/* ---- bytes --------------------------------------------------------------------------------- */

static uint64_t word_of(uint64_t key, uint32_t device, uint64_t i)
{
    return key + (device + 1) * 0xd6e8feb86659fd93ull + i * 0x100000001b3ull;
}

static uint32_t words_a_token(pfx *c)
{
    const struct pfx_layout *l = &pfx_geometry(c)->layout;
    return (uint32_t)(l->block_bytes / sizeof(uint64_t) / l->block_tokens);
}

void page_write(pfx *c, uint32_t block, const struct text *t, uint32_t at, uint32_t n)
{
    uint32_t words = words_a_token(c);
    for (uint32_t d = 0; d < pfx_geometry(c)->layout.n_devices; d++) {
        uint64_t *page = pfx_block_address(c, d, block);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t w = 0; w < words; w++)
                page[i * words + w] = word_of(t->key[at + i], d, w);
    }
}

struct difference page_compare(pfx *c, uint32_t block, const struct text *t, uint32_t at,
                               uint32_t n)
{
    uint32_t words = words_a_token(c);
    for (uint32_t d = 0; d < pfx_geometry(c)->layout.n_devices; d++) {
        const uint64_t *page = pfx_block_address(c, d, block);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t w = 0; w < words; w++) {
                uint64_t expected = word_of(t->key[at + i], d, w);
                uint64_t found = page ? page[i * words + w] : ~expected;
                if (found != expected)
                    return (struct difference){i * words + w, d, at + i, expected, found};
            }
    }
    return (struct difference){.word = -1};
}

static uint64_t state_key(const struct text *t, uint32_t depth, uint64_t tail_of)
{
    return mix64(t->key[depth - 1] + depth * 0x2545f4914f6cdd1dull + mix64(tail_of));
}

void state_write(pfx *c, uint32_t slot, const struct text *t, uint32_t depth, uint64_t tail_of)
{
    uint64_t bytes = pfx_geometry(c)->layout.snapshot_bytes, key = state_key(t, depth, tail_of);
    for (uint32_t d = 0; d < pfx_geometry(c)->layout.n_devices; d++) {
        uint8_t *at = pfx_slot_address(c, d, slot);
        for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
            uint64_t word = word_of(key, d, i), left = bytes - i;
            memcpy(at + i, &word, left < sizeof word ? left : sizeof word);
        }
    }
}

struct difference state_compare(pfx *c, uint32_t slot, const struct text *t, uint32_t depth,
                                uint64_t tail_of)
{
    uint64_t bytes = pfx_geometry(c)->layout.snapshot_bytes, key = state_key(t, depth, tail_of);
    for (uint32_t d = 0; d < pfx_geometry(c)->layout.n_devices; d++) {
        const uint8_t *at = pfx_slot_address(c, d, slot);
        for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
            uint64_t word = word_of(key, d, i), left = bytes - i, found = 0;
            size_t n = left < sizeof word ? left : sizeof word;
            if (at)
                memcpy(&found, at + i, n);
            if (!at || memcmp(&found, &word, n) != 0)
                return (struct difference){(int64_t)(i / 8), d, depth - 1, word, found};
        }
    }
    return (struct difference){.word = -1};
}
