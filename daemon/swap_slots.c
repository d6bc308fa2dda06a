/*
 * swap_slots.c - which slots are free. A bit a slot, and a bit a word of those; the search goes
 * round from where it last found something, so that slots that are taken one after the other lie
 * one after the other in the file.
 *
 *      known    slots below it exist and have been counted; from there on all bits say "taken"
 *      used     during the scan: what the index thread keeps; all other bits are free when it is
 * over
 */
#include "daemon/swap_private.h"

#include <stdio.h>
#include <stdlib.h>

struct file_slots {
    const struct swap_file *file;
    uint32_t first, n, known, n_free, cursor;
    uint64_t *free;  /* a bit a slot */
    uint64_t *words; /* a bit a word of free */
};

struct slots {
    const struct swap_store *store;
    unsigned n_files, next;
    bool scanning;
    uint64_t *used; /* by number in the store; NULL after the scan */
    uint32_t n_retired;
    struct file_slots file[];
};

static size_t words_for(uint64_t bits)
{
    return (size_t)(bits / 64 + 1);
}

static bool bit_get(const uint64_t *bits, uint32_t i)
{
    return bits[i / 64] >> i % 64 & 1;
}

static void bit_set(uint64_t *bits, uint32_t i)
{
    bits[i / 64] |= 1ull << i % 64;
}

/* A slot that two think is theirs: a wrong byte later. Stopping loses only time. */
static void check(bool right, const char *what, uint32_t slot)
{
    if (right)
        return;
    fprintf(stderr, "prefixd: disk slot %u %s: this is a fault of prefixd, please report it\n",
            slot, what);
    abort();
}

struct slots *slots_new(const struct swap_store *s)
{
    struct slots *l = calloc(1, sizeof *l + s->n_files * sizeof l->file[0]);
    if (!l)
        return NULL;
    l->store = s;
    l->scanning = true;
    l->used = calloc(words_for(s->n_slots), sizeof *l->used);
    bool whole = l->used != NULL;
    for (unsigned i = 0; i < s->n_files; i++) {
        struct file_slots *f = &l->file[i];
        f->file = &s->file[i];
        f->first = s->file[i].first_slot;
        f->n = s->file[i].n_slots;
        f->free = calloc(words_for(f->n), sizeof *f->free);
        f->words = calloc(words_for(words_for(f->n)), sizeof *f->words);
        l->n_files++;
        whole &= f->free && f->words;
    }
    if (whole)
        return l;
    store_slots_free(l);
    return NULL;
}

void store_slots_free(struct slots *l)
{
    for (unsigned i = 0; l && i < l->n_files; i++) {
        free(l->file[i].free);
        free(l->file[i].words);
    }
    if (l)
        free(l->used);
    free(l);
}

static void set_free(struct file_slots *f, uint32_t i)
{
    bit_set(f->free, i);
    bit_set(f->words, i / 64);
    f->n_free++;
}

static void set_taken(struct file_slots *f, uint32_t i)
{
    f->free[i / 64] &= ~(1ull << i % 64);
    if (!f->free[i / 64])
        f->words[i / 64 / 64] &= ~(1ull << i / 64 % 64);
    f->n_free--;
}

/* Slots that exist now, and did not before. */
void slots_grown(struct slots *l)
{
    for (unsigned i = 0; !l->scanning && i < l->n_files; i++) {
        struct file_slots *f = &l->file[i];
        uint32_t ready = shm_load_acquire(&f->file->ready);
        for (; f->known < ready; f->known++)
            set_free(f, f->known);
    }
}

void slots_scan_over(struct slots *l)
{
    for (unsigned i = 0; i < l->n_files; i++) {
        struct file_slots *f = &l->file[i];
        uint32_t ready = shm_load_acquire(&f->file->ready);
        for (; f->known < ready; f->known++) {
            uint32_t slot = f->first + f->known;
            bool retired = bit_get(l->store->retired, slot);
            l->n_retired += retired;
            if (!retired && !bit_get(l->used, slot))
                set_free(f, f->known);
        }
    }
    free(l->used);
    l->used = NULL;
    l->scanning = false;
}

static struct file_slots *slots_file(struct slots *l, uint32_t slot)
{
    for (unsigned i = 0; l && i < l->n_files; i++)
        if (slot - l->file[i].first < l->file[i].n)
            return &l->file[i];
    check(false, "does not exist", slot);
    return NULL;
}

