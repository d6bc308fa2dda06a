/*
 * A GPU's memory in a worker. The GPU is found by its UUID, for its number is another one in each
 * process; the device's primary context is used, which is the engine's as well, and whatever was
 * current in the calling thread is current again afterwards.
 *
 * An import belongs to its connection and ends with it; nothing is looked up by address. Of two
 * connections of a process each has its own: by descriptor two mappings, by handle one that the
 * driver counts.
 */
#include "kernels/cuda_driver.h"
#include "kernels/device_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct import {
    struct device device;
    struct cuda_driver cu;
    int number;
    void *context;
    uint64_t at;
};

struct words {
    char *why;
    size_t n;
};

static bool refuse(const struct import *m, int result, const char *what, struct words *w)
{
    char text[160], uuid[CUDA_UUID_TEXT];
    cuda_uuid_print(uuid, m->device.share.uuid);
    snprintf(text, sizeof text, "%s: %s", uuid, what);
    cuda_explain(&m->cu, result, text, w->why, w->n);
    return false;
}

/* ---- by descriptor: import, reserve addresses, map, set access ----------------------------- */

bool cuda_map(const struct cuda_driver *cu, int number, uint64_t handle, uint64_t bytes,
              uint64_t *at, int *result, const char **what)
{
    const struct cuda_access access = {
        .location = {CUDA_LOCATION_DEVICE, number},
        .flags = CUDA_ACCESS_READ_WRITE,
    };
    *what = "there are no addresses for the pool";
    *result = cu->cuMemAddressReserve(at, bytes, 0, 0, 0);
    if (*result)
        return false;
    *what = "the pool could not be mapped";
    *result = cu->cuMemMap(*at, bytes, 0, handle, 0);
    if (*result == CUDA_OK) {
        *result = cu->cuMemSetAccess(*at, bytes, &access, 1);
        if (*result == CUDA_OK)
            return true;
        (void)cu->cuMemUnmap(*at, bytes);
    }
    (void)cu->cuMemAddressFree(*at, bytes);
    return false;
}

bool cuda_unmap(const struct cuda_driver *cu, uint64_t at, uint64_t bytes)
{
    return cu->cuMemUnmap(at, bytes) == CUDA_OK && cu->cuMemAddressFree(at, bytes) == CUDA_OK;
}

/* The mapping keeps the memory: the handle may go at once. */
static bool import_fd(struct import *m, int fd, struct words *w)
{
    uint64_t handle;
    int result =
        m->cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CUDA_HANDLE_FD);
    if (result)
        return refuse(m, result, "the pool's descriptor could not be imported", w);
    const char *what;
    bool mapped =
        cuda_map(&m->cu, m->number, handle, m->device.share.bytes, &m->at, &result, &what);
    (void)m->cu.cuMemRelease(handle);
    return mapped || refuse(m, result, what, w);
}

/* ---- by handle ---------------------------------------------------------------------------------
 */

static bool import_ipc(struct import *m, struct words *w)
{
    struct cuda_ipc_handle handle;
    memcpy(handle.bytes, m->device.share.handle, sizeof handle.bytes);
    int result = m->cu.cuIpcOpenMemHandle(&m->at, handle, CUDA_IPC_LAZY_PEER);
    return result == CUDA_OK || refuse(m, result, "the pool's handle could not be opened", w);
}

/* ---- either
 * -------------------------------------------------------------------------------------- */

/* Lets go of the context, whatever became of it. */
static void leave(struct import *m)
{
    (void)m->cu.cuCtxPopCurrent(NULL);
    (void)m->cu.cuDevicePrimaryCtxRelease(m->number);
}

/* Neither cuMemUnmap nor cuIpcCloseMemHandle waits for kernels: one that loses its memory takes the
 * context with it (vLLM issue 43020), and one that does not, for a twin of this import keeps it
 * mapped, would write to pages that are others' by then. So what the driver refuses stays. */
static bool end(struct device *device, bool in_use)
{
    struct import *m = (struct import *)device;
    bool entered = m->cu.cuCtxPushCurrent(m->context) == CUDA_OK;
    bool over = entered && m->cu.cuCtxSynchronize() == CUDA_OK;
    if (over && device->share.kind == DEVICE_CUDA_FD)
        over = cuda_unmap(&m->cu, m->at, device->share.bytes);
    else if (over)
        over = m->cu.cuIpcCloseMemHandle(m->at) == CUDA_OK;
    if (over)
        leave(m);
    else if (entered)
        (void)m->cu.cuCtxPopCurrent(NULL);
    free(m);
    return over;
}

/* The list of what is visible may be longer than a sentence: its beginning. */
static bool find(struct import *m, struct words *w)
{
    enum { SHOWN = 128 };
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    m->number = cuda_find(&m->cu, m->device.share.uuid);
    if (m->number >= 0)
        return true;
    char uuid[CUDA_UUID_TEXT];
    cuda_uuid_print(uuid, m->device.share.uuid);
    snprintf(w->why, w->n,
             "the pool is on %s, which this process does not see%s%.*s%s; make it visible, or "
             "leave it out of map_devices (PFX_MAP_NONE maps none)",
             uuid, visible ? " with CUDA_VISIBLE_DEVICES=" : "", SHOWN, visible ? visible : "",
             visible && strlen(visible) > SHOWN ? "..." : "");
    return false;
}

static bool open_context(struct import *m, struct words *w)
{
    int result = m->cu.cuDevicePrimaryCtxRetain(&m->context, m->number);
    if (result)
        return refuse(m, result, "there is no context for it", w);
    result = m->cu.cuCtxPushCurrent(m->context);
    if (result == CUDA_OK)
        return true;
    (void)m->cu.cuDevicePrimaryCtxRelease(m->number);
    return refuse(m, result, "its context does not work", w);
}

static bool import(struct import *m, int fd, struct words *w)
{
    if (!cuda_open(&m->cu, w->why, w->n)) {
        cuda_or(w->why, w->n, "map no GPU (PFX_MAP_NONE)");
        return false;
    }
    if (!find(m, w) || !open_context(m, w))
        return false;
    if (m->device.share.kind == DEVICE_CUDA_FD ? import_fd(m, fd, w) : import_ipc(m, w)) {
        (void)m->cu.cuCtxPopCurrent(NULL);
        return true;
    }
    leave(m);
    return false;
}

struct device *device_import_cuda(const struct wire_device *share, int fd, char *why, size_t n_why)
{
    struct words w = {why, n_why};
    struct import *m = calloc(1, sizeof *m);
    if (!m) {
        snprintf(why, n_why, "there is no memory for the device's table");
        return NULL;
    }
    m->device = (struct device){.share = *share, .fd = -1, .end = end};
    if (!import(m, fd, &w)) {
        free(m);
        return NULL;
    }
    m->device.address = (void *)(uintptr_t)m->at;
    return &m->device;
}
