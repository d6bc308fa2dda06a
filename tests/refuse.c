#include "tests/refuse.h"
#include "tests/harness.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(at)     BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (at))
#define NUMBER       LOAD(offsetof(struct seccomp_data, nr))
#define LOW(n)       LOAD(offsetof(struct seccomp_data, args) + 8 * (n))
#define HIGH(n)      LOAD(offsetof(struct seccomp_data, args) + 8 * (n) + 4)
#define ALLOW        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(with) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((with)&SECCOMP_RET_DATA))

static void install(struct sock_filter *code, unsigned short n)
{
    struct sock_fprog program = {n, code};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

void refuse_call(long number, int error)
{
    struct sock_filter code[] = {
        NUMBER,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
        REFUSE((unsigned)error),
        ALLOW,
    };
    install(code, 4);
}

void refuse_option(long number, uint32_t option, int error)
{
    struct sock_filter code[] = {
        NUMBER,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 3),
        LOW(2),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, option, 0, 1),
        REFUSE((unsigned)error),
        ALLOW,
    };
    install(code, 6);
}

void refuse_io_uring(int error)
{
    refuse_call(__NR_io_uring_setup, error);
}

/* mmap's second argument is the length, its fourth the flags; MAP_SHARED is a bit of each kind of
 * shared mapping. The halves of a word are where a little-endian machine has them. */
void refuse_shared_maps(uint32_t from, uint32_t to)
{
    struct sock_filter code[] = {
        NUMBER,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 0, 7),
        LOW(3),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_SHARED, 0, 5),
        HIGH(1),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 0, 3, 0),
        LOW(1),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, from, 0, 1),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, to, 0, 1),
        ALLOW,
        REFUSE(ENOMEM),
    };
    install(code, 11);
}
