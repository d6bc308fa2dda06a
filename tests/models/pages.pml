/*
 * pages.pml - who may use a page while blocks go to the disk and come back.
 *
 * THE CODE   daemon/disk_read.c fetch_begin, copies_of, order_next, read_over, has_newer, publish(), fetch_go,
 *            fetch_end; daemon/disk.c on_slot_gone;
 *            daemon/disk_write.c chain_begin, chain_go, commit(); daemon/pool.c;
 *            daemon/index_residency.c index_page_arrive, pages_adopt, index_free_pages,
 *            index_evict_copies, index_copy_commit, index_copy_replace; daemon/disk_restore.c hang()
 *
 *      block 0 - block 1        a path of two: page[i] 0, or where it is on the device;
 *                               slot[i] 0, or where its copy is on disk
 *      pages 1 .. 4             state as in pool.h; bytes: whose they are (i + 1; 0: nobody's);
 *                               into, from: transfers of the device that are under way
 *      slots 1 .. 3             disk: whose bytes the file holds; taken; reader: fetch + 1; owed: it is
 *                               nobody's any more, but still read; other: that of a block elsewhere in
 *                               the tree, which comes and goes; broken: the one that cannot be read
 *      fetch f of depth[f]      st, f_page, f_slot of each position, done (f: 0, 1)
 *
 * At the start a restart's scan has found an older copy of block 0 (slot 1); the newer one (slot 2), and
 * block 1 below it (slot 3), are still to come, while workers look up and fetch already.
 *
 * PROPERTIES  A page is handed out only when no device uses it. A block is published only with its own
 *            bytes, all of which have come. What is written is the block's, and stays so while it is
 *            read. A slot is written only when nobody reads it. A block is lost only if the copy that it
 *            has, not one that it had, cannot be read. A fetch that nothing is under way for can go on.
 *            When no fetch and no lease has a page, all that are not cached are free; when nothing is read
 *            or written, all slots that are no copies are.
 *
 * LEFT OUT   Orders of several blocks (each is one here, and they end in any order); who waits for a fetch
 *            (nobody: it goes on by itself); leases' holds: those protect more than here, where only
 *            transfers hold. Generations: a header that was written anew since the read was ordered
 *            does not fit, which is all they are for. Checksums find what they are to find. An answer
 *            is taken when the device is ready, not later. One lease that computes blocks anew, one
 *            chain of this path and one elsewhere, one slot that cannot be read until it is written anew.
 *            From the end of a fetch until its worker's turn (then the block is lost) a scan may still
 *            find a newer copy: a miss.
 *
 * MUTATION FREE_WHILE_READING   publish: a page that is still read into is left alone
 * MUTATION PUBLISH_WHAT_FAILED  read_over: what does not check is not good
 * MUTATION PUBLISH_AT_ORDER     publish waits for the read
 * MUTATION FETCH_HOLDS_NOTHING  fetch_begin: the path is held until the fetch is over
 * MUTATION CHAIN_HOLDS_NOTHING  chain_begin: the path is held until the chain is over
 * MUTATION END_WHILE_READING    fetch_over: not while something is in flight
 * MUTATION ORDER_WHAT_IS_DONE   order_next: not what another has brought meanwhile
 * MUTATION ANY_ORDER            index_page_arrive: front first
 * MUTATION SLOT_OF_BEGIN        order_next: the slot that the tree has now
 * MUTATION GIVE_WHILE_READING   on_slot_gone: not while it is read
 * MUTATION NEVER_GIVEN          read_over: it gives back what could not be given while it was read
 * MUTATION LOST_WITH_OLD_COPY   publish: a slot that is not the block's any more says nothing about it
 * MUTATION SHARED_FOREVER       publish: a shared read that has failed is tried by oneself
 */
#define PAGES 4
#define SLOTS 3

mtype = { FREE, PRIVATE, CACHED, INFLIGHT }; /* pages */
mtype = { WANTED, SHARED, ISSUED, GOOD, BAD };

byte page[2], slot[2];
mtype state[PAGES + 1] = FREE;
byte bytes[PAGES + 1], into[PAGES + 1], from[PAGES + 1];
byte disk[SLOTS + 1], reader[SLOTS + 1];
bool taken[SLOTS + 1], owed[SLOTS + 1];
bool scanning = true, found_newer, faulty;
byte broken;

/* of fetch f, position i: at AT(f, i) */
#define AT(f, i) ((f) * 2 + (i))
byte depth[2], done[2];
mtype st[4];
byte f_page[4], f_slot[4];
bool rewritten[4]; /* the slot's header is another one than when the read was ordered */

