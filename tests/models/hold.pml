/*
 * hold.pml - a lookup's hold against eviction: walk, LOOKUP, hold, answer, and the ids read under it.
 *
 * THE CODE   worker: client/lookup.c fast_build, lookup_take, lookup_granted, match_read;
 *                    shm/index_read.c climb_once, take_ids
 *            daemon: daemon/dispatch_lookup.c op_lookup; daemon/index.c index_resolve, index_cover;
 *                    daemon/index_hold.c index_hold, kept_prefix; daemon/index_change.c node_split
 *                    (split_holds), node_merge (mergeable); daemon/index_remove.c node_truncate, leaf_remove;
 *                    daemon/index_residency.c pages_drop, page_add
 *
 *      worker    WALKED -------> POSTED ----------> HELD -----------> READ ----------> (released)
 *                a place         LOOKUP: is it      the answer's      all ids of the
 *                of a walk       there? hold, or    place, climbed    path are known
 *                                RETRY              to the root
 *      p_*       place of the worker: node, depth; old: that node has another identity by now
 *      h_*       the lease's hold: moves with splits, which the worker does not see
 *      node      as in index.pml; page: 0 where it was when the worker walked, or last was granted a hold;
 *                1 elsewhere: it was given up and came back, or it is another block, or none
 *
 * PROPERTIES  GRANT   a place of an honest walk that is granted is the walk's path, whatever happened
 *                     since; what a hostile worker names is refused unless it is a place
 *             KEEP    from then to the release every block of it is there, and where it was
 *             IDS     what the worker reads under the hold are the pages of its path
 *
 * LEFT OUT   How the walk comes to its place: index.pml says that it is one of some moment, as taken here.
 *            The daemon is one thread, so its changes are one step each, but for readers: a look at a
 *            node whose version moves is over (as in index.pml). Pages go wherever no hold is, not
 *            deepest first: more than the code does. Tail blocks and snapshots are held by the same
 *            index_hold. A match that is on disk in part: what is absent holds nothing. The counts behind
 *            kept_prefix are computed, not kept: the audit compares those after every step of the
 *            tests. Bounds: RESOLVE_BLOCKS, retries (RETRY and a place that is gone mean once more, for
 *            ever). One lease.
 *
 * MUTATION NO_RESOLVE_IDENTITY  index_resolve: the identity is the same
 * MUTATION NO_RESOLVE_DEPTH     index_resolve: the depth is not beyond the end
 * MUTATION NO_COVER             index_resolve: the hold is on the node that covers the depth
 * MUTATION ANSWER_FIRST         op_lookup: the hold comes before the answer
 * MUTATION IDS_OF_THE_WALK      match_read: ids are read again, under the hold
 * MUTATION OWN_ENDS_ALONE       kept_prefix: a node with a held child is held
 * MUTATION SPLIT_LEAVES_HOLDS   split_holds
 * MUTATION MERGE_TAKES_HELD     mergeable: not while a hold ends in the upper part
 * MUTATION CLIMB_UNCHECKED      climb_once: seen_still
 * MUTATION CLIMB_BY_NUMBER      climb_once: a parent's identity is looked at
 */
#define RUN     2
#define LIMIT   3
#define DEEPEST 3

typedef node_t {
    byte parent, start, n;
    bit tok[RUN];
    bit page[RUN]
}
node_t node[5]; /* 0 is none, 1 the root; parent 0: not in use */

mtype = { WALKED, POSTED, GRANTED, HELD, READ };
mtype phase = 0;
bool hostile;
byte p_node, p_depth, h_node, h_depth;
bool p_old;

/* The climb: next at c_node (c_old: its identity is another one by now), the ids of c_depth blocks are to come. */
byte c_node, c_depth, look, r_start, r_end, r_parent;
bool c_old, up_old;
bool ids_wrong, seen_wrong; /* an id that the worker has read; in this look */

