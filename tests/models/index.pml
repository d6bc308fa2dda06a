/*
 * index.pml - a walk through the radix tree while the daemon changes it.
 *
 * THE CODE   reader: shm/index_read.c walk_once, child_match, step_again; shm/index_seen.h seen_read,
 *                    seen_still
 *            writer: daemon/index.c node_begin, node_end, node_new, node_free; daemon/index_change.c
 *                    leaf_append, leaf_widen, child_new, node_split, node_merge; daemon/index_remove.c
 *                    node_truncate, leaf_remove
 *            daemon: daemon/index.c index_resolve, which is asked about what the walk has found
 *
 *      node     1 the root, 2 .. 4    parent, start, n, tok: what readers see; busy: its version is odd
 *      reader   stands in node `at` after `depth` blocks, all of them the query's, and looks at r_id
 *               look: 0 no, 1 the version was read, 2 the rest too, and it goes on there for r_equal blocks
 *      at_old, r_old   the identity of that node is another one than the reader has read
 *
 * The query is 0 0 0: a block is 0 if it is what the query has at its depth, else 1. A look of the reader
 * is a load of the version, loads of fields and blocks, and the check of the version; a change of the
 * writer begins the versions, stores node by node, and ends the versions. Between any two of these
 * steps the other side may do as many as it likes. A look whose version moves is over at once: its check
 * fails, whatever it has read or would read (so its loads need not be told apart).
 *
 * PROPERTIES  WALK     what a walk says was so at some moment of the walk: a tree of that moment had as
 *                      many blocks of the query (pfx_peek answers by this alone)
 *             RESOLVE  at any later moment, a place that the daemon finds to be there still is a path
 *                      of which every block is the query's (what pfx_lookup then holds)
 *
 * LEFT OUT   The table of children: the reader is offered any node at any time, in use or not, which
 *            is more than stale and colliding entries could do; so a miss may come at any time as well, and
 *            says nothing here. Bounds of loops: the reader may stop anywhere. Identities: only equality
 *            with one that the reader holds is ever looked at, and they are never used again, so flags say
 *            it all, and the writer may go on for ever. A child names its parent's identity of now: nobody
 *            cuts or frees a node that has children (the guards below, and the audit, say so). Versions
 *            are flags as well (their wrap is 2^31 changes of one node during one look). Units: a node has
 *            its blocks itself; units are given back, and taken by others, when the version has moved.
 *            The parent's version, which moves with its children, only makes misses count: it stays. Runs
 *            of 2 blocks, 3 nodes beside the root, 3 blocks of a query: enough for each of the ways that
 *            index_read.c names. Extras, snapshots, pages are read under the same versions as blocks. More
 *            than one root: root.pml. That stores and loads are seen in order: VERSION of tests/litmus.
 *
 * MUTATION NO_START            child_match: the child's start depth is our own
 * MUTATION NO_PARENT           child_match: the child names our node by id and identity
 * MUTATION NO_PARENT_IDENTITY  child_match: the id alone is looked at
 * MUTATION NO_NEW_IDENTITY     node_truncate: a run that is cut gets a new identity
 * MUTATION NO_RECYCLE_IDENTITY node_new: a node's number that is used again gets a new identity
 * MUTATION NO_CHECK_AFTER      seen_still
 * MUTATION NO_CHECK_ODD        seen_read: an odd version is no version
 * MUTATION NO_ODD_VERSION      node_begin: the version is odd before anything changes
 * MUTATION UPPER_STAYS         node_merge: the upper part has no block any more when its version is even
 *                              again, though it is not freed yet
 * MUTATION NO_RESOLVE_IDENTITY index_resolve: the identity is the same
 */
#define RUN   2
#define LIMIT 3
#define DEEPEST 4

typedef node_t {
    bool busy;
    byte parent, start, n;
    bit tok[RUN]
}
node_t node[5]; /* 0 is none, 1 the root; parent 0: not in use */

byte at = 1, depth, look, r_id, r_equal; /* the reader's */
bool at_old, r_old;

byte matched_now, matched_best; /* ghosts: blocks of the query in the tree; the most during the walk */

#define END(i) (node[i].start + node[i].n)
#define TOK(i, d) node[i].tok[(d) - node[i].start]

/* ---- the writer ------------------------------------------------------------------------------ */

#define GOES_ON(i) (node[i].parent == g_id && node[i].start == g_d && !node[i].tok[0])

/* How much of the query is there. */
inline count()
{
    g_id = 1; g_d = 0;
    do
    :: g_d < END(g_id) && TOK(g_id, g_d) == 0 -> g_d++
    :: g_d == END(g_id) && GOES_ON(2) -> g_id = 2
    :: g_d == END(g_id) && GOES_ON(3) -> g_id = 3
    :: g_d == END(g_id) && GOES_ON(4) -> g_id = 4
    :: else -> break
    od;
    matched_now = (g_d < LIMIT -> g_d : LIMIT);
    if
    :: matched_now > matched_best -> matched_best = matched_now
    :: else
    fi;
    g_id = 0; g_d = 0
}

