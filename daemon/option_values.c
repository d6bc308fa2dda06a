#include "daemon/option_values.h"

#include <errno.h>
#include <grp.h>
#include <math.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool value_refuse(struct why *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return false;
}

/* Leading digits; false on none, or on more than 64 bits hold. */
static bool digits(const char *text, uint64_t *out, const char **end)
{
    uint64_t n = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*at - '0'), &n))
            return false;
    *out = n;
    *end = at;
    return at != text;
}

bool value_count(const char *text, uint64_t min, uint64_t max, uint64_t *out, struct why *why)
{
    const char *end;
    if (strspn(text, "0123456789") != strlen(text) || !*text)
        return value_refuse(why, "it takes a whole number");
    if (!digits(text, out, &end) || *out < min || *out > max)
        return value_refuse(why, "it must be between %llu and %llu", (unsigned long long)min,
                            (unsigned long long)max);
    return true;
}

bool value_size(const char *text, uint64_t *out, struct why *why)
{
    static const char units[] = "KMGT";
    const char *end;
    size_t n = strspn(text, "0123456789");
    if (n == 0)
        return value_refuse(why,
                            "it takes a size: a whole number of bytes, or one with K, M, G or T");
    bool fits = digits(text, out, &end);
    const char *unit = text[n] ? strchr(units, text[n] & ~0x20) : NULL;
    if (text[n] && (!unit || text[n + 1]))
        return value_refuse(why,
                            "it takes a size: a whole number of bytes, or one with K, M, G or T");
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if (!fits || *out > (uint64_t)INT64_MAX >> shift)
        return value_refuse(why, "no memory is that large");
    *out <<= shift;
    return true;
}

bool value_number(const char *text, double *out, struct why *why)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (!*text || *end || strspn(text, "0123456789.eE+-") != strlen(text))
        return value_refuse(why, "it takes a number");
    if (errno || !isfinite(*out) || signbit(*out))
        return value_refuse(why, "it must be finite and not below 0");
    return true;
}

bool value_switch(const char *text, bool *out, struct why *why)
{
    static const char *const words[2][3] = {{"no", "false", "0"}, {"yes", "true", "1"}};
    for (unsigned i = 0; i < 6; i++)
        if (strcmp(text, words[i & 1][i / 2]) == 0) {
            *out = i & 1;
            return true;
        }
    return value_refuse(why, "it takes yes or no");
}

/* -1 as an id means "none" to the kernel. */
static bool id_number(const char *text, uint32_t *out)
{
    uint64_t n;
    const char *end;
    if (!digits(text, &n, &end) || *end || n >= UINT32_MAX)
        return false;
    *out = (uint32_t)n;
    return true;
}

bool value_user(const char *text, uint32_t *out, struct why *why)
{
    if (id_number(text, out))
        return true;
    const struct passwd *user = getpwnam(text);
    if (!user)
        return value_refuse(why, "no such user");
    *out = user->pw_uid;
    return true;
}

bool value_group(const char *text, uint32_t *out, struct why *why)
{
    if (id_number(text, out))
        return true;
    const struct group *group = getgrnam(text);
    if (!group)
        return value_refuse(why, "no such group");
    *out = group->gr_gid;
    return true;
}
