/* Geometry, views of the pool, addresses of blocks and slots; digests and sentences. */
#include "tests/client/fixture.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- geometry ---------------------------------------------------------------------------- */

START_TEST(geometry_of_every_option)
{
    struct host h;
    HOST_START(&h, "--blocks", "24", "--block-tokens", "8", "--block-bytes", "192", "--devices",
               "3", "--snapshots", "5", "--snapshot-bytes", "100", "--model", "abc");
    pfx *c = connect_with(&h, (struct pfx_options){0});
    const struct pfx_geometry *g = pfx_geometry(c);
    ck_assert_uint_eq(g->size, sizeof *g);
    ck_assert_uint_eq(g->n_blocks, 24);
    ck_assert_uint_eq(g->layout.size, sizeof g->layout);
    ck_assert_uint_eq(g->layout.block_tokens, 8);
    ck_assert_uint_eq(g->layout.block_bytes, 192);
    ck_assert_uint_eq(g->layout.snapshot_bytes, 100);
    ck_assert_uint_eq(g->layout.n_devices, 3);
    ck_assert_uint_eq(g->layout.reserved, 0);
    ck_assert_uint_eq(g->n_slots, 5);
    ck_assert_uint_eq(g->n_disk_blocks, 0);
    ck_assert_uint_eq(g->active, 1);
    ck_assert_uint_eq(g->reserved, 0);
    uint8_t digest[32];
    pfx_model_digest("abc", digest);
    ck_assert_mem_eq(g->layout.model_digest, digest, 32);
    ck_assert_ptr_eq(pfx_geometry(c), g); /* owned by the connection */
    /* what it says is a layout that opens */
    pfx *other = connect_with(&h, (struct pfx_options){.layout = &g->layout});
    ck_assert_mem_eq(pfx_geometry(other), g, sizeof *g);
    pfx_close(other);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* One for all connections; another whenever the daemon starts. */
START_TEST(epoch_changes_with_the_daemon)
{
    struct host h;
    host_small(&h, 8, 4);
    uint64_t seen[4] = {0};
    for (int i = 0; i < 4; i++) {
        pfx *a = connect_with(&h, (struct pfx_options){0});
        pfx *b = connect_with(&h, (struct pfx_options){.group = "g"});
        seen[i] = pfx_geometry(a)->epoch;
        ck_assert_uint_eq(pfx_geometry(b)->epoch, seen[i]);
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(seen[k], seen[i]);
        pfx_close(a);
        pfx_close(b);
        if (i == 3)
            break;
        host_kill(&h);
        host_again(&h, NULL);
    }
    host_stop(&h);
}
END_TEST

/* ---- views ------------------------------------------------------------------------------- */

enum { DEVICES = 2, VIEW_BLOCKS = 6, VIEW_SLOTS = 3 };

static void view_host(struct host *h)
{
    HOST_START(h, "--blocks", "6", "--block-tokens", "4", "--block-bytes", "192", "--snapshots",
               "3", "--snapshot-bytes", "100", "--devices", "2");
}

/* Mapped or not: the view and both kinds of addresses agree on it. */
static void device_is(pfx *c, uint32_t device, bool mapped)
{
    struct pfx_pool_view v = {.size = sizeof v}, none = v;
    status_is(pfx_pool_view(c, device, &v), mapped ? 0 : PFX_EINVAL, "pfx_pool_view");
    if (!mapped) {
        ck_assert_mem_eq(&v, &none, sizeof v);
        for (uint32_t id = 0; id <= VIEW_BLOCKS; id++) {
            ck_assert_ptr_null(pfx_block_address(c, device, id));
            ck_assert_ptr_null(pfx_slot_address(c, device, id));
        }
        return;
    }
    uint8_t uuid[17] = "";
    if (on_cuda()) { /* what the fake driver's GPUs have */
        memcpy(uuid, "fake GPU number ", 16);
        uuid[15] = (uint8_t)device;
    }
    ck_assert_uint_eq(v.size, sizeof v);
    ck_assert_uint_eq(v.is_cuda, on_cuda());
    ck_assert_mem_eq(v.device_uuid, uuid, 16);
    ck_assert_uint_ge(v.block_stride, 192);
    ck_assert_uint_ge(v.slot_stride, 100);
    for (uint32_t id = 0; id <= VIEW_BLOCKS; id++) /* 0 is scratch, and exists */
        ck_assert_ptr_eq(pfx_block_address(c, device, id), (char *)v.blocks + id * v.block_stride);
    for (uint32_t id = 0; id <= VIEW_SLOTS; id++)
        ck_assert_ptr_eq(pfx_slot_address(c, device, id), (char *)v.slots + id * v.slot_stride);
    const uint32_t none_such[] = {VIEW_BLOCKS + 1, 1u << 31, UINT32_MAX - 1, PFX_NO_BLOCK};
    for (size_t i = 0; i < LENGTH(none_such); i++) {
        ck_assert_ptr_null(pfx_block_address(c, device, none_such[i]));
        ck_assert_ptr_null(pfx_slot_address(c, device, none_such[i]));
    }
    ck_assert_ptr_null(pfx_slot_address(c, device, VIEW_SLOTS + 1));
    char *end = (char *)v.blocks + (VIEW_BLOCKS + 1) * v.block_stride;
    ck_assert((char *)v.slots >= end ||
              (char *)v.slots + (VIEW_SLOTS + 1) * v.slot_stride <= (char *)v.blocks);
}

START_TEST(views_of_what_is_mapped)
{
    struct host h;
    view_host(&h);
    const struct {
        uint64_t map;
        bool mapped[DEVICES];
    } rows[] = {
        {PFX_MAP_ALL, {true, true}},    {1, {true, false}}, {2, {false, true}}, {3, {true, true}},
        {PFX_MAP_NONE, {false, false}},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        pfx *c = connect_with(&h, (struct pfx_options){.map_devices = rows[i].map});
        for (uint32_t d = 0; d < DEVICES; d++)
            device_is(c, d, rows[i].mapped[d]);
        const uint32_t none_such[] = {DEVICES, 15, 16, 64, UINT32_MAX};
        for (size_t k = 0; k < LENGTH(none_such); k++)
            device_is(c, none_such[k], false);
        OK(pfx_ping(c)); /* a scheduler works without any */
        pfx_close(c);
    }
    pfx *c;
    struct pfx_options o = worker_options(&h);
    o.map_devices = 4; /* there is no third */
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EINVAL);
    host_stop(&h);
}
END_TEST

