/* swap_set.c - all files of the disk tier: which belong together, and how their slots are numbered.
 */
#include "daemon/log.h"
#include "daemon/swap_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

/* Which of the files that were kept belong together? Those of the set that is complete, else the
 * largest. The others were away while flushes were written, and generations given out. */
static const struct swap_file *choose_set(const struct swap *sw)
{
    const struct swap_file *best = NULL;
    uint64_t best_score = 0;
    for (unsigned i = 0; i < sw->n_files; i++) {
        const struct swap_file *f = &sw->file[i];
        uint64_t n = 0;
        for (unsigned k = 0; k < sw->n_files; k++)
            n += sw->file[k].mates &&
                 !memcmp(sw->file[k].super.set_id, f->super.set_id, sizeof f->super.set_id);
        uint64_t score = !f->mates ? 0 : n + (n == f->mates ? SWAP_STORES * SWAP_PATHS : 0);
        if (score > best_score) {
            best_score = score;
            best = f;
        }
    }
    return best;
}

static bool files_join(struct swap *sw, char *why, size_t n_why)
{
    const struct swap_file *chosen = choose_set(sw);
    uint64_t set[2], n_chosen = 0, mates = chosen ? chosen->mates : 0;
    if (chosen)
        memcpy(set, chosen->super.set_id, sizeof set);
    for (unsigned i = 0; chosen && i < sw->n_files; i++) {
        struct swap_file *f = &sw->file[i];
        int error = 0;
        if (f->mates && memcmp(f->super.set_id, set, sizeof set) != 0) {
            log_info("%s: was not there when the others were last used; emptied", f->name);
            error = file_empty(&sw->store[f->store], f);
        }
        n_chosen += f->mates != 0;
        if (error) {
            errno = -error;
            return swap_fail_errno(why, n_why, f->name, "emptied");
        }
    }
    bool anew = n_chosen != sw->n_files || n_chosen != mates; /* else they are as we left them */
    /* Headers of a missing file may have higher generations. */
    sw->generation_jump = anew && n_chosen != 0;
    if (anew && getrandom(set, sizeof set, 0) != sizeof set)
        return swap_fail_errno(why, n_why, "a random number", "had");
    for (unsigned i = 0; i < sw->n_files; i++) {
        struct swap_file *f = &sw->file[i];
        memcpy(f->super.set_id, set, sizeof set);
        f->super.set_files = sw->n_files;
        int error = f->owed ? head_write(f) : anew ? super_write(f) : 0;
        if (error)
            log_warning("%s: cannot be written (%s); tried again", f->name, strerror(-error));
    }
    return true;
}

static bool store_open(struct swap *sw, struct swap_store *s, char *why, size_t n_why)
{
    s->file = sw->file + sw->n_files;
    for (unsigned p = 0; s->config->record_bytes && p < sw->config.n_paths; p++) {
        uint64_t budget = s->config->bytes[p];
        if (budget < bytes_for(s, EXTENT_SLOTS_MIN, 1))
            continue;
        struct swap_file *f = &s->file[s->n_files];
        enum swap_found found;
        if (!file_begin(f, s->kind, sw->config.path[p], budget)) {
            file_close(f);
            return swap_fail(why, n_why, sw->config.path[p], "needs memory that there is none of");
        }
        if (!file_open(sw, s, f, sw->config.path[p], &found, why, n_why)) {
            file_close(f);
            return false;
        }
        if (found == FOUND_FOREIGN) {
            file_close(f);
            continue;
        }
        f->index = sw->n_files++;
        s->n_files++;
    }
    return true;
}

/* Slots are numbered once it is known which files there are. */
static bool store_number(struct swap *sw, struct swap_store *s, char *why, size_t n_why)
{
    for (unsigned i = 0; i < s->n_files; i++) {
        struct swap_file *f = &s->file[i];
        struct stat st;
        f->first_slot = s->n_slots;
        f->n_slots = NO_SLOT - 1 - s->n_slots; /* that many numbers are left */
        if (s->config->slots_most) /* an old file may have other extents than a new one */
            f->n_slots = s->config->slots_most - s->n_slots;
        f->n_slots = slots_in(s, f, f->budget);
        s->n_slots += f->n_slots;
        if (fstat(f->fd, &st))
            return swap_fail_errno(why, n_why, f->name, "looked at");
        if ((uint64_t)st.st_size > f->budget)
            sw->generation_jump = true;
        int error = file_trim(s, f, (uint64_t)st.st_size);
        errno = -error;
        if (error && error != -ENOSPC && error != -EDQUOT && error != -EFBIG)
            return swap_fail_errno(why, n_why, f->name, "cut to its budget");
    }
    return true;
}

bool files_open(struct swap *sw, char *why, size_t n_why)
{
    sw->file = calloc(SWAP_STORES * SWAP_PATHS, sizeof *sw->file);
    if (!sw->file)
        return swap_fail(why, n_why, "it", "needs memory that there is none of");
    for (int k = 0; k < SWAP_STORES; k++)
        if (!store_open(sw, &sw->store[k], why, n_why))
            return false;
    if (!files_join(sw, why, n_why))
        return false;
    for (int k = 0; k < SWAP_STORES; k++)
        if (!store_number(sw, &sw->store[k], why, n_why))
            return false;
    return true;
}

/* A ring goes some time after it was closed, and its hold on the files with it. */
void files_unlock(struct swap *sw)
{
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    for (unsigned i = 0; i < sw->n_files; i++)
        (void)fcntl(sw->file[i].fd, F_OFD_SETLK, &whole);
}

void files_close(struct swap *sw)
{
    for (unsigned i = 0; i < sw->n_files; i++)
        file_close(&sw->file[i]);
    free(sw->file);
    sw->file = NULL;
    sw->n_files = 0;
}
