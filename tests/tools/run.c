#include "tests/tools/run.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_MS = 20000 * SLOW, WORDS_MAX = 48 };

/* Another user may not reach the build: a home directory is closed to him. So he gets copies of the
 * program and of the library beside it, laid out as in the build. */
static void copy_for_others(const char *path, char *dir, char *copy, size_t room)
{
    char command[2048], build[1024];
    const char *name = strrchr(path, '/') + 1;
    snprintf(build, sizeof build, "%.*s", (int)(name - path), path);
    ck_assert_ptr_ne(mkdtemp(dir), NULL);
    snprintf(copy, room, "%s/tools/%s", dir, name);
    snprintf(command, sizeof command,
             "chmod 755 %s && mkdir -m 755 %s/tools %s/client && install -m 755 '%s' %s/tools && "
             "install -m 755 '%s'../client/libprefixd.so.1 %s/client",
             dir, dir, dir, path, dir, build, dir);
    ck_assert_int_eq(system(command), 0);
}

static void remove_copy(const char *dir)
{
    char command[256];
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static void execute(uid_t uid, const char *path, const char *const *words, int out, int err)
{
    const char *argv[WORDS_MAX] = {path};
    for (int i = 0; words[i] && i < WORDS_MAX - 2; i++)
        argv[i + 1] = words[i];
    if (uid && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
        _exit(97);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(path, (char *const *)(uintptr_t)argv);
    _exit(99);
}

/* What comes from both until both are closed. False: the time was over. */
static bool collect(const int fd[2], char *const to[2], const size_t room[2])
{
    size_t n[2] = {0, 0};
    uint64_t until = now_ms() + LIMIT_MS;
    struct pollfd p[2] = {{.fd = fd[0], .events = POLLIN}, {.fd = fd[1], .events = POLLIN}};
    while ((p[0].fd >= 0 || p[1].fd >= 0) && now_ms() < until) {
        if (poll(p, 2, 100) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            if (p[i].fd < 0 || !p[i].revents)
                continue;
            ck_assert_msg(n[i] + 1 < room[i], "it says more than %zu bytes", room[i]);
            ssize_t got = read(fd[i], to[i] + n[i], room[i] - 1 - n[i]);
            if (got <= 0)
                p[i].fd = -1;
            else
                n[i] += (size_t)got;
            to[i][n[i]] = '\0';
        }
    }
    return p[0].fd < 0 && p[1].fd < 0;
}

void run_as(uid_t uid, struct said *s, const char *path, const char *const *words)
{
    int out[2], err[2];
    char dir[] = "/tmp/prefixd-run-XXXXXX", copy[256];
    *s = (struct said){0};
    if (uid) {
        copy_for_others(path, dir, copy, sizeof copy);
        path = copy;
    }
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(err, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        execute(uid, path, words, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    bool ended = collect((int[]){out[0], err[0]}, (char *[]){s->out, s->err},
                         (size_t[]){sizeof s->out, sizeof s->err});
    if (!ended)
        kill(pid, SIGKILL);
    close(out[0]);
    close(err[0]);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (uid)
        remove_copy(dir);
    ck_assert_msg(ended, "it does not end; it said: %s%s", s->out, s->err);
    ck_assert_msg(WIFEXITED(status), "it died by signal %d: %s", WTERMSIG(status), s->err);
    s->code = WEXITSTATUS(status);
}

json_t *json_said(const struct said *s)
{
    json_error_t e;
    ck_assert_msg(s->code == 0, "exit %d: %s%s", s->code, s->out, s->err);
    json_t *o = json_loads(s->out, JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(o != NULL, "no JSON: %s: %s", e.text, s->out);
    ck_assert(json_is_object(o));
    return o;
}

int64_t number_of(const json_t *object, const char *field)
{
    const json_t *v = json_object_get(object, field);
    ck_assert_msg(json_is_integer(v), "no whole number \"%s\"", field);
    return json_integer_value(v);
}

const char *text_of(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    ck_assert_msg(text != NULL, "no text \"%s\"", field);
    return text;
}

void refused(const struct said *s, int code, const char *needle)
{
    size_t n = strlen(s->err);
    ck_assert_msg(s->code == code, "exit %d, not %d: %s", s->code, code, s->err);
    ck_assert_str_eq(s->out, "");
    ck_assert_msg(n > 1 && strchr(s->err, '\n') == s->err + n - 1, "not one line: %s", s->err);
    ck_assert_msg(strstr(s->err, needle) != NULL, "\"%s\" is not in: %s", needle, s->err);
}
