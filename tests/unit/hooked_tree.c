#include "tests/unit/hooked_tree.h"
#include "shm/atomic.h"
#include "tests/harness.h"
#include "tests/unit/hooked_read.h"

#undef shm_load
#undef shm_load_acquire
#define shm_load(p)         (hooked_between_loads(), __atomic_load_n((p), __ATOMIC_RELAXED))
#define shm_load_acquire(p) (hooked_between_loads(), __atomic_load_n((p), __ATOMIC_ACQUIRE))

#define tree_command hooked_tree_command

#include "tools/tree.c"

static const struct index_view *shown;

int daemon_index_open(const struct tool *t, struct daemon_index *di)
{
    (void)t;
    *di = (struct daemon_index){.ready = true, .view = *shown};
    return EXIT_GOOD;
}

void daemon_index_close(struct daemon_index *di)
{
    (void)di;
}

void daemon_index_waits(const struct tool *t, const struct daemon_index *di)
{
    (void)t;
    (void)di;
    ck_abort_msg("it is ready");
}

int tool_fail(int code, const char *format, ...)
{
    ck_abort_msg("%s", format);
    return code;
}

void print_hex(char *to, const uint8_t *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        to[2 * i] = digits[bytes[i] >> 4];
        to[2 * i + 1] = digits[bytes[i] & 15];
    }
    to[2 * n] = 0;
}

char *hooked_tree(const struct index_view *view)
{
    char *text = NULL;
    size_t n;
    FILE *usual = stdout;
    const struct tool t = {.json = true};
    shown = view;
    opt.tokens = true;
    stdout = open_memstream(&text, &n);
    REQUIRE(stdout != NULL);
    REQUIRE_EQ(hooked_tree_command.run(&t, 0, NULL), EXIT_GOOD);
    fclose(stdout);
    stdout = usual;
    return text;
}
