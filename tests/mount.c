#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static void write_text(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fprintf(stderr, "%s: %s\n", name, strerror(errno));
    close(fd);
}

bool mounts_of_our_own(void)
{
    char map[64];
    uid_t uid = getuid();
    gid_t gid = getgid();
    if (unshare(CLONE_NEWNS)) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
            return false;
        write_text("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "%u %u 1", gid, gid);
        write_text("/proc/self/gid_map", map);
        snprintf(map, sizeof map, "%u %u 1", uid, uid);
        write_text("/proc/self/uid_map", map);
    }
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

bool own_file_system(const char *dir, const char *size)
{
    char data[32];
    snprintf(data, sizeof data, "size=%s", size);
    if (mounts_of_our_own() && mount("tmpfs", dir, "tmpfs", 0, data) == 0)
        return true;
    fprintf(stderr, "%s: no tmpfs may be mounted here: %s\n", dir, strerror(errno));
    return false;
}