inline forget()
{
    look = 0; r_id = 0; r_equal = 0; r_old = false
}

/* The version changes: seen_still will say no. */
inline moves(i)
{
#ifndef NO_CHECK_AFTER
    if
    :: r_id == i -> forget()
    :: else
    fi
#else
    skip
#endif
}

inline begin(i)
{
#ifndef NO_ODD_VERSION
    node[i].busy = true;
    moves(i)
#else
    skip
#endif
}

inline end(i)
{
    node[i].busy = false;
    moves(i)
}

inline new_identity(i)
{
    at_old = at_old || at == i;
    r_old = r_old || (r_id == i && look == 2)
}

/* node_free, which gives a new identity, as node_new does when its number is used again */
inline clear(i)
{
    node[i].parent = 0; node[i].start = 0; node[i].n = 0; node[i].tok[0] = 0; node[i].tok[1] = 0;
#ifndef NO_RECYCLE_IDENTITY
    new_identity(i)
#else
    skip
#endif
}

#define CHILD(i, c) (node[c].parent == i)
#define LEAF(i) (!CHILD(i, 2) && !CHILD(i, 3) && !CHILD(i, 4))
#define CHILDREN(i) (CHILD(i, 2) + CHILD(i, 3) + CHILD(i, 4))
#define FIRST(i, c, t) (CHILD(i, c) && node[c].tok[0] == t)
#define KNOWN(i, t) (FIRST(i, 2, t) || FIRST(i, 3, t) || FIRST(i, 4, t))
#define USED(i) (node[i].parent != 0)

/* RESOLVE, while the writer is between two changes: would the daemon take the reader's place for one of
 * its own, then it is right. */
inline resolve()
{
    if
    :: depth > 0 &&
#ifndef NO_RESOLVE_IDENTITY
       !at_old &&
#endif
       depth <= END(at) ->
       g_id = at;
       g_d = depth;
       do
       :: g_d > 0 && g_id > 1 && g_d > node[g_id].start ->
          assert(g_d <= END(g_id));
          g_d--;
          assert(TOK(g_id, g_d) == 0)
       :: g_d > 0 && g_id > 1 && g_d <= node[g_id].start -> g_id = node[g_id].parent
       :: else -> break
       od;
       assert(g_d == 0);
       g_id = 0
    :: else
    fi
}

mtype = { APPEND, CHILD, SPLIT, MERGE, TRUNCATE, REMOVE };

/* What the writer may begin, each a single step. Node w is changed, x is another, p their parent, t a
 * block. */
#define CHOOSE(op, W, X, T) what = op; w = W; x = X; t = T; p = node[W].parent; begin(W)
#define APPEND_(W, T) \
    :: d_step { USED(W) && LEAF(W) && node[W].n < RUN -> CHOOSE(APPEND, W, 0, T) }
#define CHILD_(W, X, T) \
    :: d_step { !USED(W) && (X == 1 || USED(X)) && END(X) < DEEPEST && !KNOWN(X, T) -> CHOOSE(CHILD, W, X, T) }
#define SPLIT_(W, X) /* W is the lower part, X the upper */ \
    :: d_step { node[W].n == 2 && !USED(X) -> CHOOSE(SPLIT, W, X, 0); begin(X) }
#define MERGE_(W, X) /* W is the upper part, X its only child */ \
    :: d_step { node[W].n == 1 && CHILDREN(W) == 1 && CHILD(W, X) && node[X].n == 1 -> \
                CHOOSE(MERGE, W, X, 0); begin(X) }
#define TRUNCATE_(W) \
    :: d_step { node[W].n == 2 && LEAF(W) -> CHOOSE(TRUNCATE, W, 0, 0) }
#define REMOVE_(W) \
    :: d_step { USED(W) && LEAF(W) -> CHOOSE(REMOVE, W, 0, 0) }

