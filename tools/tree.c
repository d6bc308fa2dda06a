/*
 * What is cached, read from the shared index alone.
 *
 * The daemon may change the tree meanwhile, or stand still in the middle of a change. So this is a
 * reader like any worker (shm/index_read.c): a node is copied out and counts if its version did not
 * move; the children of a node are collected from its treap and count if they name it as their
 * parent; its snapshots count under its version, like its run. A node that never stands still is
 * shown as `changing`. Every loop is bounded, and the whole walk visits at most as many nodes as
 * the index can hold.
 *
 * The path from a root may be thousands of nodes deep: the walk keeps its own stack and prints as
 * it goes, so neither it nor its JSON lives in memory whole.
 */
#include "tools/tool.h"
#include "shm/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 64 };

static struct {
    bool tokens;
    uint64_t space, depth;
} opt = {.space = UINT64_MAX, .depth = UINT64_MAX};

static const struct option_row options[] = {
    {"space", "N", OPTION_NUMBER, &opt.space, 0, "only this space"},
    {"depth", "N", OPTION_NUMBER, &opt.depth, 0, "at most N nodes below each other"},
    {"tokens", NULL, OPTION_FLAG, &opt.tokens, 0, "show the tokens"},
    {0},
};

struct ids {
    uint32_t *id;
    uint32_t n, room;
};

struct level {
    struct index_node node;
    uint32_t *child; /* owned */
    uint32_t n_children, next, printed;
};

struct walk {
    const struct index_view *view;
    bool json;
    uint64_t visited;
    struct level *level;
    uint32_t n_levels, room;
};

static void *grow(void *array, uint32_t n, uint32_t *room, size_t bytes)
{
    if (n < *room)
        return array;
    *room = *room ? *room * 2 : 64;
    array = reallocarray(array, *room, bytes);
    if (!array) {
        tool_fail(0, "out of memory.");
        exit(EXIT_DAEMON);
    }
    return array;
}

static void push_id(struct ids *ids, uint32_t id)
{
    ids->id = grow(ids->id, ids->n, &ids->room, sizeof *ids->id);
    ids->id[ids->n++] = id;
}

/* A snapshot as it hangs on a node, and the tokens after its last whole block. */
struct mark {
    struct index_snapshot entry;
    uint32_t *residue; /* owned; NULL: not wanted */
};

struct marks {
    struct mark *mark;
    uint32_t n, room;
};

static void marks_clear(struct marks *m)
{
    while (m->n)
        free(m->mark[--m->n].residue);
}

static void marks_free(struct marks *m)
{
    marks_clear(m);
    free(m->mark);
}

/* ---- reading -------------------------------------------------------------------------- */

static void copy_words(void *to, const void *shared, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = shm_load((const uint64_t *)(const void *)((const char *)shared + at));
        memcpy((char *)to + at, &word, sizeof word);
    }
}

static bool valid(const struct index_view *v, uint32_t id)
{
    return id != 0 && id < v->plan.max_nodes;
}

/* Children and snapshots are treaps of the same make: ids from 1 to `most`, and two links. */
typedef const uint32_t *links_at(const struct index_view *v, uint32_t id); /* left, right */

static const uint32_t *node_links(const struct index_view *v, uint32_t id)
{
    return &index_node_at(v, id)->left;
}

static const uint32_t *snapshot_links(const struct index_view *v, uint32_t id)
{
    return &index_snapshot_at(v, id)->left;
}

static_assert(offsetof(struct index_node, right) == offsetof(struct index_node, left) + 4 &&
                  offsetof(struct index_snapshot, right) ==
                      offsetof(struct index_snapshot, left) + 4,
              "the right link follows the left one");

/* The treap below `root` in order. `steps` bounds a walk through links that move. */
static void treap_ids(const struct index_view *v, uint32_t root, uint32_t most, links_at *links,
                      struct ids *out)
{
    struct ids spine = {0};
    uint64_t steps = 0;
    uint32_t id = root;
    out->n = 0;
    while (((id != 0 && id <= most) || spine.n) && steps++ <= 2ull * most + 2) {
        if (id != 0 && id <= most && spine.n < most) {
            push_id(&spine, id);
            id = shm_load(links(v, id));
        } else {
            id = spine.id[--spine.n];
            push_id(out, id);
            id = shm_load(links(v, id) + 1);
        }
    }
    free(spine.id);
}

