/*
 * under_filter NUMBER... -- PROGRAM [ARGUMENT]...: PROGRAM under the filters that a unit's
 * SystemCallFilter, RestrictAddressFamilies=AF_UNIX and MemoryDenyWriteExecute make. Whatever they
 * do not let through kills it.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINES_MOST = 4096, BAD = 125 };

static struct sock_filter lines[LINES_MOST];
static unsigned short n_lines;

static void line(struct sock_filter l)
{
    if (n_lines == LINES_MOST)
        exit(BAD);
    lines[n_lines++] = l;
}

static void install(void)
{
    struct sock_fprog program = {n_lines, lines};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
        return;
    fprintf(stderr, "under_filter: %s\n", strerror(errno));
    exit(BAD);
}

static void load(size_t at)
{
    line((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)at));
}

static void jump(unsigned short how, unsigned value, unsigned char yes, unsigned char no)
{
    line((struct sock_filter)BPF_JUMP(BPF_JMP | how | BPF_K, value, yes, no));
}

static void end(unsigned action)
{
    line((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action));
}

static void only_these(char **number)
{
    n_lines = 0;
    load(offsetof(struct seccomp_data, nr));
    for (; strcmp(*number, "--") != 0; number++) {
        jump(BPF_JEQ, (unsigned)strtoul(*number, NULL, 10), 0, 1);
        end(SECCOMP_RET_ALLOW);
    }
    end(SECCOMP_RET_KILL_PROCESS);
    install();
}

/* Sockets of the one family. */
static void only_unix(void)
{
    n_lines = 0;
    load(offsetof(struct seccomp_data, nr));
    jump(BPF_JEQ, __NR_socket, 0, 3);
    load(offsetof(struct seccomp_data, args[0]));
    jump(BPF_JEQ, AF_UNIX, 1, 0);
    end(SECCOMP_RET_KILL_PROCESS);
    end(SECCOMP_RET_ALLOW);
    install();
}

/* No memory that is written may be executed, now or later. */
static void not_executed(unsigned nr, unsigned bits)
{
    n_lines = 0;
    load(offsetof(struct seccomp_data, nr));
    jump(BPF_JEQ, nr, 0, 4);
    load(offsetof(struct seccomp_data, args[2]));
    line((struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits));
    jump(BPF_JEQ, bits, 0, 1);
    end(SECCOMP_RET_KILL_PROCESS);
    end(SECCOMP_RET_ALLOW);
    install();
}

int main(int argc, char **argv)
{
    char **program = argv + 1;
    while (*program && strcmp(*program, "--") != 0)
        program++;
    if (!*program || !program[1] || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
        fprintf(stderr, "usage: under_filter NUMBER... -- PROGRAM [ARGUMENT]...\n");
        return BAD;
    }
    only_unix();
    not_executed(__NR_mmap, PROT_WRITE | PROT_EXEC);
    not_executed(__NR_mprotect, PROT_EXEC);
    only_these(argv + 1);
    execv(program[1], program + 1);
    fprintf(stderr, "under_filter: %s: %s\n", program[1], strerror(errno));
    return BAD;
}