#define END(i) (node[i].start + node[i].n)
#define CHILD(i, c) (node[c].parent == i)
#define LEAF(i) (!CHILD(i, 2) && !CHILD(i, 3) && !CHILD(i, 4))
#define CHILDREN(i) (CHILD(i, 2) + CHILD(i, 3) + CHILD(i, 4))
#define KNOWN(i, t) ((CHILD(i, 2) && node[2].tok[0] == t) || (CHILD(i, 3) && node[3].tok[0] == t) || \
                     (CHILD(i, 4) && node[4].tok[0] == t))
#define USED(i) (node[i].parent != 0)

/* Blocks of node i that are kept: up to the end of a hold there; all, if there is one below. */
#define BELOW(i) (h_node > 1 && i != h_node && (node[h_node].parent == i || \
                  (node[h_node].parent > 1 && node[node[h_node].parent].parent == i)))
#define ENDS(i) (h_node == i && h_depth > node[i].start -> h_depth - node[i].start : 0)
#ifdef OWN_ENDS_ALONE
#define KEPT(i) ENDS(i)
#else
#define KEPT(i) (BELOW(i) -> node[i].n : ENDS(i))
#endif

inline forget()
{
    look = 0; r_start = 0; r_end = 0; r_parent = 0; seen_wrong = false; up_old = false
}

inline moves(i)
{
#ifndef CLIMB_UNCHECKED
    if
    :: look && c_node == i -> forget()
    :: else
    fi
#else
    skip
#endif
}

inline new_identity(i)
{
    p_old = p_old || (p_node == i && phase);
    c_old = c_old || (c_node == i && c_node);
    up_old = up_old || (look >= 2 && r_parent == i)
}

inline clear(i)
{
    node[i].parent = 0; node[i].start = 0; node[i].n = 0;
    node[i].tok[0] = 0; node[i].tok[1] = 0; node[i].page[0] = 1; node[i].page[1] = 1;
    new_identity(i);
    moves(i)
}

#ifdef CLIMB_BY_NUMBER
#define GONE false
#else
#define GONE c_old
#endif

#define APPEND(W, T) \
    :: d_step { USED(W) && LEAF(W) && node[W].n < RUN && END(W) < DEEPEST -> \
                node[W].tok[1] = T; node[W].page[1] = (phase != 0); node[W].n = 2; moves(W) }
#define NEW(W, X, T) \
    :: d_step { !USED(W) && (X == 1 || USED(X)) && END(X) < DEEPEST && !KNOWN(X, T) -> \
                node[W].parent = X; node[W].start = END(X); node[W].n = 1; node[W].tok[0] = T; \
                node[W].page[0] = (phase != 0); moves(W) }
#ifdef SPLIT_LEAVES_HOLDS
#define HOLDS_FOLLOW(W, X) skip
#else
#define HOLDS_FOLLOW(W, X) h_node = (h_node == W && h_depth <= node[W].start -> X : h_node)
#endif
#define SPLIT(W, X) /* W is the lower part, X the upper */ \
    :: d_step { node[W].n == 2 && !USED(X) -> \
                node[X].parent = node[W].parent; node[X].start = node[W].start; node[X].n = 1; \
                node[X].tok[0] = node[W].tok[0]; node[X].page[0] = node[W].page[0]; \
                node[W].parent = X; node[W].start++; node[W].n = 1; \
                node[W].tok[0] = node[W].tok[1]; node[W].page[0] = node[W].page[1]; \
                node[W].tok[1] = 0; node[W].page[1] = 1; \
                HOLDS_FOLLOW(W, X); moves(W); moves(X) }
#ifdef MERGE_TAKES_HELD
#define ENDS_THERE(W) false
#else
#define ENDS_THERE(W) (h_node == W)
#endif
#define MERGE(W, X) /* W is the upper part, X its only child */ \
    :: d_step { node[W].n == 1 && CHILDREN(W) == 1 && CHILD(W, X) && node[X].n == 1 && !ENDS_THERE(W) -> \
                node[X].tok[1] = node[X].tok[0]; node[X].page[1] = node[X].page[0]; \
                node[X].tok[0] = node[W].tok[0]; node[X].page[0] = node[W].page[0]; \
                node[X].n = 2; node[X].start = node[W].start; node[X].parent = node[W].parent; \
                moves(X); clear(W) }
