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

void pfx_model_digest(const char *text, uint8_t digest[32])
{
    SHA2_CTX hash;
    SHA256Init(&hash);
    if (text)
        SHA256Update(&hash, (const uint8_t *)text, strlen(text));
    SHA256Final(digest, &hash);
}
