/*
 * spill.pml - a snapshot goes to the disk, or comes back, while it is saved again, held, swept, forgotten.
 *
 * THE CODE   daemon/snapshot_spill.c spill_begin, spill_cancel, spill_over, snapshot_fetch, fetch_over,
 *            blob_drop, linger_over, snapshots_step; daemon/snapshot.c snapshot_save, displace(),
 *            entry_leave, entry_free, slot_let_go, snapshot_hold, snapshots_forget; daemon/disk_state.c
 *            state_put, slot_step, write_over, state_get, state_read_over, state_drop, state_step
 *
 *      save --> entry of the tree (one position) ---- owns: a slot of the pool (RESIDENT)
 *                    | displaced: out of the tree,           or a blob (TIERED), and what is under way
 *                    v as long as it is held          blob[e]: its slot of the file
 *      move     a transfer of the tier: entry, slot, file slot, stage; dropped: nobody wants it
 *      key      (entry, generation), never used twice: here a flag wherever a key is kept, true as long
 *               as it is still its entry's
 *      bytes    of slots and file slots: which entry's they are, as it is used now; 0: nobody's any more
 *
 * PROPERTIES  A state that is offered is what was saved: in its slot, or in its file slot. A slot, of either
 *            kind, is handed out only when no device uses it. A held one that is resident stays so. Who forgets
 *            by key forgets what the key named. When no transfer is under way, every slot belongs to
 *            one entry, or is free.
 *
 * LEFT OUT   Ranks, sessions, kinds: any entry may go at any time. The chain of the prefix comes before
 *            the write (pages.pml has chains): a put waits, or fails. The copy of a block committed to one
 *            that was inserted again: pages.pml, CHAIN_HOLDS_NOTHING. Restart. tier_memory.c, which is the
 *            same interface without a device. One position, two entries, two slots, two file slots.
 *
 * MUTATION NO_LINGER          slot_let_go: a slot that a dropped transfer still uses is not free
 * MUTATION FILE_SLOT_AT_ONCE  state_drop: the file slot of an order under way is not free
 * MUTATION NO_DROPPED         write_over, state_read_over: a dropped move is no blob, and says DROPPED
 * MUTATION HOLD_LETS_SPILL    snapshot_hold: a spill under way is cancelled
 * MUTATION KEYS_ARE_ENTRIES   key_new: another generation for each blob
 * MUTATION OVER_AS_UNDER_WAY  state_drop: what is over is gone; only an order cannot be called back
 * MUTATION FREED_WHILE_HELD   entry_leave: what is held is freed by its last holder
 * MUTATION FETCHED_STAYS      fetch_over: the blob goes when the state has come
 */
#define ENTRIES 2
#define SLOTS   2
#define MOVES   3

mtype = { FREE, PRIVATE, CACHED, INFLIGHT }; /* slots */
mtype = { SPILL, FETCH };
mtype = { WAITS, IO, OVER };
mtype = { DONE, ERROR, MISS, DROPPED };

typedef entry_t {
    bool used, in_tree, tiered, held, lost;
    mtype transfer;
    byte slot, blob; /* blob: its file slot */
    bool bad, blob_key   /* blob_key: the blob's key is the entry's */
}
typedef move_t {
    mtype stage, outcome;
    bool write, dropped, key;
    byte entry, slot, file
}
entry_t e[ENTRIES + 1];
move_t m[MOVES];
mtype state[SLOTS + 1] = FREE;
byte bytes[SLOTS + 1], io[SLOTS + 1], lingering[SLOTS + 1];
byte file[SLOTS + 1], file_io[SLOTS + 1];
bool file_taken[SLOTS + 1];
byte reserved; /* by a lease */
byte w_entry;  /* of a key that a worker was told, */
bool w_key;    /* which is the entry's still */
bool w_same;   /* ghost: it is the entry that it was */

