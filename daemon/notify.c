#include "daemon/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_systemd(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof at.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(at.sun_path, path, n);
    if (path[0] == '@') /* an abstract name */
        at.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    (void)sendto(fd, state, strlen(state), MSG_DONTWAIT | MSG_NOSIGNAL,
                 (const struct sockaddr *)&at, length);
    close(fd);
}
