/*
 * conversation.h - random conversations: what users would send, shaped so that prompts end on, just
 * before and just behind the boundaries where a cache may be wrong.
 */
#ifndef HYBRID_CONVERSATION_H
#define HYBRID_CONVERSATION_H

#include "tests/harness.h"
#include "tests/hybrid/hybrid_model.h"

enum {
    CONVERSATION_TOKENS = 256, /* of prompts and answers */
    CONVERSATION_TURNS = 16,
    CONVERSATION_IMAGES = CONVERSATION_TURNS,
    SYSTEM_PROMPTS = 3,
    PROMPT_TOKENS = CONVERSATION_TOKENS - HYBRID_DECODE,
};

struct conversation {
    uint64_t session; /* 0: it has none */
    uint32_t n, tokens[CONVERSATION_TOKENS];
    uint32_t n_images;
    struct pfx_extra images[CONVERSATION_IMAGES];
    uint32_t n_turns, prompt_end[CONVERSATION_TURNS];
};

struct hybrid_text conversation_text(const struct conversation *c);

/* Where conversations come from: one for all of a daemon's. */
struct talk {
    struct rng *rng;
    uint32_t block_tokens, stride;
    uint32_t n_system[SYSTEM_PROMPTS];
    uint32_t system[SYSTEM_PROMPTS][CONVERSATION_TOKENS / 4];
    uint64_t last_session;
    uint32_t shaped;                    /* prompts made to end at a boundary */
    uint64_t by_block[3], by_stride[3]; /* that ended a token before one, at one, a token behind */
    uint64_t begun, copied, grown, edited, again, repainted, returned;
};

void talk_begin(struct talk *k, struct rng *rng, uint32_t block_tokens, uint32_t stride);

/* A new conversation, with a session or (one in five) without: a system prompt and a message. Or,
 * where `like` is given, another user's text up to some turn, and mostly a message of one's own. */
void talk_open(struct talk *k, struct conversation *c, const struct conversation *like);

/* The next prompt: all so far and a message; or the same prompt again, maybe with another image in
 * it; or an earlier turn, edited; or one more message to what was there before such a change, which
 * `other` remembers (n_turns 0: nothing yet). False: it is as long as it may get. */
bool talk_next(struct talk *k, struct conversation *c, struct conversation *other);

/* Its answer. */
void talk_answer(struct conversation *c, const struct hybrid_answer *a);

#endif
