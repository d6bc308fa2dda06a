/* same_file.h - is an open file still, or also, what a path names? Links are followed. */
#ifndef DAEMON_SAME_FILE_H
#define DAEMON_SAME_FILE_H

#include <stdbool.h>
#include <sys/stat.h>

static inline bool same_file(int fd, const char *path)
{
    struct stat ours, there;
    return fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino &&
           ours.st_dev == there.st_dev;
}

#endif
