#include "daemon/options.h"

#include "daemon/geometry.h"
#include "daemon/option_table.h"
#include "shm/socket_path.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SPIN_US = 50, DEFAULT_BLOCKS = 1024 };

/* ---- command line ------------------------------------------------------------------ */

static int bad(const char *sentence)
{
    fprintf(stderr, "prefixd: %s\n", sentence);
    return 2;
}

static int bad_value(const struct row *row, const char *value, const struct why *why)
{
    fprintf(stderr, "prefixd: --%s %s: %s\n", row->name, value, why->text);
    return 2;
}

/* Only looks: which row and value stand at argv[*i]? Steps over the value. */
static int read_argument(int argc, char **argv, int *i, const struct row **row, const char **value)
{
    const char *name = argv[*i];
    if (strncmp(name, "--", 2) != 0 || !name[2]) {
        fprintf(stderr, "prefixd: %s: not an option; see --help\n", name);
        return 2;
    }
    const char *equals = strchr(name, '=');
    *row = row_find(name + 2, equals ? (size_t)(equals - name - 2) : strlen(name + 2));
    if (!*row) {
        fprintf(stderr, "prefixd: %s: there is no such option; see --help\n", name);
        return 2;
    }
    if (equals)
        *value = equals + 1;
    else if (!(*row)->arg)
        *value = "yes";
    else if (++*i < argc)
        *value = argv[*i];
    else {
        fprintf(stderr, "prefixd: %s: it takes a value, %s\n", name, (*row)->arg);
        return 2;
    }
    return OPTIONS_RUN;
}

static int read_command_line(struct reading *r, int argc, char **argv, bool config_only)
{
    for (int i = 1; i < argc; i++) {
        const struct row *row;
        const char *value;
        int rc = read_argument(argc, argv, &i, &row, &value);
        if (rc != OPTIONS_RUN)
            return rc;
        if (row_is_config(row) != config_only)
            continue;
        if (!row_give(r, row, value))
            return bad_value(row, value, &r->why);
    }
    return OPTIONS_RUN;
}

/* ---- configuration file ------------------------------------------------------------ */

struct file_reading {
    struct reading *r;
    FILE *file;
    bool too_long;
    char sentence[512];
};

/* inih would read the rest of a long line as another line, and an indented one as more of the value
 * before it. */
static char *read_line(char *line, int n, void *arg)
{
    struct file_reading *f = arg;
    if (!fgets(line, n, f->file))
        return NULL;
    size_t length = strlen(line);
    if (length + 1 == (size_t)n && line[length - 1] != '\n' && !feof(f->file))
        f->too_long = true;
    size_t indent = strspn(line, " \t");
    memmove(line, line + indent, length - indent + 1);
    return f->too_long ? NULL : line;
}

static int read_entry(void *arg, const char *section, const char *name, const char *value)
{
    struct file_reading *f = arg;
    const struct row *row = row_find(name, strlen(name));
    if (f->sentence[0])
        return 0;
    if (section[0] && strcmp(section, "prefixd") != 0)
        snprintf(f->sentence, sizeof f->sentence, "there is no section [%s]", section);
    else if (!row || row_is_config(row))
        snprintf(f->sentence, sizeof f->sentence, "%s: there is no such option", name);
    else if (!row_give(f->r, row, value))
        snprintf(f->sentence, sizeof f->sentence, "%s = %s: %s", name, value, f->r->why.text);
    return f->sentence[0] == 0;
}

static int read_file(struct reading *r)
{
    struct file_reading f = {.r = r, .file = fopen(r->config, "re")};
    if (!f.file) {
        fprintf(stderr, "prefixd: --config %s: %s\n", r->config, strerror(errno));
        return 2;
    }
    int line = ini_parse_stream(read_line, &f, read_entry, &f);
    bool broken = ferror(f.file);
    fclose(f.file);
    if (broken || f.too_long || line == -2)
        fprintf(stderr, "prefixd: --config %s: %s\n", r->config,
                f.too_long ? "a line is too long" : "it could not be read");
    else if (line > 0)
        fprintf(stderr, "prefixd: --config %s, line %d: %s\n", r->config, line,
                f.sentence[0] ? f.sentence : "not of the form `option = value`");
    return broken || f.too_long || line ? 2 : OPTIONS_RUN;
}

/* ---- the directories of --swap: found out now, though the files are made with the pool ---- */