static void push_mark(const struct index_view *v, uint32_t id, struct marks *out)
{
    struct mark m = {0};
    copy_words(&m.entry, index_snapshot_at(v, id), sizeof m.entry);
    if (opt.tokens) {
        size_t n = v->params.block_tokens;
        m.residue = malloc(n * sizeof *m.residue);
        if (m.residue)
            tokens_copy(m.residue, index_residue_at(v, id), n);
    }
    out->mark = grow(out->mark, out->n, &out->room, sizeof *out->mark);
    out->mark[out->n++] = m;
}

static void collect_marks(const struct index_view *v, uint32_t root, struct marks *out)
{
    struct ids ids = {0};
    marks_clear(out);
    treap_ids(v, root, v->params.max_snapshots, snapshot_links, &ids);
    for (uint32_t i = 0; i < ids.n; i++)
        push_mark(v, ids.id[i], out);
    free(ids.id);
}

/* Copy a node, and if wanted the tokens of its run and its snapshots, as one state. False: it never
 * stood still. */
static bool read_node(const struct index_view *v, uint32_t id, struct index_node *node,
                      uint32_t *tokens, struct marks *marks)
{
    const struct index_node *shared = index_node_at(v, id);
    for (int tries = 0; tries < TRIES; tries++) {
        uint32_t version = shm_load_acquire(&shared->version); /* VERSION */
        copy_words(node, shared, sizeof *node);
        bool possible = !(version & 1) && node->n_blocks <= NODE_BLOCKS &&
                        node->extent <= v->plan.n_units &&
                        node->n_blocks <= v->plan.n_units - node->extent;
        if (tokens && possible)
            tokens_copy(tokens, index_tokens_at(v, node->extent),
                        (size_t)node->n_blocks * v->params.block_tokens);
        if (marks && possible)
            collect_marks(v, node->snapshots, marks);
        shm_read_fence();
        if (possible && shm_load(&shared->version) == version)
            return true;
        cpu_relax();
    }
    if (marks)
        marks_clear(marks);
    return false;
}

/* The children of a node that read_node has copied. */
static struct ids read_children(const struct index_view *v, uint32_t id, struct index_node node)
{
    struct ids out = {0};
    uint64_t identity = node.identity;
    for (int tries = 0; tries < TRIES; tries++) {
        treap_ids(v, node.children, v->plan.max_nodes - 1, node_links, &out);
        shm_read_fence();
        if (shm_load(&index_node_at(v, id)->version) == node.version)
            break;
        if (!read_node(v, id, &node, NULL, NULL) || node.identity != identity) {
            out.n = 0; /* it has become another node */
            break;
        }
    }
    return out;
}

/* ---- printing ------------------------------------------------------------------------- */

static void print_tokens(const struct walk *w, const char *name, const uint32_t *tokens, size_t n)
{
    printf(w->json ? ",\"%s\":[" : "  %s", name);
    for (size_t i = 0; i < n; i++)
        printf(w->json ? "%s%u" : "%s %u", w->json && i ? "," : "", tokens[i]);
    if (w->json)
        putchar(']');
}

static void print_mark(const struct walk *w, const struct mark *m)
{
    static const char *const kinds[] = {
        [SNAPSHOT_EXACT] = "exact", [SNAPSHOT_TAIL] = "tail", [SNAPSHOT_SIBLING] = "sibling"};
    const struct index_snapshot *s = &m->entry;
    const char *kind = s->kind <= SNAPSHOT_SIBLING ? kinds[s->kind] : "?";
    uint32_t rest = s->depth % w->view->params.block_tokens;
    bool resident = s->state == SNAPSHOT_RESIDENT;
    unsigned long long at = resident ? s->slot : s->tier_key;
    if (w->json)
        printf("{\"depth_tokens\":%u,\"kind\":\"%s\",\"state\":\"%s\",\"%s\":%llu,"
               "\"session\":\"%016llx\"",
               s->depth, kind, resident ? "resident" : "spilled", resident ? "slot" : "tier_key",
               at, (unsigned long long)s->session);
    else
        printf("%*ssnapshot at %u token%s  %s  %s %llu", 2 * (int)w->n_levels + 2, "", s->depth,
               PLURAL(s->depth), kind, resident ? "slot" : "spilled, key", at);
    if (!w->json && s->session)
        printf("  %ssession %016llx", s->kind == SNAPSHOT_EXACT ? "saved by " : "",
               (unsigned long long)s->session);
    if (m->residue && rest)
        print_tokens(w, "residue", m->residue, rest);
    printf(w->json ? "}" : "\n");
}