inline move_over(x)
{
    m[x].stage = 0; m[x].outcome = 0; m[x].write = false; m[x].dropped = false; m[x].key = false;
    m[x].entry = 0; m[x].slot = 0; m[x].file = 0
}

inline pool(it, was, is)
{
    assert(state[it] == was);
    state[it] = is;
    bytes[it] = (is == FREE && !io[it] -> 0 : bytes[it])
}

inline slot_take(s)
{
    s = (state[1] == FREE -> 1 : 2);
    assert(!io[s] && !lingering[s]);
    pool(s, FREE, PRIVATE)
}

#ifdef NO_LINGER
#define LINGERS(s) false
#else
#define LINGERS(s) (lingering[s] > 0)
#endif

inline slot_let_go(it)
{
    state[it] = (LINGERS(it) -> INFLIGHT : FREE);
    bytes[it] = (state[it] == FREE && !io[it] -> 0 : bytes[it])
}

inline file_give(it)
{
    file_taken[it] = false;
    file[it] = (file_io[it] -> file[it] : 0)
}

#ifdef OVER_AS_UNDER_WAY
#define UNDER_WAY(x) (m[x].stage == IO || m[x].stage == OVER)
#else
#define UNDER_WAY(x) (m[x].stage == IO)
#endif

/* blob_drop and state_drop; the entry's key is no more. */
inline blob_drop(i)
{
    x = 0;
    do
    :: x < MOVES && !(m[x].stage && m[x].entry == i && m[x].key && !m[x].dropped) -> x++
    :: else -> break
    od;
    if
    :: e[i].blob && e[i].blob_key ->
       if
#ifdef FILE_SLOT_AT_ONCE
       :: true -> file_give(e[i].blob)
#else
       :: x == MOVES || m[x].stage != IO -> file_give(e[i].blob)
#endif
       :: else
       fi;
       e[i].blob = 0; e[i].bad = false; e[i].blob_key = false
    :: else
    fi;
    if
    :: x < MOVES && UNDER_WAY(x) ->
       m[x].dropped = true;
#ifdef FILE_SLOT_AT_ONCE
       if
       :: m[x].write && m[x].stage == IO -> file_give(m[x].file)
       :: else
       fi;
#endif
       lingering[e[i].slot]++
    :: x < MOVES && !UNDER_WAY(x) -> move_over(x)
    :: else
    fi;
#ifndef KEYS_ARE_ENTRIES
    x = 0;
    do
    :: x < MOVES -> m[x].key = m[x].key && m[x].entry != i; x++
    :: else -> break
    od;
    w_key = w_key && w_entry != i;
#endif
    x = 0
}
inline entry_free(i)
{
    if
    :: e[i].tiered -> blob_drop(i)
    :: else
    fi;
    if
    :: e[i].transfer == FETCH || !e[i].tiered -> slot_let_go(e[i].slot)
    :: else
    fi;
    e[i].used = false; e[i].tiered = false; e[i].lost = false;
    e[i].transfer = 0; e[i].slot = 0;
    bytes[1] = (bytes[1] == i -> 0 : bytes[1]); bytes[2] = (bytes[2] == i -> 0 : bytes[2]);
    file[1] = (file[1] == i -> 0 : file[1]); file[2] = (file[2] == i -> 0 : file[2]);
    w_same = w_same && w_entry != i
}

inline entry_leave(i)
{
    if
    :: e[i].transfer == SPILL -> blob_drop(i); e[i].transfer = 0
    :: else
    fi;
    e[i].in_tree = false;
    if
#ifdef FREED_WHILE_HELD
    :: true -> entry_free(i)
#else
    :: !e[i].held -> entry_free(i)
#endif
    :: else
    fi
}

inline put(i, is_write)
{
    x = (!m[0].stage -> 0 : (!m[1].stage -> 1 : 2));
    m[x].stage = WAITS;
    m[x].write = is_write;
    m[x].entry = i;
    m[x].slot = e[i].slot;
    m[x].file = (is_write -> 0 : e[i].blob);
    m[x].key = true;
    x = 0
}
#define ROOM (!m[0].stage || !m[1].stage || !m[2].stage)

