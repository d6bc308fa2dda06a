/*
 * The built-in workload: many conversations, a few assistants.
 *
 *   prompt of turn t:   system prompt | user 1 | answer 1 | ... | user t
 *
 * Every conversation of an assistant begins with the same system prompt; each turn repeats all
 * before it. Arrivals are mixed: about WINDOW conversations go on at a time, and the next request
 * is of any of them. All of it follows from one fixed seed.
 */
#include "tools/replay.h"
#include "tools/measure.h"

enum {
    ASSISTANTS = 8,
    CONVERSATIONS = 240,
    WINDOW = 24,
    MAX_TURNS = 8,
};
#define CHAT_SEED 0x70726566697864ull

struct draw {
    uint64_t n;
};

static uint32_t between(struct draw *d, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(random_word(CHAT_SEED, d->n++) % (high - low + 1));
}

struct conversation {
    uint32_t number, assistant;
    uint32_t turns, turn;                        /* planned, had */
    uint32_t user[MAX_TURNS], answer[MAX_TURNS]; /* tokens */
};

static struct conversation begin(struct draw *d, uint32_t number)
{
    struct conversation c = {.number = number,
                             .assistant = between(d, 0, ASSISTANTS - 1),
                             .turns = between(d, 1, MAX_TURNS)};
    for (uint32_t t = 0; t < c.turns; t++) {
        c.user[t] = between(d, 15, 400);
        c.answer[t] = between(d, 40, 700);
    }
    return c;
}

static void next_turn(struct workload *w, struct conversation *c)
{
    uint64_t text = CHAT_SEED + ((uint64_t)c->number + 1) * 4 * MAX_TURNS;
    uint32_t system_tokens = 400 + 250 * c->assistant;
    workload_segment(w, CHAT_SEED + c->assistant, system_tokens);
    for (uint32_t t = 0; t <= c->turn; t++) {
        workload_segment(w, text + 2 * t, c->user[t]);
        if (t < c->turn)
            workload_segment(w, text + 2 * t + 1, c->answer[t]);
    }
    workload_prompt(w, w->prompt[w->n_prompts].n_tokens);
    c->turn++;
}

void chat_make(struct workload *w, uint64_t limit)
{
    struct draw d = {0};
    struct conversation open[WINDOW];
    uint32_t n_open = 0, begun = 0;
    while (w->n_prompts < limit) {
        while (n_open < WINDOW && begun < CONVERSATIONS)
            open[n_open++] = begin(&d, begun++);
        if (n_open == 0)
            return;
        uint32_t i = between(&d, 0, n_open - 1);
        next_turn(w, &open[i]);
        if (open[i].turn == open[i].turns)
            open[i] = open[--n_open];
    }
}
