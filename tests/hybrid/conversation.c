#include "tests/hybrid/conversation.h"

#include <string.h>

enum { MESSAGE = 30, IMAGE = 20, PLACEHOLDER = HYBRID_VOCABULARY - 1 };

struct hybrid_text conversation_text(const struct conversation *c)
{
    return (struct hybrid_text){c->tokens, c->images, c->n_images};
}

static bool one_in(struct talk *k, uint32_t n)
{
    return rng_below(k->rng, n) == 0;
}

/* ---- messages ------------------------------------------------------------------------ */

static void say(struct talk *k, struct conversation *c, uint32_t end)
{
    while (c->n < end && c->n < PROMPT_TOKENS)
        c->tokens[c->n++] = rng_below(k->rng, HYBRID_VOCABULARY);
}

/* One of three pictures somewhere in tokens from .. n; its tokens say nothing. */
static void show(struct talk *k, struct conversation *c, uint32_t from)
{
    uint32_t room = c->n - from;
    if (c->n_images == CONVERSATION_IMAGES || room == 0)
        return;
    uint32_t at = from + rng_below(k->rng, room), len = 1 + rng_below(k->rng, IMAGE);
    struct pfx_extra image = {.at = at, .len = at + len < c->n ? len : c->n - at};
    memset(image.digest, 40 * (int)rng_below(k->rng, 3), sizeof image.digest / 2);
    for (uint32_t i = 0; i < image.len; i++)
        c->tokens[at + i] = PLACEHOLDER;
    c->images[c->n_images++] = image;
}

static void count_end(struct talk *k, uint32_t n)
{
    for (uint32_t i = 0; i < 3; i++) {
        k->by_block[i] += (n + 1) % k->block_tokens == i;
        k->by_stride[i] += (n + 1) % k->stride == i;
    }
}

/* Any length; every other time one that ends a token before a boundary, at it, or a token behind,
 * of blocks and of strides in turn. */
static void message(struct talk *k, struct conversation *c)
{
    uint32_t from = c->n, end = from + 1 + rng_below(k->rng, MESSAGE);
    if (one_in(k, 2)) {
        uint32_t unit = k->shaped % 2 ? k->stride : k->block_tokens;
        end = end / unit * unit + k->shaped++ / 2 % 3;
        while (end <= from + 1)
            end += unit;
        end--;
    }
    say(k, c, end);
    if (one_in(k, 3))
        show(k, c, from);
    c->prompt_end[c->n_turns++] = c->n;
    count_end(k, c->n);
}

/* Forget what was said behind n; an image that is cut is gone. */
static void cut(struct conversation *c, uint32_t n)
{
    c->n = n;
    while (c->n_images && c->images[c->n_images - 1].at + c->images[c->n_images - 1].len > n)
        c->n_images--;
}

/* The same tokens, but one image is another, shorter, or gone. */
static void repaint(struct talk *k, struct conversation *c)
{
    uint32_t which = rng_below(k->rng, c->n_images);
    struct pfx_extra *image = &c->images[which];
    k->repainted++;
    if (one_in(k, 3)) {
        memmove(image, image + 1, (--c->n_images - which) * sizeof *image);
    } else if (one_in(k, 3) && image->len > 1) {
        image->len--;
    } else {
        image->digest[rng_below(k->rng, sizeof image->digest)]++;
    }
}

/* ---- conversations ------------------------------------------------------------------------ */

void talk_begin(struct talk *k, struct rng *rng, uint32_t block_tokens, uint32_t stride)
{
    *k = (struct talk){.rng = rng, .block_tokens = block_tokens, .stride = stride};
    for (uint32_t s = 0; s < SYSTEM_PROMPTS; s++) {
        k->n_system[s] = 1 + rng_below(rng, CONVERSATION_TOKENS / 4);
        for (uint32_t i = 0; i < k->n_system[s]; i++)
            k->system[s][i] = rng_below(rng, HYBRID_VOCABULARY);
    }
}

void talk_open(struct talk *k, struct conversation *c, const struct conversation *like)
{
    struct conversation from = {.n = 0};
    uint32_t s = rng_below(k->rng, SYSTEM_PROMPTS);
    k->begun++;
    if (like && like->n_turns) {
        k->copied++;
        from = *like;
        cut(&from, from.prompt_end[rng_below(k->rng, from.n_turns)]);
    } else {
        from.n = k->n_system[s];
        memcpy(from.tokens, k->system[s], from.n * sizeof from.tokens[0]);
    }
    from.n_turns = 0;
    from.session = one_in(k, 5) ? 0 : ++k->last_session;
    *c = from;
    if (like && one_in(k, 2))
        c->prompt_end[c->n_turns++] = c->n; /* the very same prompt */
    else
        message(k, c);
}

static void say_again(struct talk *k, struct conversation *c, struct conversation *other)
{
    k->again++;
    cut(c, c->prompt_end[c->n_turns - 1]);
    if (c->n_images && !one_in(k, 3)) {
        *other = *c;
        repaint(k, c);
    }
}

/* Cut anywhere in an earlier turn, and said otherwise. */
static void edit(struct talk *k, struct conversation *c, struct conversation *other)
{
    uint32_t turn = rng_below(k->rng, c->n_turns), from = c->prompt_end[turn];
    k->edited++;
    *other = *c;
    cut(c, from - rng_below(k->rng, from < MESSAGE ? from : MESSAGE));
    c->n_turns = turn;
    message(k, c);
}

static bool is_full(const struct conversation *c)
{
    return c->n_turns == CONVERSATION_TURNS || c->n + MESSAGE > PROMPT_TOKENS;
}

bool talk_next(struct talk *k, struct conversation *c, struct conversation *other)
{
    if (is_full(c))
        return false;
    uint32_t how = rng_below(k->rng, 10);
    if (how <= 1) {
        say_again(k, c, other);
        return true;
    }
    if (how <= 3) {
        edit(k, c, other);
        return true;
    }
    if (how <= 5 && other->n_turns && !is_full(other)) {
        struct conversation back = *other;
        *other = *c;
        *c = back;
        k->returned++;
    } else {
        k->grown++;
    }
    message(k, c);
    return true;
}

void talk_answer(struct conversation *c, const struct hybrid_answer *a)
{
    memcpy(c->tokens + c->n, a->tokens, a->n * sizeof a->tokens[0]);
    c->n += a->n;
}
