#include "kernels/host_guard.h"

#include "shm/layout.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

struct range {
    uintptr_t from;
    uint64_t bytes; /* 0: none; written last, and first when it goes */
    uint64_t page;
};

/* A signal handler has no other way to them. */
static struct range ranges[DEVICES_MAX];
static struct sigaction before;
static unsigned n_ranges;

static const struct range *range_of(uintptr_t at)
{
    for (unsigned i = 0; i < DEVICES_MAX; i++) {
        uint64_t bytes = __atomic_load_n(&ranges[i].bytes, __ATOMIC_ACQUIRE);
        if (at - ranges[i].from < bytes)
            return &ranges[i];
    }
    return NULL;
}

/* Memory that is broken is not ours to hide, nor are other addresses: whoever was there before us
 * gets them, as the same access is tried again; and so what is no access, and does not come again.
 */
static void lost_page(int sig, siginfo_t *info, void *context)
{
    static const char said[] =
        "prefixd: a worker has given a huge page of the pool away, and the machine has no other: "
        "its bytes are lost, and a worker that touches it dies of SIGBUS; raise vm.nr_hugepages, "
        "and do not use --huge-pages for workers that you do not trust\n";
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    const struct range *r = info->si_code == BUS_ADRERR ? range_of(at) : NULL;
    void *page = r ? (void *)(at / r->page * r->page) : NULL;
    if (!r || mmap(page, r->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                   -1, 0) == MAP_FAILED) {
        (void)sigaction(sig, &before, NULL);
        if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO)
            (void)raise(sig);
        errno = saved;
        return;
    }
    (void)madvise(page, r->page, MADV_DONTDUMP);
    ssize_t written = write(STDERR_FILENO, said, sizeof said - 1);
    (void)written;
    errno = saved;
}

void host_guard_add(const void *base, uint64_t bytes, uint64_t page)
{
    struct sigaction ours = {.sa_sigaction = lost_page, .sa_flags = SA_SIGINFO};
    unsigned i = 0;
    while (i < DEVICES_MAX && ranges[i].bytes)
        i++;
    assert(i < DEVICES_MAX);
    ranges[i].from = (uintptr_t)base;
    ranges[i].page = page;
    __atomic_store_n(&ranges[i].bytes, bytes, __ATOMIC_RELEASE);
    if (n_ranges++ == 0)
        (void)sigaction(SIGBUS, &ours, &before);
}

void host_guard_remove(const void *base)
{
    for (unsigned i = 0; i < DEVICES_MAX; i++)
        if (ranges[i].bytes && ranges[i].from == (uintptr_t)base) {
            __atomic_store_n(&ranges[i].bytes, 0, __ATOMIC_RELEASE);
            if (--n_ranges == 0)
                (void)sigaction(SIGBUS, &before, NULL);
        }
}
