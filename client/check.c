/* Arguments, checked before anything is sent. */
#include "client/client.h"

#include <stdio.h>

enum { STRUCT_MAX = 4096 }; /* no struct of a later version is larger than that */

int fail(struct pfx *c, int status, const char *why)
{
    c->why = why ? why : pfx_strerror(status);
    return status;
}

int fail_space(struct pfx *c, int status, uint64_t space)
{
    if (status != PFX_ENOENT)
        return fail(c, status, NULL);
    snprintf(c->space_why, sizeof c->space_why, "space %llu is not open on this connection",
             (unsigned long long)space);
    return fail(c, status, c->space_why);
}

int check_here(const struct pfx *c)
{
    return c && *c->here ? 0 : PFX_EINVAL;
}

/* A newer caller's struct is welcome as long as what we do not know is zero. */
int check_in(struct pfx *c, const void *in, size_t known)
{
    if (!in)
        return fail(c, PFX_EINVAL, "an argument is NULL");
    uint32_t size = *(const uint32_t *)in;
    if (size < known || size > STRUCT_MAX)
        return fail(c, PFX_EINVAL, "a struct's size is not set, or it is too small or too large");
    for (size_t i = known; i < size; i++)
        if (((const uint8_t *)in)[i])
            return fail(c, PFX_EINVAL, "a struct has a field that this library does not know");
    return 0;
}

int check_out(struct pfx *c, const void *out, size_t known)
{
    if (!out)
        return fail(c, PFX_EINVAL, "an argument is NULL");
    if (*(const uint32_t *)out < known)
        return fail(c, PFX_EINVAL, "a result's size is not set, or it is too small");
    return 0;
}

static int check_extras(struct pfx *c, const struct pfx_extra *extras, size_t n)
{
    if (n && !extras)
        return fail(c, PFX_EINVAL, "extras is NULL and n_extras is not 0");
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        if (extras[i].len == 0 || extras[i].len > UINT64_MAX - extras[i].at)
            return fail(c, PFX_EINVAL, "an extra is empty, or its end overflows");
        if (extras[i].at < end)
            return fail(c, PFX_EINVAL, "extras overlap or are not ascending");
        end = extras[i].at + extras[i].len;
    }
    return 0;
}

static int check_query(struct pfx *c, const uint32_t *tokens, size_t n_tokens,
                       const struct pfx_extra *extras, size_t n_extras)
{
    if (n_tokens && !tokens)
        return fail(c, PFX_EINVAL, "tokens is NULL");
    int status = check_extras(c, extras, n_extras);
    if (status)
        return status;
    if (n_tokens > UINT32_MAX)
        return fail(c, PFX_ETOOBIG, "a sequence has fewer than 2^32 tokens");
    return 0;
}

int check_lookup(struct pfx *c, const struct pfx_lookup_args *args)
{
    int status = check_in(c, args, sizeof *args);
    if (status)
        return status;
    if (args->flags & ~(PFX_FETCH | PFX_NO_MATCH | PFX_NO_TAIL | PFX_QUIET))
        return fail(c, PFX_EINVAL, "flags holds a bit that is not one of lookup's");
    return check_query(c, args->tokens, args->n_tokens, args->extras, args->n_extras);
}

int check_insert(struct pfx *c, const struct pfx_insert_args *args)
{
    int status = check_in(c, args, sizeof *args);
    if (status)
        return status;
    if (args->flags & ~PFX_FINAL)
        return fail(c, PFX_EINVAL, "flags holds a bit that is not one of insert's");
    return check_query(c, args->tokens, args->n_written, args->extras, args->n_extras);
}

int check_space(struct pfx *c, const struct pfx_space_desc *desc)
{
    int status = check_in(c, desc, sizeof *desc);
    if (status)
        return status;
    if (desc->tenant_len > TENANT_MAX || (desc->tenant_len && !desc->tenant))
        return fail(c, PFX_EINVAL, "a tenant has at most 255 bytes, and they are not NULL");
    return 0;
}

int check_slot(struct pfx *c, uint32_t slot)
{
    if (slot == 0 || slot > c->geometry.n_slots)
        return fail(c, PFX_EINVAL, "there is no snapshot slot of that number");
    return 0;
}