byte other;
byte lease_page;               /* reserved: its worker computes a block into it */
byte chain_block, chain_slot;  /* the block being written + 1, and to where */

#define THERE(i) (page[i] || slot[i])
#ifdef FETCH_HOLDS_NOTHING
#define FETCHED(i) false
#else
#define FETCHED(i) (depth[0] > i || depth[1] > i)
#endif
#ifdef CHAIN_HOLDS_NOTHING
#define WRITTEN(i) false
#else
#define WRITTEN(i) (chain_block > i)
#endif
#define HELD(i) (FETCHED(i) || WRITTEN(i))
#define N_FREE ((state[1] == FREE) + (state[2] == FREE) + (state[3] == FREE) + (state[4] == FREE))
#define N_CACHED ((page[0] != 0) + (page[1] != 0))

/* pool.c */
inline take(p)
{
    p = 1;
    do
    :: state[p] != FREE -> p++
    :: else -> break
    od;
    assert(!into[p] && !from[p]);
    state[p] = PRIVATE;
    bytes[p] = 0
}

inline move(p, was, is)
{
    assert(state[p] == was);
    state[p] = is
}

inline cache(i, p)
{
    assert(page[i] == 0 && bytes[p] == i + 1 && !into[p]);
    page[i] = p
}

inline uncache(i)
{
    move(page[i], CACHED, FREE);
    page[i] = 0
}

/* on_slot_gone; also what the scan does not keep. */
inline slot_give(s)
{
#ifdef GIVE_WHILE_READING
    taken[s] = false
#else
    if
    :: reader[s] -> owed[s] = true
    :: else -> taken[s] = false
    fi
#endif
}

/* fetch_begin, for the deepest `d` blocks of the path; those without a page get one. */
inline fetch_begin(f, d)
{
    depth[f] = d;
    done[f] = (page[0] -> 1 : 0);
    i = done[f];
    do
    :: i < d ->
       take(p);
       move(p, PRIVATE, INFLIGHT);
       f_page[AT(f, i)] = p;
       f_slot[AT(f, i)] = slot[i];
       st[AT(f, i)] = WANTED;
       i++
    :: else -> break
    od;
    i = 0; p = 0
}

/* order_next: position i. */
inline order(f, i)
{
#ifdef SLOT_OF_BEGIN
    p = f_slot[AT(f, i)];
#else
    p = slot[i];
    f_slot[AT(f, i)] = p;
#endif
    if
    :: p == 0 || reader[p] -> st[AT(f, i)] = SHARED
    :: else ->
       assert(f_page[AT(f, i)]);
       reader[p] = f + 1;
       st[AT(f, i)] = ISSUED;
       rewritten[AT(f, i)] = !taken[p] || chain_slot == p;
       into[f_page[AT(f, i)]]++
    fi;
    p = 0
}

/* The device has read, and read_over. */
inline read_over(f, i, good)
{
    p = f_page[AT(f, i)];
    into[p]--;
    reader[f_slot[AT(f, i)]] = 0;
#ifndef NEVER_GIVEN
    if
    :: owed[f_slot[AT(f, i)]] -> taken[f_slot[AT(f, i)]] = false
    :: else
    fi;
#endif
    owed[f_slot[AT(f, i)]] = false;
    bytes[p] = (good && !rewritten[AT(f, i)] -> disk[f_slot[AT(f, i)]] : 0);
    if
    :: good && !rewritten[AT(f, i)] -> st[AT(f, i)] = GOOD
    :: else ->
#ifdef PUBLISH_WHAT_FAILED
       st[AT(f, i)] = GOOD
#else
       st[AT(f, i)] = BAD
#endif
    fi;
    rewritten[AT(f, i)] = false;
    p = 0
}

inline position_over(f, i)
{
    st[AT(f, i)] = 0; f_page[AT(f, i)] = 0; f_slot[AT(f, i)] = 0
}