/* What only this word of this page of this device holds. */
static uint32_t stamp(uint32_t device, uint32_t id, bool slot, uint32_t at)
{
    return (device + 1) << 24 | (uint32_t)slot << 20 | id << 8 | at;
}

static void stamp_all(pfx *c, bool write)
{
    for (uint32_t d = 0; d < DEVICES; d++)
        for (uint32_t slot = 0; slot < 2; slot++)
            for (uint32_t id = 0; id <= (slot ? VIEW_SLOTS : VIEW_BLOCKS); id++) {
                uint32_t *at = slot ? pfx_slot_address(c, d, id) : pfx_block_address(c, d, id);
                for (uint32_t k = 0; k < (slot ? 100 : 192) / 4; k++)
                    if (write)
                        at[k] = stamp(d, id, slot, k);
                    else if (at[k] != stamp(d, id, slot, k))
                        ck_abort_msg("device %u, %s %u, word %u", d, slot ? "slot" : "block", id,
                                     k);
            }
}

/* One memory for all workers; no two places of it are the same. */
START_TEST(pages_are_shared_and_apart)
{
    struct host h;
    view_host(&h);
    pfx *a = connect_with(&h, (struct pfx_options){0}),
        *b = connect_with(&h, (struct pfx_options){0});
    pfx *one = connect_with(&h, (struct pfx_options){.map_devices = 2});
    stamp_all(a, true);
    stamp_all(a, false);
    stamp_all(b, false);
    ck_assert_uint_eq(*(uint32_t *)pfx_block_address(one, 1, 3), stamp(1, 3, false, 0));
    pfx_close(a);
    pfx_close(one);
    stamp_all(b, false);
    pfx_close(b);
    host_stop(&h);
}
END_TEST

/* Readable after the daemon's death, until pfx_close. */
START_TEST(pages_after_the_death)
{
    struct host h;
    view_host(&h);
    pfx *c = connect_with(&h, (struct pfx_options){0});
    stamp_all(c, true);
    host_kill(&h);
    EVENTUALLY(100 * SLOW, pfx_ping(c) == PFX_EGONE);
    stamp_all(c, false);
    stamp_all(c, true);
    device_is(c, 0, true);
    ck_assert_uint_eq(pfx_geometry(c)->n_blocks, VIEW_BLOCKS);
    pfx_close(c);
    host_again(&h, NULL);
    host_stop(&h);
}
END_TEST