#define CUT(W) \
    :: d_step { node[W].n == 2 && LEAF(W) && KEPT(W) <= 1 -> \
                node[W].n = 1; node[W].tok[1] = 0; node[W].page[1] = 1; new_identity(W); moves(W) }
#define REMOVE(W) \
    :: d_step { USED(W) && LEAF(W) && KEPT(W) == 0 -> clear(W) }
#define PAGE(W, I) /* given up, as there is a copy, and fetched again */ \
    :: d_step { phase && node[W].n > I && !node[W].page[I] && KEPT(W) <= I -> node[W].page[I] = 1; moves(W) }

/* The place of a walk: any node down to a depth where all is the query's. */
#define WALK(W, D) \
    :: d_step { phase == 0 && USED(W) && D > node[W].start && D <= END(W) -> \
                path(W, D); \
                if \
                :: g_right -> phase = WALKED; p_node = W; p_depth = D; p_old = false \
                :: else \
                fi; \
                path_over() }
#define HOSTILE(W, D) \
    :: d_step { phase == 0 && D <= LIMIT -> phase = POSTED; hostile = true; p_node = W; p_depth = D }

/* The path down to depth d of node i: is it the query's, and is it where it was? */
inline path(i, d)
{
    g_id = i; g_d = d; g_right = true; g_same = true;
    do
    :: g_d > 0 && g_d > node[g_id].start ->
       g_right = g_right && g_d <= END(g_id) && USED(g_id);
       if
       :: !g_right -> break
       :: else
       fi;
       g_d--;
       g_right = g_right && !node[g_id].tok[g_d - node[g_id].start];
       g_same = g_same && !node[g_id].page[g_d - node[g_id].start]
    :: g_d > 0 && g_d <= node[g_id].start -> g_id = node[g_id].parent
    :: else -> break
    od
}

inline path_over()
{
    g_id = 0; g_d = 0; g_right = false; g_same = false
}

/* From here on where all is now is where it was. */
inline pages_are_known()
{
    node[2].page[0] = (node[2].n < 1); node[2].page[1] = (node[2].n < 2);
    node[3].page[0] = (node[3].n < 1); node[3].page[1] = (node[3].n < 2);
    node[4].page[0] = (node[4].n < 1); node[4].page[1] = (node[4].n < 2)
}

inline release()
{
    phase = 0; hostile = false; p_node = 0; p_depth = 0; p_old = false; h_node = 0; h_depth = 0;
    c_node = 0; c_depth = 0; c_old = false; forget(); ids_wrong = false;
    pages_are_known()
}

inline cover()
{
#ifndef NO_COVER
    do
    :: p_depth <= node[p_node].start -> p_node = node[p_node].parent
    :: else -> break
    od
#else
    skip
#endif
}

inline climb_begins()
{
    c_node = p_node; c_depth = p_depth; c_old = p_old
}