#ifdef FREE_WHILE_READING
#define UNREAD(f, i) true
#else
#define UNREAD(f, i) (st[AT(f, i)] != ISSUED)
#endif
#ifdef PUBLISH_AT_ORDER
#define COME(f, i) (st[AT(f, i)] == GOOD || st[AT(f, i)] == ISSUED)
#else
#define COME(f, i) (st[AT(f, i)] == GOOD)
#endif
#ifdef ANY_ORDER
#define NEXT(f, i) (done[f] <= i && depth[f] > i)
#else
#define NEXT(f, i) (done[f] == i && depth[f] > i)
#endif
#ifdef END_WHILE_READING
#define STILL(f) true
#else
#define STILL(f) (st[AT(f, 0)] != ISSUED && st[AT(f, 1)] != ISSUED)
#endif
#ifdef ORDER_WHAT_IS_DONE
#define TO_ORDER(f, i) (st[AT(f, i)] == WANTED && depth[f] > i)
#else
#define TO_ORDER(f, i) (st[AT(f, i)] == WANTED && done[f] <= i && depth[f] > i)
#endif
#ifdef LOST_WITH_OLD_COPY
#define NEWER(f, i) false
#else
#define NEWER(f, i) (slot[i] != f_slot[AT(f, i)])
#endif
#define F_BAD(f) (done[f] < depth[f] && st[AT(f, done[f])] == BAD && !page[done[f]] && !NEWER(f, done[f]))

/* publish: the block has come by another's hand. Its position is looked at no more. */
inline by_another(f, i)
{
    if
    :: f_page[AT(f, i)] -> move(f_page[AT(f, i)], INFLIGHT, FREE)
    :: else
    fi;
#ifdef ORDER_WHAT_IS_DONE
    f_page[AT(f, i)] = 0;
#else
    position_over(f, i);
#endif
    done[f] = i + 1
}

inline fetch_end(f)
{
    i = 0;
    do
    :: i < depth[f] ->
       if
       :: f_page[AT(f, i)] -> move(f_page[AT(f, i)], INFLIGHT, FREE)
       :: else
       fi;
       position_over(f, i);
       i++
    :: else -> break
    od;
    i = done[f];
    if
    :: i < depth[f] -> /* EIO: the match is cut here, and what nobody else holds is lost (index_lose) */
       assert(broken && slot[i] == broken);
       depth[f] = 0;
       if
       :: !HELD(1) && slot[1] && !page[1] -> slot_give(slot[1]); slot[1] = 0
       :: else
       fi;
       if
       :: i == 0 && !HELD(0) && !THERE(1) && !page[0] && slot[0] -> slot_give(slot[0]); slot[0] = 0
       :: else
       fi
    :: else
    fi;
    depth[f] = 0; done[f] = 0; i = 0
}

#define FETCH(f) \
    :: d_step { !depth[f] && slot[0] && !page[0] && N_FREE >= 1 -> fetch_begin(f, 1) } \
    :: d_step { !depth[f] && slot[1] && !page[1] && N_FREE >= 2 - (page[0] != 0) -> fetch_begin(f, 2) } \
    :: d_step { depth[f] && STILL(f) && (done[f] == depth[f] || F_BAD(f)) -> fetch_end(f) } \
    POSITION(f, 0) POSITION(f, 1)

#define POSITION(f, i0) \
    :: d_step { TO_ORDER(f, i0) -> order(f, i0) } \
    :: d_step { st[AT(f, i0)] == ISSUED && broken != f_slot[AT(f, i0)] -> read_over(f, i0, true) } \
    :: d_step { st[AT(f, i0)] == ISSUED && (!faulty || broken == f_slot[AT(f, i0)]) -> \
                faulty = true; broken = f_slot[AT(f, i0)]; read_over(f, i0, false) } \
    :: d_step { NEXT(f, i0) && UNREAD(f, i0) && page[i0] -> by_another(f, i0) } \
    :: d_step { NEXT(f, i0) && COME(f, i0) && !page[i0] -> \
                move(f_page[AT(f, i0)], INFLIGHT, CACHED); \
                cache(i0, f_page[AT(f, i0)]); position_over(f, i0); done[f] = i0 + 1 } \
    :: d_step { NEXT(f, i0) && st[AT(f, i0)] == SHARED && !page[i0] && RETRY(f, i0) -> \
                st[AT(f, i0)] = WANTED } \
    :: d_step { NEXT(f, i0) && st[AT(f, i0)] == BAD && !page[i0] && NEWER(f, i0) -> \
                st[AT(f, i0)] = WANTED }

#ifdef SHARED_FOREVER
#define RETRY(f, i) false
#else
#define RETRY(f, i) (slot[i] && !reader[slot[i]])
#endif

/* Pages go deepest first; without a copy the block goes. */
#define EVICT(i) \
    :: d_step { page[i] && !HELD(i) && (i == 1 || !page[1]) && (slot[i] || i == 1 || !THERE(1)) -> \
                uncache(i) } \
    :: d_step { slot[i] && !HELD(i) && (i == 1 || !slot[1]) && (page[i] || i == 1 || !THERE(1)) -> \
                slot_give(slot[i]); slot[i] = 0 }

