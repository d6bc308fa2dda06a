/* Sentences for errors, from the one table; the digest of a model's description. */
#include "client/client.h"

#include <sha256.h>
#include <string.h>

#define SAME_NUMBER(name, number, text)                                                            \
    static_assert((int)PFX_##name == (int)STATUS_##name, "status.h and prefixd.h agree "           \
                                                         "on " #name);
STATUSES(SAME_NUMBER)
#undef SAME_NUMBER

const char *pfx_strerror(int error)
{
    if (error >= 0)
        return "no error";
    switch (error) {
#define SENTENCE(name, number, text)                                                               \
    case number:                                                                                   \
        return text;
        STATUSES(SENTENCE)
#undef SENTENCE
    default:
        return "an error that this library does not know";
    }
}

/* Of calls whose statuses stand for several things. */
const char *call_why(const struct pfx *c, uint32_t op, int status)
{
    static const struct {
        uint32_t op;
        int status;
        const char *why;
    } rows[] = {
        {OP_RESERVE, PFX_ENOSPC,
         "too few blocks are free or idle, or --max-worker-blocks allows this worker no more; "
         "retry after a release"},
        {OP_SNAPSHOT_RESERVE, PFX_ENOSPC,
         "every snapshot slot is reserved or held by a lease that was offered it, or "
         "--max-worker-slots allows this worker no more; drop, insert or release, or start the "
         "daemon with more --snapshots"},
        {OP_FETCH, PFX_ENOSPC,
         "there is no room on the device for what is to be fetched: blocks or snapshot slots are "
         "held; retry after a release"},
        {OP_SNAPSHOT_INSERT, PFX_ESTALE,
         "the lease is not, or no longer, yours, or it has not reserved this slot"},
        {OP_SNAPSHOT_CANCEL, PFX_ESTALE,
         "the lease is not, or no longer, yours, or it has not reserved this slot"},
        {OP_SNAPSHOT_INSERT, PFX_ECONFLICT,
         "the depth is beyond the tokens that this lease has matched or inserted"},
        {OP_SNAPSHOT_INSERT, PFX_EINVAL, "a tail or sibling needs a lease with a session"},
        {OP_SNAPSHOT_EVICT, PFX_ENOENT, "there is no idle snapshot"},
        {OP_SNAPSHOT_SPILL, PFX_ENOENT, "there is no idle snapshot"},
        {OP_SNAPSHOT_FORGET, PFX_ENOENT, "no spilled snapshot has this key, or no longer"},
    };
    if (op == OP_SNAPSHOT_RESERVE && status == PFX_ENOENT && c->geometry.n_slots == 0)
        return "this daemon has no snapshot slots; start it with --snapshots and --snapshot-bytes";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].op == op && rows[i].status == status)
            return rows[i].why;
    return NULL;
}

void pfx_model_digest(const char *text, uint8_t digest[32])
{
    SHA2_CTX hash;
    SHA256Init(&hash);
    if (text)
        SHA256Update(&hash, (const uint8_t *)text, strlen(text));
    SHA256Final(digest, &hash);
}