static int compare_marks(const void *a, const void *b)
{
    const struct index_snapshot *x = &((const struct mark *)a)->entry;
    const struct index_snapshot *y = &((const struct mark *)b)->entry;
    if (x->depth != y->depth)
        return x->depth < y->depth ? -1 : 1;
    return x->kind - y->kind;
}

/* By depth. */
static void print_marks(const struct walk *w, const struct marks *marks)
{
    if (marks->n)
        qsort(marks->mark, marks->n, sizeof *marks->mark, compare_marks);
    if (w->json)
        printf(",\"snapshots\":[");
    for (uint32_t i = 0; i < marks->n; i++) {
        if (w->json && i)
            putchar(',');
        print_mark(w, &marks->mark[i]);
    }
    if (w->json)
        putchar(']');
}

static void print_node(const struct walk *w, uint32_t id, const struct index_node *node,
                       uint32_t n_children, const uint32_t *tokens, bool changing)
{
    if (w->json) {
        printf("{\"node\":%u,\"depth\":%u,\"blocks\":%u,\"partial_tokens\":%u,\"n_children\":%u",
               id, node->start, node->n_blocks, node->n_partial, n_children);
        if (changing)
            printf(",\"changing\":true");
    } else {
        printf("%*snode %u  depth %u  blocks %u", 2 * (int)w->n_levels, "", id, node->start,
               node->n_blocks);
        if (node->n_partial)
            printf("  partial, %u token%s", node->n_partial, PLURAL(node->n_partial));
        if (n_children)
            printf("  children %u", n_children);
        if (changing)
            printf("  changing");
    }
    if (tokens)
        print_tokens(w, "tokens", tokens,
                     node->n_partial ? node->n_partial
                                     : (size_t)node->n_blocks * w->view->params.block_tokens);
    if (!w->json)
        putchar('\n');
}

static void print_tenant(const struct index_space *s, bool json)
{
    char hex[2 * TENANT_MAX + 1];
    print_hex(hex, s->tenant, s->tenant_len);
    if (json)
        printf("{\"space\":%llu,\"tenant\":\"%s\",\"adapter_id\":%llu,\"adapter_generation\":%llu,"
               "\"flushes\":%llu,\"dormant\":%s",
               (unsigned long long)s->number, hex, (unsigned long long)s->adapter_id,
               (unsigned long long)s->adapter_generation, (unsigned long long)s->flushes,
               s->state == SPACE_DORMANT ? "true" : "false");
    else
        printf("space %llu  tenant %s  adapter %llu generation %llu  flushed %llu time%s%s\n",
               (unsigned long long)s->number, *hex ? hex : "-", (unsigned long long)s->adapter_id,
               (unsigned long long)s->adapter_generation, (unsigned long long)s->flushes,
               PLURAL(s->flushes), s->state == SPACE_DORMANT ? "  dormant" : "");
}

/* ---- walking -------------------------------------------------------------------------- */

/* Print a node and go below it, if it is still there: a child names the parent's identity, a root
 * (`parent` NULL) has this one. */
static void enter(struct walk *w, uint32_t id, struct level *parent, uint64_t identity)
{
    const struct index_view *v = w->view;
    uint32_t *tokens = NULL;
    if (opt.tokens)
        tokens = malloc((size_t)NODE_BLOCKS * v->params.block_tokens * sizeof *tokens);
    struct level here = {0};
    struct marks marks = {0};
    bool still = read_node(v, id, &here.node, tokens, &marks);
    uint64_t its = parent ? here.node.parent_identity : here.node.identity;
    if (still && its != identity) {
        marks_free(&marks);
        free(tokens);
        return; /* another's by now */
    }
    struct ids children = {0};
    if (still)
        children = read_children(v, id, here.node);
    here.child = children.id;
    here.n_children = w->n_levels < opt.depth ? children.n : 0;
    if (w->json && parent && parent->printed++)
        putchar(',');
    print_node(w, id, &here.node, children.n, still ? tokens : NULL, !still);
    print_marks(w, &marks);
    if (w->json)
        printf(",\"children\":[");
    marks_free(&marks);
    free(tokens);
    w->visited++;
    w->level = grow(w->level, w->n_levels, &w->room, sizeof *w->level);
    w->level[w->n_levels++] = here;
}

