#include "tests/cuda/gpu.h"

const char *const gpu_exports[EXPORTS] = {"fd", "ipc"};

void gpu_host(struct host *h, const char *device, const char *export)
{
    HOST_START(h, "--device", device, "--cuda-export", export, "--blocks", "14", "--block-tokens",
               "4", "--block-bytes", "64", "--snapshots", "2", "--snapshot-bytes", "64");
}

struct fake_facts gpu_facts(void)
{
    struct fake_facts (*facts)(void) = NULL;
    *(void **)(&facts) = fake_cuda("fake_cuda_facts");
    return facts ? facts() : (struct fake_facts){0};
}

void gpu_fail(const char *faults)
{
    void (*inject)(const char *) = NULL;
    *(void **)(&inject) = fake_cuda("fake_cuda_fail");
    ck_assert(inject != NULL);
    inject(faults);
}

pfx *gpu_open(const struct host *h, uint64_t map)
{
    struct pfx_options o = worker_options(h);
    pfx *c;
    o.map_devices = map;
    o.timeout_ms = 5000 * SLOW;
    int rc = pfx_open(&o, &c);
    ck_assert_msg(rc == 0, "pfx_open: %s", pfx_why(NULL));
    return c;
}