active proctype writer()
{
    mtype what;
    byte w, x, p, g_id, g_d;
    bit t;

idle:
    if
    :: d_step { depth > 0 -> resolve() } /* the daemon comes to the reader's place */
    APPEND_(2, 0) APPEND_(3, 0) APPEND_(4, 0) APPEND_(2, 1) APPEND_(3, 1) APPEND_(4, 1)
    CHILD_(2, 1, 0) CHILD_(2, 3, 0) CHILD_(2, 4, 0) CHILD_(2, 1, 1) CHILD_(2, 3, 1) CHILD_(2, 4, 1)
    CHILD_(3, 1, 0) CHILD_(3, 2, 0) CHILD_(3, 4, 0) CHILD_(3, 1, 1) CHILD_(3, 2, 1) CHILD_(3, 4, 1)
    CHILD_(4, 1, 0) CHILD_(4, 2, 0) CHILD_(4, 3, 0) CHILD_(4, 1, 1) CHILD_(4, 2, 1) CHILD_(4, 3, 1)
    SPLIT_(2, 3) SPLIT_(2, 4) SPLIT_(3, 2) SPLIT_(3, 4) SPLIT_(4, 2) SPLIT_(4, 3)
    MERGE_(2, 3) MERGE_(2, 4) MERGE_(3, 2) MERGE_(3, 4) MERGE_(4, 2) MERGE_(4, 3)
    TRUNCATE_(2) TRUNCATE_(3) TRUNCATE_(4)
    REMOVE_(2) REMOVE_(3) REMOVE_(4)
    fi;
    if
    :: what == 0
    :: what == APPEND -> /* leaf_append, leaf_widen */
       d_step { node[w].tok[1] = t; node[w].n = 2 };
       d_step { end(w); count() }
    :: what == CHILD -> /* child_new, child_link */
       d_step {
           node[w].parent = x; node[w].start = END(x);
           node[w].n = 1; node[w].tok[0] = t
       };
       d_step { end(w); count() }
    :: what == SPLIT -> /* node_split */
       d_step {
           node[x].parent = p; node[x].start = node[w].start;
           node[x].n = 1; node[x].tok[0] = node[w].tok[0]
       };
       d_step {
           node[w].parent = x; node[w].start++;
           node[w].n = 1; node[w].tok[0] = node[w].tok[1]; node[w].tok[1] = 0
       };
       d_step { end(w); end(x) }
    :: what == MERGE -> /* node_merge, node_free */
       d_step {
           node[x].n = 2; node[x].tok[1] = node[x].tok[0]; node[x].tok[0] = node[w].tok[0];
           node[x].start = node[w].start; node[x].parent = p;
           node[w].tok[0] = 0; /* its units are given back */
#ifndef UPPER_STAYS
           node[w].n = 0
#endif
       };
       d_step { end(x); end(w) };
       d_step { begin(w) }; /* node_free */
       d_step { clear(w) };
       d_step { end(w) }
    :: what == TRUNCATE -> /* node_truncate */
       d_step {
#ifndef NO_NEW_IDENTITY
           new_identity(w);
#endif
           node[w].n = 1; node[w].tok[1] = 0
       };
       d_step { end(w); count() }
    :: what == REMOVE -> /* leaf_remove, node_free */
       d_step { clear(w) };
       d_step { end(w); count() }
    fi;
    d_step { what = 0; w = 0; x = 0; p = 0; t = 0 };
    goto idle
}

/* ---- the reader ------------------------------------------------------------------------------ */

#ifdef NO_CHECK_ODD
#define EVEN(i) true
#else
#define EVEN(i) (!node[i].busy)
#endif
#ifdef NO_PARENT
#define BELOW true
#else
#ifdef NO_PARENT_IDENTITY
#define BELOW (node[r_id].parent == at)
#else
#define BELOW (node[r_id].parent == at && !at_old)
#endif
#endif
#ifdef NO_START
#define STARTS true
#else
#define STARTS (node[r_id].start == depth)
#endif

/* seen_read begins: the version. */
#define LOOK(i) d_step { look == 0 && depth < LIMIT && EVEN(i) -> look = 1; r_id = i }

/* run_match: the run's blocks from the i-th on, up to its end and the query's. It goes on there, or this
 * look is over. */
inline run_match(i, condition)
{
    if
    :: condition ->
       do
       :: i < node[r_id].n && depth + r_equal < LIMIT && !node[r_id].tok[i] -> r_equal++; i++
       :: else -> break
       od
    :: else
    fi;
    if
    :: r_equal > 0 -> look = 2
    :: else -> forget()
    fi;
    i = 0
}

active proctype reader()
{
    byte i;
    do
    :: LOOK(2) /* child_match, of any other; step_again, of its own */
    :: LOOK(3)
    :: LOOK(4)
    :: d_step { look == 1 && r_id != at -> run_match(i, BELOW && STARTS) }
    :: d_step {
           look == 1 && r_id == at ->
           i = (depth >= node[at].start -> depth - node[at].start : RUN);
           run_match(i, !at_old) /* its identity is the same */
       }
    :: d_step { /* seen_still */
           look == 2 ->
           at_old = r_old || (r_id == at && at_old);
           at = r_id;
           depth = depth + r_equal;
           assert(depth <= matched_best); /* WALK */
           forget()
       }
    :: d_step { /* the walk is over; the next begins */
           look == 0 && depth > 0 -> at = 1; at_old = false; depth = 0; matched_best = matched_now
       }
    od
}