static bool path_usable(const struct options *o, uint32_t i, struct stat *st, struct why *why)
{
    if (stat(o->swap_path[i], &st[i]))
        return value_refuse(why, "it cannot be used: %s; it must be a directory that is there",
                            strerror(errno));
    if (!S_ISDIR(st[i].st_mode))
        return value_refuse(why, "it is not a directory; name the one that is to hold the file");
    if (faccessat(AT_FDCWD, o->swap_path[i], W_OK | X_OK, AT_EACCESS))
        return value_refuse(why,
                            "nothing can be written there: %s; give the daemon's user that right",
                            strerror(errno));
    for (uint32_t k = 0; k < i; k++)
        if (st[k].st_dev == st[i].st_dev && st[k].st_ino == st[i].st_ino)
            return value_refuse(why, "it is the same directory as --swap %s", o->swap_path[k]);
    return true;
}

static int check_swap(struct reading *r)
{
    static const char *const names[] = {"swap-write", "swap-admit", "swap-depth"};
    struct options *o = r->o;
    struct stat st[SWAP_PATHS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n_swap; i++)
        if (!path_usable(o, i, st, &r->why)) {
            fprintf(stderr, "prefixd: --swap %s: %s\n", o->swap_path[i], r->why.text);
            return 2;
        }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!o->n_swap && row_given(r, names[i]))
            o->without_swap[n++] = names[i];
    return OPTIONS_RUN;
}

/* ---- all together ------------------------------------------------------------------ */

static bool set_presets(struct reading *r)
{
    for (unsigned i = 0; i < row_count(); i++)
        if (row_at(i)->preset && !row_at(i)->set(r, row_at(i), row_at(i)->preset))
            return false;
    cpu_set_t cpus;
    r->o->spin_us =
        sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2 ? 0 : SPIN_US;
    return true;
}

static int choose_socket(struct reading *r)
{
    struct socket_paths paths;
    if (row_given(r, "socket"))
        return OPTIONS_RUN;
    socket_paths(&paths, NULL);
    const struct row *row = row_find("socket", strlen("socket"));
    if (row->set(r, row, paths.at[0]))
        return OPTIONS_RUN;
    fprintf(stderr, "prefixd: %s: %s; give --socket\n", paths.at[0], r->why.text);
    return 2;
}

static int check_pool(struct reading *r)
{
    struct options *o = r->o;
    if (row_given(r, "snapshots") != row_given(r, "snapshot-bytes"))
        return bad(row_given(r, "snapshots")
                       ? "--snapshots: give --snapshot-bytes SIZE as well, how large a state is"
                       : "--snapshot-bytes: give --snapshots N as well, how many slots");
    if ((o->snapshots == 0) != (o->layout.snapshot_bytes == 0))
        return bad("--snapshots and --snapshot-bytes must both be 0 or both be more");
    if (o->gpus_listed && row_given(r, "devices") && o->layout.n_devices != o->n_gpus)
        return bad("--devices: --device lists another number of GPUs; one shard is on each");
    if (o->gpus_listed)
        o->layout.n_devices = o->n_gpus;
    o->waits = o->bytes && !row_given(r, "blocks") && !row_given(r, "block-tokens") &&
               !row_given(r, "block-bytes") && !row_given(r, "devices") &&
               !row_given(r, "snapshots");
    if (o->waits)
        return o->bytes >= REGION_PAGE ? OPTIONS_RUN
                                       : bad("--bytes: it is smaller than any useful block");
    if (!o->bytes && !o->blocks)
        o->blocks = DEFAULT_BLOCKS;
    struct geometry g;
    char why[256];
    return geometry_plan(o, &o->layout, &g, why, sizeof why) ? OPTIONS_RUN : bad(why);
}

int options_read(struct options *o, int argc, char **argv)
{
    *o = (struct options){0};
    struct reading r = {.o = o};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            print_help();
        else if (strcmp(argv[i], "--version") == 0)
            printf("prefixd %s\n", PREFIXD_VERSION);
        else
            continue;
        if (fflush(stdout) == 0 && !ferror(stdout))
            return 0;
        fprintf(stderr, "prefixd: the output could not be written: %s\n", strerror(errno));
        return 1;
    }
    if (!set_presets(&r))
        return bad(r.why.text);
    int rc = read_command_line(&r, argc, argv, true);
    if (rc == OPTIONS_RUN && r.config)
        rc = read_file(&r);
    if (rc == OPTIONS_RUN)
        rc = read_command_line(&r, argc, argv, false);
    if (rc == OPTIONS_RUN)
        rc = choose_socket(&r);
    if (rc == OPTIONS_RUN)
        rc = check_swap(&r);
    return rc == OPTIONS_RUN ? check_pool(&r) : rc;
}