static void leave(struct walk *w)
{
    free(w->level[--w->n_levels].child);
    if (w->json)
        fputs("]}", stdout);
}

static void walk_root(struct walk *w, uint32_t root, uint64_t identity)
{
    enter(w, root, NULL, identity);
    if (w->json && w->n_levels == 0)
        printf("null"); /* it has been flushed */
    while (w->n_levels) {
        struct level *top = &w->level[w->n_levels - 1];
        if (top->next == top->n_children || w->visited > w->view->plan.max_nodes)
            leave(w);
        else
            enter(w, top->child[top->next++], top, top->node.identity);
    }
}

/* With the identity of its root: the number alone may be another space's root a moment later. */
static bool read_space(const struct index_view *v, uint32_t slot, struct index_space *space,
                       uint64_t *identity)
{
    const struct index_space *shared = index_space_at(v, slot);
    for (int tries = 0; tries < TRIES; tries++) {
        uint32_t version = shm_load_acquire(&shared->version); /* VERSION */
        copy_words(space, shared, sizeof *space);
        *identity = valid(v, space->root) ? shm_load(&index_node_at(v, space->root)->identity) : 0;
        shm_read_fence();
        if (!(version & 1) && shm_load(&shared->version) == version)
            return space->state != SPACE_FREE && space->tenant_len <= TENANT_MAX;
        cpu_relax();
    }
    return false;
}

static uint32_t walk_spaces(struct walk *w)
{
    uint32_t shown = 0;
    for (uint32_t slot = 0; slot < w->view->params.max_spaces; slot++) {
        struct index_space s;
        uint64_t identity;
        if (!read_space(w->view, slot, &s, &identity))
            continue;
        if (opt.space != UINT64_MAX && s.number != opt.space)
            continue;
        if (w->json && shown)
            putchar(',');
        print_tenant(&s, w->json);
        if (w->json)
            printf(",\"root\":");
        if (valid(w->view, s.root))
            walk_root(w, s.root, identity);
        else if (w->json)
            printf("null");
        if (w->json)
            putchar('}');
        shown++;
    }
    return shown;
}

static int tree_run(const struct tool *t, int n, char **arg)
{
    if (n != 0)
        return tool_fail(EXIT_USAGE, "takes no argument, not '%s'.", arg[0]);
    struct daemon_index di;
    int code = daemon_index_open(t, &di);
    if (code != EXIT_GOOD)
        return code;
    struct walk w = {.view = &di.view, .json = t->json};
    if (t->json)
        printf("{\"block_tokens\":%u,\"spaces\":[", di.ready ? di.view.params.block_tokens : 0);
    uint32_t shown = di.ready ? walk_spaces(&w) : 0;
    if (t->json)
        printf("]}\n");
    else if (!di.ready)
        daemon_index_waits(t, &di);
    if (opt.space != UINT64_MAX && shown == 0)
        code = tool_fail(EXIT_USAGE, "there is no space %llu; `prefixctl tree` lists them.",
                         (unsigned long long)opt.space);
    free(w.level);
    daemon_index_close(&di);
    return code;
}

const struct command tree_command = {
    "tree",
    "",
    "the cached prefixes: spaces, nodes, their depth and length in blocks; snapshots",
    "Tenants and sessions are in hex. Tokens are hidden unless asked for. A snapshot stands below\n"
    "the node that has the last whole block before it; its depth is in tokens, and its residue is\n"
    "the tokens between that block and the depth. An exact one says who saved it, and serves all.\n"
    "Reads shared memory only: works while the daemon is stopped. A user who may attach but not\n"
    "look into the daemon's process is attached as a worker for a moment instead: that needs an\n"
    "answer of the daemon.",
    options,
    tree_run,
};