/* What a lease has computed: the next block without a page, whose front is held, hence there. */
#define INSERT(i) \
    :: d_step { lease_page && !page[i] && (i == 0 || page[0]) && (i == 1 || !THERE(1) || slot[0]) -> \
                bytes[lease_page] = i + 1; \
                move(lease_page, PRIVATE, CACHED); cache(i, lease_page); lease_page = 0 }

#define FREE_SLOT (!taken[1] -> 1 : (!taken[2] -> 2 : 3))

inline rewrite(s)
{
    assert(!reader[s]);
    disk[s] = 0;
    broken = (broken == s -> 0 : broken);
    j = 0;
    do
    :: j < 4 -> rewritten[j] = rewritten[j] || (st[j] == ISSUED && f_slot[j] == s); j++
    :: else -> break
    od;
    j = 0
}

/* A chain writes the first block without a copy. While the slot is written, what was there is gone. */
#define CHAIN(i) \
    :: d_step { !scanning && !chain_block && page[i] && !slot[i] && (i == 0 || slot[0]) && \
                !(taken[1] && taken[2] && taken[3]) -> \
                chain_block = i + 1; chain_slot = FREE_SLOT; taken[chain_slot] = true; \
                from[page[i]]++; chain_page = page[i]; rewrite(chain_slot) }

#define IN_FLIGHT (st[0] == ISSUED || st[1] == ISSUED || st[2] == ISSUED || st[3] == ISSUED)
#define GOES_ON(f) (!depth[f] || done[f] == depth[f] || F_BAD(f) || page[done[f]] || COME(f, done[f]) || \
                    TO_ORDER(f, done[f]) || (st[AT(f, done[f])] == SHARED && RETRY(f, done[f])) || \
                    (st[AT(f, done[f])] == BAD && NEWER(f, done[f])))
#define IN_USE(s) (slot[0] == s || slot[1] == s || other == s || chain_slot == s)
#define LEAKED(s) (taken[s] && !IN_USE(s))

active proctype daemon()
{
    byte i, p, j, chain_page;
    d_step {
        slot[0] = 1; disk[1] = 1; disk[2] = 1; disk[3] = 2;
        taken[1] = true; taken[2] = true; taken[3] = true
    }
    do
    /* hang: the newer copy, what hangs on it, and the end of the scan. What is not kept is free then. */
    :: d_step {
           scanning && !found_newer -> found_newer = true;
           if
           :: slot[0] -> slot_give(slot[0]); slot[0] = 2 /* index_copy_replace */
           :: !slot[0] && page[0] -> slot[0] = 2 /* index_copy_commit */
           :: else -> slot[0] = 2 /* index_restore */
           fi
       }
    :: d_step {
           scanning && found_newer -> scanning = false;
           if
           :: slot[0] == 2 && !slot[1] -> slot[1] = 3
           :: else -> slot_give(3)
           fi;
           if
           :: slot[0] != 2 -> slot_give(2)
           :: else
           fi
       }

    FETCH(0)
    FETCH(1)
    EVICT(0)
    EVICT(1)
    INSERT(0)
    INSERT(1)
    CHAIN(0)
    CHAIN(1)
    :: d_step { /* the device has written, and commit */
           chain_block ->
           disk[chain_slot] = bytes[chain_page];
           from[chain_page]--;
           assert(disk[chain_slot] == chain_block);
           assert(page[chain_block - 1] == chain_page && !slot[chain_block - 1]);
           slot[chain_block - 1] = chain_slot;
           chain_block = 0; chain_slot = 0; chain_page = 0
       }
    :: d_step { /* another chain, from its order to its commit */
           !scanning && !other && !(taken[1] && taken[2] && taken[3]) ->
           other = FREE_SLOT; taken[other] = true; rewrite(other); disk[other] = 3
       }
    :: d_step { other -> slot_give(other); other = 0 }
    :: d_step { !lease_page && N_FREE -> take(p); lease_page = p; p = 0 } /* reserve */
    :: d_step { lease_page -> move(lease_page, PRIVATE, FREE); lease_page = 0 } /* release */
    :: d_step { /* what is there is right; nothing is lost */
           assert((!page[0] || bytes[page[0]] == 1) && (!page[1] || bytes[page[1]] == 2 && page[0]));
           assert(!slot[1] || slot[0]);
           assert(IN_FLIGHT || (GOES_ON(0) && GOES_ON(1)));
           assert(depth[0] || depth[1] || lease_page || N_FREE + N_CACHED == PAGES);
           assert(scanning || IN_FLIGHT || !(LEAKED(1) || LEAKED(2) || LEAKED(3)))
       }
    od
}
