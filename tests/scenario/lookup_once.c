/* lookup_once SOCKET TEXT: a fresh process with its own environment and address layout; prints how
 * many tokens a lookup matches. For B15. */
#include "client/prefixd.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    uint32_t tokens[256];
    size_t n = strlen(argv[2]);
    for (size_t i = 0; i < n && i < 256; i++)
        tokens[i] = (uint32_t)(unsigned char)argv[2][i];
    struct pfx_options o = {.size = sizeof o, .socket_path = argv[1]};
    pfx *c = NULL;
    if (n > 256 || pfx_open(&o, &c) != 0)
        return 1;
    struct pfx_lookup_args args = {.size = sizeof args, .tokens = tokens, .n_tokens = n};
    struct pfx_match m = {.size = sizeof m};
    if (pfx_lookup(c, &args, &m) != 0)
        return 1;
    printf("%u\n", m.matched_tokens);
    pfx_close(c);
    return 0;
}