/* A layout without blocks has no addresses of them, one without states none of slots. */
START_TEST(layouts_of_one_kind)
{
    struct host h;
    struct pfx_pool_view v = {.size = sizeof v};
    HOST_START(&h, "--blocks", "6", "--block-bytes", "0", "--snapshots", "3", "--snapshot-bytes",
               "100");
    pfx *c = connect_with(&h, (struct pfx_options){0});
    OK(pfx_pool_view(c, 0, &v));
    ck_assert_ptr_null(v.blocks);
    ck_assert_ptr_nonnull(v.slots);
    ck_assert_ptr_null(pfx_block_address(c, 0, 1));
    ck_assert_ptr_nonnull(pfx_slot_address(c, 0, 3));
    pfx_close(c);
    host_stop(&h);
    host_small(&h, 6, 4);
    c = connect_with(&h, (struct pfx_options){0});
    OK(pfx_pool_view(c, 0, &v));
    ck_assert_ptr_nonnull(v.blocks);
    ck_assert_ptr_null(v.slots);
    ck_assert_ptr_null(pfx_slot_address(c, 0, 0));
    ck_assert_ptr_null(pfx_slot_address(c, 0, 1));
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* ---- digests ----------------------------------------------------------------------------- */

static void digest_is(const char *text, const char *hex)
{
    uint8_t digest[32];
    char got[65];
    pfx_model_digest(text, digest);
    for (int i = 0; i < 32; i++)
        snprintf(got + 2 * i, 3, "%02x", digest[i]);
    ck_assert_str_eq(got, hex);
}

/* The examples of FIPS 180-2, and lengths around a block of the hash. */
START_TEST(digest_of_known_texts)
{
    digest_is("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    digest_is("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest_is(NULL, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    char *million = malloc(1000001);
    memset(million, 'a', 1000000);
    million[1000000] = 0;
    digest_is(million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    million[64] = 0;
    digest_is(million, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
    million[55] = 0;
    digest_is(million, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    free(million);
}
END_TEST

/* A daemon started with --model TEXT has it; without, a digest of zeros. */
START_TEST(digest_of_the_daemon)
{
    struct host h;
    const char *text = "llama-3-70b bf16, scales 1, layers first";
    HOST_START(&h, "--blocks", "8", "--model", text);
    struct pfx_layout l = {
        .size = sizeof l, .block_tokens = 16, .block_bytes = 65536, .n_devices = 1};
    struct pfx_options o = worker_options(&h);
    pfx *c;
    o.layout = &l;
    ck_assert_int_eq(pfx_open(&o, &c), PFX_EMISMATCH);
    pfx_model_digest(text, l.model_digest);
    OK(pfx_open(&o, &c));
    pfx_close(c);
    host_stop(&h);
    static const uint8_t zeros[32];
    HOST_START(&h, "--blocks", "8");
    c = connect_with(&h, (struct pfx_options){0});
    ck_assert_mem_eq(pfx_geometry(c)->layout.model_digest, zeros, 32);
    pfx_close(c);
    host_stop(&h);
}
END_TEST

/* ---- sentences --------------------------------------------------------------------------- */

static void is_sentence(const char *text)
{
    ck_assert_ptr_nonnull(text);
    ck_assert_msg(strlen(text) > 15 && strchr(text, ' ') && !strchr(text, '\n') &&
                      isalpha((unsigned char)text[0]),
                  "\"%s\"", text);
}

START_TEST(a_sentence_for_each_error)
{
    const char *all[14];
    for (int e = 1; e <= 13; e++) {
        all[e] = pfx_strerror(-e);
        is_sentence(all[e]);
        ck_assert_ptr_eq(pfx_strerror(-e), all[e]); /* static */
        for (int k = 1; k < e; k++)
            ck_assert_str_ne(all[k], all[e]);
    }
    ck_assert_int_eq(PFX_EMISMATCH, -13); /* the last one */
    const int no_error[] = {0, 1, INT_MAX}, unknown[] = {-14, -1000, INT_MIN};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_str_eq(pfx_strerror(no_error[i]), pfx_strerror(0));
        is_sentence(pfx_strerror(unknown[i]));
    }
}
END_TEST

/* pfx_why: on the last failure of this connection, or of pfx_open. */
START_TEST(a_sentence_for_the_last_failure)
{
    struct fixture f;
    fixture_open(&f);
    pfx *other = connect_with(&f.h, (struct pfx_options){0});
    is_sentence(pfx_why(NULL));
    char first[256] = "", second[256] = "";
    ck_assert_int_eq(pfx_release(f.c, 99), PFX_ESTALE);
    strncpy(first, pfx_why(f.c), sizeof first - 1);
    is_sentence(pfx_why(f.c));
    ck_assert_int_eq(pfx_lookup(f.c, NULL, NULL), PFX_EINVAL);
    strncpy(second, pfx_why(f.c), sizeof second - 1);
    is_sentence(pfx_why(f.c));
    ck_assert_str_ne(first, second);
    ck_assert_str_ne(pfx_why(other), second); /* each its own */
    pfx_close(other);
    fixture_close(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("pool");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60 * SLOW);
    tcase_add_test(t, geometry_of_every_option);
    tcase_add_test(t, epoch_changes_with_the_daemon);
    tcase_add_test(t, views_of_what_is_mapped);
    tcase_add_test(t, pages_are_shared_and_apart);
    tcase_add_test(t, pages_after_the_death);
    tcase_add_test(t, layouts_of_one_kind);
    tcase_add_test(t, digest_of_known_texts);
    tcase_add_test(t, digest_of_the_daemon);
    tcase_add_test(t, a_sentence_for_each_error);
    tcase_add_test(t, a_sentence_for_the_last_failure);
    suite_add_tcase(s, t);
    return s;
}
