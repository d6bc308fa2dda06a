#include "tools/measure.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t quantile(uint64_t *value, size_t n, unsigned per_mille)
{
    if (n == 0)
        return 0;
    qsort(value, n, sizeof *value, compare);
    size_t at = n * per_mille / 1000;
    return value[at < n ? at : n - 1];
}

void shuffle(uint32_t *order, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(random_word(seed, i) % i), t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

/* ---- cores ---------------------------------------------------------------------------- */

/* The lowest hyperthread of the core that this one is on: equal for siblings. */
static int first_sibling(int cpu)
{
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (!f)
        return cpu;
    if (fscanf(f, "%d", &first) != 1)
        first = cpu;
    fclose(f);
    return first;
}

bool cores_choose(struct cores *cores)
{
    cpu_set_t allowed;
    *cores = (struct cores){-1, -1, -1};
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    for (int cpu = 0; cpu < CPU_SETSIZE && cores->third < 0; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        if (cores->mine < 0)
            cores->mine = cpu;
        else if (cores->other < 0 && first_sibling(cpu) != first_sibling(cores->mine))
            cores->other = cpu;
        else if (cores->other >= 0 && first_sibling(cpu) != first_sibling(cores->mine) &&
                 first_sibling(cpu) != first_sibling(cores->other))
            cores->third = cpu;
    }
    if (cores->other >= 0)
        return true;
    for (int cpu = cores->mine + 1; cpu < CPU_SETSIZE; cpu++) /* hyperthreads are all we have */
        if (CPU_ISSET(cpu, &allowed)) {
            cores->other = cpu;
            return true;
        }
    return false;
}

void cores_pin(int pid, int core)
{
    if (core < 0)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(pid, sizeof set, &set);
}

/* ---- interruption --------------------------------------------------------------------- */

volatile sig_atomic_t interrupted;

static void note(int signal)
{
    interrupted = signal;
}

void interrupt_catch(void)
{
    struct sigaction a = {.sa_handler = note};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
}

void interrupt_raise(void)
{
    if (!interrupted)
        return;
    signal(interrupted, SIG_DFL);
    raise(interrupted);
}