/* snapshots_step: what move k says. */
inline step(k)
{
    i = m[k].entry;
    if
    :: m[k].outcome == DROPPED ->
       i = m[k].slot;
       move_over(k);
       assert(lingering[i]);
       lingering[i]--;
       if
       :: !lingering[i] && state[i] == INFLIGHT -> pool(i, INFLIGHT, FREE)
       :: else
       fi
    :: m[k].outcome != DROPPED && e[i].used && m[k].key && e[i].transfer == SPILL ->
       o = m[k].outcome;
       move_over(k);
       if
       :: o == DONE -> e[i].transfer = 0; e[i].tiered = true; slot_let_go(e[i].slot); e[i].slot = 0
       :: else -> blob_drop(i); e[i].transfer = 0; entry_leave(i)
       fi
    :: m[k].outcome != DROPPED && e[i].used && m[k].key && e[i].transfer == FETCH ->
       o = m[k].outcome;
       move_over(k);
       e[i].transfer = 0;
       if
       :: o == DONE ->
          pool(e[i].slot, PRIVATE, CACHED);
#ifndef FETCHED_STAYS
          blob_drop(i);
#endif
          e[i].tiered = false
       :: else ->
          pool(e[i].slot, PRIVATE, FREE);
          e[i].slot = 0;
          e[i].lost = (o == MISS);
          if
          :: e[i].lost && e[i].in_tree -> entry_leave(i)
          :: else
          fi
       fi
    :: else -> move_over(k)
    fi;
    i = 0; o = 0
}

#ifdef NO_DROPPED
#define NOBODYS(k) false
#else
#define NOBODYS(k) m[k].dropped
#endif

/* The device is through with move k. */
inline io_over(k, how)
{
    io[m[k].slot]--;
    file_io[m[k].file]--;
    m[k].stage = OVER;
    if
    :: m[k].write ->
       file[m[k].file] = (how == DONE -> bytes[m[k].slot] : 0);
       if
       :: how == DONE && !NOBODYS(k) ->
          i = m[k].entry;
          e[i].blob = m[k].file; e[i].bad = false; e[i].blob_key = m[k].key;
          m[k].outcome = DONE;
          i = 0
       :: else ->
          file_give(m[k].file);
          m[k].outcome = (NOBODYS(k) -> DROPPED : ERROR)
       fi
    :: else ->
       bytes[m[k].slot] = (how == DONE -> file[m[k].file] : 0);
       if
       :: NOBODYS(k) -> file_give(m[k].file); m[k].outcome = DROPPED
       :: else -> e[m[k].entry].bad = (how == MISS); m[k].outcome = how
       fi
    fi
}

#define MOVE(k) \
    :: d_step { m[k].stage == WAITS && m[k].write && !(file_taken[1] && file_taken[2]) -> \
                m[k].file = (file_taken[1] -> 2 : 1); file_taken[m[k].file] = true; \
                assert(!file_io[m[k].file]); \
                m[k].stage = IO; io[m[k].slot]++; file_io[m[k].file]++ } \
    :: d_step { m[k].stage == WAITS && m[k].write -> m[k].stage = OVER; m[k].outcome = ERROR } \
    :: d_step { m[k].stage == WAITS && !m[k].write -> \
                m[k].stage = IO; io[m[k].slot]++; file_io[m[k].file]++ } \
    :: d_step { m[k].stage == IO -> io_over(k, DONE) } \
    :: d_step { m[k].stage == IO -> io_over(k, ERROR) } \
    :: d_step { m[k].stage == IO && !m[k].write -> io_over(k, MISS) } \
    :: d_step { m[k].stage == OVER -> step(k) }

