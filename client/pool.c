/* What was received: geometry, and addresses of pages. */
#include "client/client.h"
#include "kernels/device.h"

#include <string.h>

const struct pfx_geometry *pfx_geometry(const pfx *c)
{
    return c ? &c->geometry : NULL;
}

static void *device_blocks(const struct pfx *c, uint32_t device)
{
    if (check_here(c) || device >= DEVICES_MAX || !c->devices[device] || !c->block_stride)
        return NULL;
    return device_address(c->devices[device]);
}

static void *device_slots(const struct pfx *c, uint32_t device)
{
    if (check_here(c) || device >= DEVICES_MAX || !c->devices[device] || !c->slot_stride)
        return NULL;
    return (uint8_t *)device_address(c->devices[device]) +
           pool_slots_offset(c->geometry.n_blocks, c->block_stride);
}

int pfx_pool_view(pfx *c, uint32_t device, struct pfx_pool_view *out)
{
    int status = check_here(c);
    if (status)
        return status;
    status = check_out(c, out, sizeof *out);
    if (status)
        return status;
    if (device >= DEVICES_MAX || !c->devices[device])
        return fail(c, PFX_EINVAL, "that device was not mapped");
    *out = (struct pfx_pool_view){
        .size = sizeof *out,
        .blocks = device_blocks(c, device),
        .block_stride = c->block_stride,
        .slots = device_slots(c, device),
        .slot_stride = c->slot_stride,
        .is_cuda = device_is_cuda(c->devices[device]),
    };
    memcpy(out->device_uuid, device_share(c->devices[device])->uuid, sizeof out->device_uuid);
    return 0;
}

void *pfx_block_address(pfx *c, uint32_t device, uint32_t block)
{
    uint8_t *blocks = device_blocks(c, device);
    return blocks && block <= c->geometry.n_blocks ? blocks + block * c->block_stride : NULL;
}

void *pfx_slot_address(pfx *c, uint32_t device, uint32_t slot)
{
    uint8_t *slots = device_slots(c, device);
    return slots && slot <= c->geometry.n_slots ? slots + slot * c->slot_stride : NULL;
}
