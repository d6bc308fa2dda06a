/*
 * root.pml - from a space to its root, while spaces are flushed, closed and opened, and roots used again.
 *
 * THE CODE   reader: shm/index_read.c space_root, index_walk, walk_once (the root's seen_read), child_match
 *            daemon: daemon/space.c describe(), wake(), settle(), free_slot, spaces_flush; daemon/index.c
 *                    index_root_new, index_root_free; daemon/index_change.c child_new; daemon/index_remove.c leaf_remove,
 *                    index_condemn, index_reap
 *
 *      space 1 2   the tenants' numbers: root of each, 0: it is asleep; moved: its version is another
 *                  one than the reader has read
 *      node 1 .. 4 kind: a root (of which space), a block below a root, or free
 *
 *      reader      wants space 1: reads its root's number, reads that node's identity, finds a child
 *                  below it
 *
 * Every block is what the reader asks for: whether a match is right is only a matter of whose tree it
 * is in. Nodes and identities as in index.pml; a look whose version moves is over.
 *
 * PROPERTY   What a walk finds was in a tree of space 1 at some moment of the walk. (pfx_lookup would find out:
 *            index_resolve compares roots. pfx_peek has nobody who does.)
 *
 * LEFT OUT   Depth: one block a space. The same number of a space never names another tenant (it has a
 *            generation), so two spaces that live at once are enough; a space that sleeps is here the
 *            slot's as well. Flushes take their blocks one by one, later.
 *
 * MUTATION NO_SECOND_LOOK   walk_once: the space's version again, after the root's identity has been read
 * MUTATION NO_PARENT        child_match: parent and identity
 * MUTATION BY_NUMBER        child_match: the identity alone is not looked at
 */
#define NODES 4
#define USED(i) (space[i] != 0)

byte root[3];          /* of space 1, 2 */
byte space[NODES + 1]; /* whose it is; 0: it is free */
byte parent[NODES + 1]; /* 0: it is a root */

byte phase, at, next;
bool at_old, space_moved, next_moved;
bool had; /* ghost: there was a block of space 1 at some moment of the walk */

#define BLOCK1(i) (space[i] == 1 && parent[i])
#define HAS1 (BLOCK1(1) || BLOCK1(2) || BLOCK1(3) || BLOCK1(4))
#define CHILDLESS(r) (parent[1] != r && parent[2] != r && parent[3] != r && parent[4] != r)

inline over()
{
    phase = 0; at = 0; next = 0; at_old = false; space_moved = false; next_moved = false; had = false
}

inline changes(i)
{
    next_moved = next_moved || (next == i && phase == 3)
}

inline clear(i)
{
    space[i] = 0; parent[i] = 0;
    at_old = at_old || (at == i && phase >= 2);
    changes(i)
}

#ifdef NO_SECOND_LOOK
#define SAME_SPACE true
#else
#define SAME_SPACE (!space_moved)
#endif
#ifdef NO_PARENT
#define BELOW(i) (USED(i) && parent[i])
#else
#ifdef BY_NUMBER
#define BELOW(i) (USED(i) && parent[i] == at)
#else
#define BELOW(i) (USED(i) && parent[i] == at && !at_old)
#endif
#endif

/* index_root_new for space s, in node i; also a flush, which leaves the old root to be reaped. */
#define OPEN(s, i) \
    :: d_step { !USED(i) && !root[s] -> \
                space[i] = s; root[s] = i; space_moved = space_moved || s == 1; changes(i) } \
    :: d_step { !USED(i) && root[s] && !CHILDLESS(root[s]) -> \
                space[i] = s; root[s] = i; space_moved = space_moved || s == 1; changes(i) }
#define SLEEP(s) \
    :: d_step { root[s] && CHILDLESS(root[s]) -> \
                clear(root[s]); root[s] = 0; space_moved = space_moved || s == 1 }
#define BLOCK(s, i) \
    :: d_step { !USED(i) && root[s] && CHILDLESS(root[s]) -> \
                space[i] = s; parent[i] = root[s]; changes(i); had = had || (s == 1 && phase) }
/* Evicted or reaped; a condemned root goes with its last child. */
#define GO(i) \
    :: d_step { USED(i) && parent[i] -> \
                r = parent[i]; clear(i); \
                if \
                :: CHILDLESS(r) && root[1] != r && root[2] != r -> clear(r) \
                :: else \
                fi; \
                r = 0 }
#define LOOK(i) \
    :: d_step { phase == 2 && i != at && BELOW(i) -> phase = 3; next = i; next_moved = false }

active proctype daemon_and_reader()
{
    byte r;
    do
    OPEN(1, 1) OPEN(1, 2) OPEN(1, 3) OPEN(1, 4) OPEN(2, 1) OPEN(2, 2) OPEN(2, 3) OPEN(2, 4)
    SLEEP(1) SLEEP(2)
    BLOCK(1, 1) BLOCK(1, 2) BLOCK(1, 3) BLOCK(1, 4) BLOCK(2, 1) BLOCK(2, 2) BLOCK(2, 3) BLOCK(2, 4)
    GO(1) GO(2) GO(3) GO(4)

    :: d_step { /* space_root */
           phase == 0 && root[1] -> phase = 1; at = root[1]; space_moved = false; had = HAS1
       }
    :: d_step { /* walk_once: it is a root, and is it this space's still? */
           phase == 1 ->
           if
           :: USED(at) && !parent[at] && SAME_SPACE -> phase = 2; at_old = false
           :: else -> over() /* walk anew */
           fi
       }
    LOOK(1) LOOK(2) LOOK(3) LOOK(4)
    :: d_step { /* child_match, seen_still */
           phase == 3 ->
           if
           :: !next_moved -> assert(had)
           :: else
           fi;
           over()
       }
    :: d_step { phase == 2 -> over() } /* a miss */
    od
}