/* The first free slot at or after `from`, else the first of all; the file has one. */
static uint32_t find_free(const struct file_slots *f, uint32_t from)
{
    uint64_t rest = f->free[from / 64] >> from % 64;
    if (rest)
        return from + (uint32_t)__builtin_ctzll(rest);
    size_t n = words_for(words_for(f->n));
    uint32_t word = from / 64 + 1;
    for (size_t k = 0; k <= n; k++) {
        size_t at = (word / 64 + k) % n;
        uint64_t bits = f->words[at];
        if (k == 0)
            bits &= ~0ull << word % 64;
        if (bits) {
            word = (uint32_t)(at * 64) + (uint32_t)__builtin_ctzll(bits);
            return word * 64 + (uint32_t)__builtin_ctzll(f->free[word]);
        }
    }
    check(false, "is not free, as was counted", from);
    return 0;
}

static uint32_t take_run(struct file_slots *f, uint32_t n, uint32_t *slot)
{
    uint32_t at = find_free(f, f->cursor), got = 0;
    while (got < n && at + got < f->n && bit_get(f->free, at + got))
        set_taken(f, at + got++);
    f->cursor = at + got < f->n ? at + got : 0;
    *slot = f->first + at;
    return got;
}

/* ---- swap.h ---- */

uint32_t swap_slots(const struct swap *sw, enum swap_store_kind store)
{
    return sw->store[store].n_slots;
}

uint32_t swap_ready(const struct swap *sw, enum swap_store_kind store)
{
    const struct slots *l = sw->slots[store];
    uint32_t n = 0;
    for (unsigned i = 0; i < l->n_files; i++)
        n += l->file[i].known;
    return n;
}

static bool sick(const struct file_slots *f)
{
    return shm_load(&f->file->sick);
}

static bool all_sick(const struct slots *l)
{
    for (unsigned i = 0; i < l->n_files; i++)
        if (!sick(&l->file[i]))
            return false;
    return true;
}

static uint32_t free_in(const struct slots *l, bool sick_too)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < l->n_files; i++)
        if (sick_too || !sick(&l->file[i]))
            n += l->file[i].n_free;
    return n;
}

uint32_t swap_free(const struct swap *sw, enum swap_store_kind store)
{
    const struct slots *l = sw->slots[store];
    return free_in(l, all_sick(l));
}

bool swap_will_grow(const struct swap *sw, enum swap_store_kind store)
{
    const struct slots *l = sw->slots[store];
    for (unsigned i = 0; i < l->n_files; i++) {
        const struct file_slots *f = &l->file[i];
        if (f->known < f->n && !sick(f) && !shm_load(&f->file->full))
            return true;
    }
    return false;
}

static void tell_taken(struct swap *sw, enum swap_store_kind store)
{
    shm_store(&sw->taken[store], swap_ready(sw, store) - free_in(sw->slots[store], true));
}

uint32_t swap_slots_take(struct swap *sw, enum swap_store_kind store, uint32_t n, uint32_t *slot)
{
    struct slots *l = sw->slots[store];
    bool sick_too = all_sick(l);
    for (unsigned k = 0; k < l->n_files; k++) {
        struct file_slots *f = &l->file[l->next++ % l->n_files];
        if (!f->n_free || !n || (!sick_too && sick(f)))
            continue;
        uint32_t got = take_run(f, n, slot);
        tell_taken(sw, store);
        return got;
    }
    return 0;
}

void swap_slot_give(struct swap *sw, enum swap_store_kind store, uint32_t slot)
{
    struct slots *l = sw->slots[store];
    struct file_slots *f = slots_file(l, slot);
    if (l->used) { /* found by the scan, and no longer kept */
        check(bit_get(l->used, slot), "was not found", slot);
        l->used[slot / 64] &= ~(1ull << slot % 64);
        return;
    }
    check(slot - f->first < f->known && !bit_get(f->free, slot - f->first), "was free", slot);
    set_free(f, slot - f->first);
    tell_taken(sw, store);
}

void swap_slot_used(struct swap *sw, enum swap_store_kind store, uint32_t slot)
{
    struct slots *l = sw->slots[store];
    (void)slots_file(l, slot);
    check(l->used && !bit_get(l->used, slot), "was found before", slot);
    bit_set(l->used, slot);
}
