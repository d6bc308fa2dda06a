/* Who uses a GPU: processes that have a device file of the driver's open. */
#include "kernels/device.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAMED_MAX = 4 };

static bool uses_gpu(const char *pid)
{
    static const char file[] = "/dev/nvidia";
    char path[300], link[256];
    bool uses = false;
    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && !uses && (e = readdir(d));) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        const char *at = strstr(link, file);
        uses = at && isdigit((unsigned char)at[sizeof file - 1]);
    }
    if (d)
        closedir(d);
    return uses;
}

static void process_name(const char *pid, char name[32])
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/comm", pid);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%31[^\n]", name) != 1)
        strcpy(name, "?");
    if (f)
        fclose(f);
}

void device_users(char *text, size_t n)
{
    unsigned found = 0;
    size_t used = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        char name[32];
        if (!isdigit((unsigned char)e->d_name[0]) || atol(e->d_name) == getpid() ||
            !uses_gpu(e->d_name))
            continue;
        if (found++ >= NAMED_MAX || used >= n)
            continue;
        process_name(e->d_name, name);
        used += (size_t)snprintf(text + used, n - used, "%sprocess %s (%s)", used ? ", " : "",
                                 e->d_name, name);
    }
    if (d)
        closedir(d);
    if (found == 0)
        snprintf(text, n,
                 "no process that uses a GPU is visible from here; nvidia-smi may show it");
    else if (used < n)
        snprintf(text + used, n - used, "%s a GPU",
                 found > NAMED_MAX ? " and others use"
                 : found > 1       ? " use"
                                   : " uses");
}