active proctype daemon_and_worker()
{
    byte g_id, g_d;
    bool g_right, g_same;

    d_step { pages_are_known() };
    do
    APPEND(2, 0) APPEND(3, 0) APPEND(4, 0) APPEND(2, 1) APPEND(3, 1) APPEND(4, 1)
    NEW(2, 1, 0) NEW(2, 3, 0) NEW(2, 4, 0) NEW(2, 1, 1) NEW(2, 3, 1) NEW(2, 4, 1)
    NEW(3, 1, 0) NEW(3, 2, 0) NEW(3, 4, 0) NEW(3, 1, 1) NEW(3, 2, 1) NEW(3, 4, 1)
    NEW(4, 1, 0) NEW(4, 2, 0) NEW(4, 3, 0) NEW(4, 1, 1) NEW(4, 2, 1) NEW(4, 3, 1)
    SPLIT(2, 3) SPLIT(2, 4) SPLIT(3, 2) SPLIT(3, 4) SPLIT(4, 2) SPLIT(4, 3)
    MERGE(2, 3) MERGE(2, 4) MERGE(3, 2) MERGE(3, 4) MERGE(4, 2) MERGE(4, 3)
    CUT(2) CUT(3) CUT(4)
    REMOVE(2) REMOVE(3) REMOVE(4)
    PAGE(2, 0) PAGE(2, 1) PAGE(3, 0) PAGE(3, 1) PAGE(4, 0) PAGE(4, 1)
    WALK(2, 1) WALK(2, 2) WALK(2, 3) WALK(3, 1) WALK(3, 2) WALK(3, 3) WALK(4, 1) WALK(4, 2) WALK(4, 3)
    HOSTILE(2, 1) HOSTILE(2, 2) HOSTILE(2, 3)

    :: d_step { phase == WALKED -> phase = POSTED }

    :: d_step { /* LOOKUP: index_resolve, index_hold, the answer */
           phase == POSTED ->
           if
#ifndef NO_RESOLVE_IDENTITY
           :: p_old || !USED(p_node) -> release() /* RETRY */
#else
           :: !USED(p_node) -> release()
#endif
#ifndef NO_RESOLVE_DEPTH
           :: !p_old && USED(p_node) && p_depth > END(p_node) -> release()
#endif
           :: else ->
              cover();
              assert(p_depth > node[p_node].start && p_depth <= END(p_node)); /* GRANT */
              path(p_node, p_depth);
              assert(g_right || hostile); /* GRANT */
#ifdef IDS_OF_THE_WALK
              ids_wrong = !g_same;
#endif
              path_over();
              pages_are_known();
              phase = GRANTED;
              p_old = false;
#ifndef ANSWER_FIRST
              h_node = p_node; h_depth = p_depth;
#endif
              if
              :: hostile -> release() /* it has what it asked for */
              :: else -> climb_begins()
              fi
           fi
       }
    :: d_step { /* the answer is read */
           phase == GRANTED -> phase = HELD;
#ifdef ANSWER_FIRST
           h_node = p_node; h_depth = p_depth;
#endif
#ifdef IDS_OF_THE_WALK
           c_node = 1; c_depth = 0; c_old = false
#endif
       }

    /* climb_once: a node a time, from the answer's place up */
    :: d_step { phase == HELD && c_node > 1 && look == 0 -> look = 1 }
    :: d_step { /* what the node is */
           look == 1 ->
           if
           :: GONE || c_depth > END(c_node) || !USED(c_node) -> /* ask where the hold is */
              forget();
              p_node = h_node; p_old = false; climb_begins();
              ids_wrong = false
           :: else ->
              look = 2;
              r_parent = node[c_node].parent;
              r_start = node[c_node].start;
              r_end = c_depth
           fi
       }
    :: d_step { /* take_ids */
           look == 2 ->
           look = 3;
           do
           :: r_end > r_start ->
              r_end--;
              seen_wrong = seen_wrong || node[c_node].page[r_end - r_start]
           :: else -> break
           od;
           r_start = 0
       }
    :: d_step { /* seen_still */
           look == 3 ->
           ids_wrong = ids_wrong || seen_wrong;
           c_depth = r_end;
           c_node = r_parent;
           c_old = up_old;
           forget()
       }
    :: d_step {
           phase == HELD && c_node == 1 -> phase = READ; c_node = 0;
           assert(c_depth == 0);
           assert(!ids_wrong) /* IDS */
       }
    :: d_step { phase == READ -> release() }

    :: d_step { /* KEEP, at every moment */
           phase == HELD || phase == READ ->
           path(h_node, h_depth);
           assert(g_right && g_same);
           path_over()
       }
    od
}
