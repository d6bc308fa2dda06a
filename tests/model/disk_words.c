/* Texts, and the words that stand for the KV of their tokens. */
#include "tests/model/disk_run.h"

#include <stdlib.h>
#include <string.h>

/* ---- sets --------------------------------------------------------------------------- */

static uint64_t *place(const struct words *s, uint64_t word)
{
    uint32_t i = (uint32_t)word & (s->room - 1);
    while (s->slot[i] && s->slot[i] != word)
        i = (i + 1) & (s->room - 1);
    return &s->slot[i];
}

void words_add(struct words *s, uint64_t word)
{
    if (2 * s->n >= s->room) {
        struct words more = {.room = s->room ? 2 * s->room : 1024};
        more.slot = calloc(more.room, sizeof *more.slot);
        REQUIRE(more.slot != NULL);
        for (uint32_t i = 0; i < s->room; i++)
            if (s->slot[i])
                *place(&more, s->slot[i]) = s->slot[i];
        free(s->slot);
        s->slot = more.slot;
        s->room = more.room;
    }
    uint64_t *at = place(s, word);
    s->n += *at == 0;
    *at = word;
}

bool words_has(const struct words *s, uint64_t word)
{
    return word && s->room && *place(s, word) == word;
}

void words_clear(struct words *s)
{
    free(s->slot);
    *s = (struct words){0};
}

/* ---- words -------------------------------------------------------------------------- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return z ? z : 1;
}

uint64_t word_begin(int space, uint64_t life)
{
    return mix(mix(1, life), (uint64_t)space);
}

uint64_t word_next(uint64_t before, uint32_t token)
{
    return mix(before, token);
}

uint64_t word_extra(uint64_t before, uint64_t len, const uint8_t digest[32])
{
    return mix(mix(before, ~len), digest[0]);
}

void text_words(const struct text *t, int space, uint64_t life, uint64_t word[TEXT_MAX])
{
    uint64_t w = word_begin(space, life);
    for (uint32_t i = 0, x = 0; i < t->n; i++) {
        if (x < t->n_extras && t->extra[x].at == i) {
            w = word_extra(w, t->extra[x].len, t->extra[x].digest);
            x++;
        }
        word[i] = w = word_next(w, t->token[i]);
    }
}

/* ---- texts -------------------------------------------------------------------------- */

void text_cut(struct text *t, uint32_t n)
{
    t->n = t->n < n ? t->n : n;
    while (t->n_extras && t->extra[t->n_extras - 1].at >= t->n)
        t->n_extras--;
}

/* Extras begin where the text is new. */
static void add_extras(struct disk_run *r, struct text *t, uint32_t from)
{
    if (!r->shape.extras || !one_in(r, 3))
        return;
    if (t->n_extras) {
        const struct pfx_extra *last = &t->extra[t->n_extras - 1];
        from = last->at + last->len > from ? (uint32_t)(last->at + last->len) : from;
    }
    bool dense = r->shape.extras > 4;
    for (uint32_t at = from + dice(r, 4); at < t->n && t->n_extras < r->shape.extras;) {
        struct pfx_extra x = {.at = at, .len = dense ? 1 : 1 + dice(r, 6)};
        memset(x.digest, 'A' + (int)dice(r, 2), sizeof x.digest);
        t->extra[t->n_extras++] = x;
        at += (uint32_t)x.len + (dense ? 0 : dice(r, 6));
    }
}

void text_grow(struct disk_run *r, struct text *t, uint32_t n)
{
    uint32_t from = t->n;
    n = n < TEXT_MAX ? n : TEXT_MAX;
    for (; t->n < n; t->n++)
        t->token[t->n] = dice(r, r->shape.alphabet);
    add_extras(r, t, from);
}

struct text text_recent(struct disk_run *r)
{
    struct text t = r->recent[dice(r, RECENT)];
    uint32_t bt = r->shape.block_tokens, most = r->shape.long_texts ? TEXT_MAX : 12 * bt;
    text_cut(&t, one_in(r, 8) ? 0 : one_in(r, 2) ? t.n : dice(r, t.n + 1));
    uint32_t more = r->shape.long_texts && one_in(r, 3) ? dice(r, 90 * bt) : dice(r, 3 * bt + 1);
    if (t.n < most)
        text_grow(r, &t, t.n + more < most ? t.n + more : most);
    r->recent[dice(r, RECENT)] = t;
    return t;
}

/* Tenants and adapters, each alone and together; 0 is the base space. */
struct space_key run_space_key(int space)
{
    static const struct {
        uint64_t adapter, generation;
        const char *tenant;
    } keys[RUN_SPACES] = {
        {0, 0, ""},  {0, 0, "a"}, {0, 0, "b"}, {5, 0, ""},   {5, 1, ""},
        {5, 0, "a"}, {6, 0, ""},  {0, 1, ""},  {0, 0, "ab"}, {6, 2, "b"},
    };
    struct space_key key = {.adapter_id = keys[space].adapter,
                            .adapter_generation = keys[space].generation,
                            .tenant_len = (uint32_t)strlen(keys[space].tenant)};
    memcpy(key.tenant, keys[space].tenant, key.tenant_len);
    return key;
}