#define ENTRY(i) \
    :: d_step { e[i].in_tree && !e[i].tiered && !e[i].transfer && !e[i].held && ROOM -> \
                e[i].transfer = SPILL; put(i, true) } \
    :: d_step { e[i].used && e[i].held && e[i].tiered && !e[i].transfer && !e[i].lost && ROOM && \
                e[i].blob_key && !e[i].bad && (state[1] == FREE || state[2] == FREE) -> \
                slot_take(s); e[i].slot = s; s = 0; e[i].transfer = FETCH; put(i, false) } \
    :: d_step { e[i].in_tree && !e[i].held -> HOLD(i); e[i].held = true } \
    :: d_step { e[i].held -> e[i].held = false; \
                if \
                :: !e[i].in_tree -> entry_free(i) \
                :: else \
                fi } \
    :: d_step { e[i].in_tree -> entry_leave(i) } /* evicted, swept, flushed */ \
    :: d_step { e[i].in_tree && e[i].tiered && !w_entry -> w_entry = i; w_key = true; w_same = true }
#ifdef HOLD_LETS_SPILL
#define HOLD(i) skip
#else
#define HOLD(i) \
    if \
    :: e[i].transfer == SPILL -> blob_drop(i); e[i].transfer = 0 \
    :: else \
    fi
#endif

/* What an entry has is what was saved. */
#define RIGHT(i) (!e[i].used || e[i].lost || \
                  (!e[i].tiered && state[e[i].slot] == CACHED && bytes[e[i].slot] == i) || \
                  (e[i].tiered && e[i].blob && (e[i].bad || file[e[i].blob] == i)))
#define OWNS(i, s) (e[i].used && e[i].slot == s && (!e[i].tiered || e[i].transfer == FETCH))
#define OWNED(s) (OWNS(1, s) + OWNS(2, s) + (reserved == s))
#define BLOB(s) ((e[1].blob == s) + (e[2].blob == s))
#define QUIET (!m[0].stage && !m[1].stage && !m[2].stage)

active proctype daemon()
{
    byte i, s, x;
    mtype o;

    do
    :: d_step { /* a lease reserves a slot, saves into it, or gives it back */
           !reserved && (state[1] == FREE || state[2] == FREE) -> slot_take(s); reserved = s; s = 0
       }
    :: d_step {
           reserved && !(e[1].used && e[2].used) ->
           i = (e[1].in_tree -> 1 : (e[2].in_tree -> 2 : 0));
           if
           :: i -> entry_leave(i) /* displaced */
           :: else
           fi;
           i = (e[1].used -> 2 : 1);
           e[i].used = true; e[i].in_tree = true; e[i].slot = reserved;
           bytes[reserved] = i;
           pool(reserved, PRIVATE, CACHED);
           reserved = 0; i = 0
       }
    :: d_step { reserved -> pool(reserved, PRIVATE, FREE); reserved = 0 }

    ENTRY(1)
    ENTRY(2)
    MOVE(0)
    MOVE(1)
    MOVE(2)

    :: d_step { /* snapshots_forget, by a key that may be old */
           w_entry ->
           if
           :: w_key && e[w_entry].used && e[w_entry].in_tree && e[w_entry].tiered ->
              assert(w_same);
              i = w_entry;
              entry_leave(i);
              i = 0
           :: else
           fi;
           w_entry = 0; w_key = false; w_same = false
       }
    :: d_step {
           assert(RIGHT(1) && RIGHT(2));
           assert((!e[1].held || e[1].used) && (!e[2].held || e[2].used));
           assert(!(e[1].held && e[1].transfer == SPILL) && !(e[2].held && e[2].transfer == SPILL));
           assert(OWNED(1) <= 1 && OWNED(2) <= 1 && BLOB(1) <= 1 && BLOB(2) <= 1);
           assert(!QUIET || ((state[1] != FREE) == OWNED(1) && (state[2] != FREE) == OWNED(2)));
           assert(!QUIET || (file_taken[1] == BLOB(1) && file_taken[2] == BLOB(2)));
           assert((!file_io[1] || file_taken[1]) && (!file_io[2] || file_taken[2]))
       }
    od
}
