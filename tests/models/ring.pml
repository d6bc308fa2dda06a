/*
 * ring.pml - a ring, its records and the wake-up beside it, on a machine with store buffers.
 *
 * THE CODE   shm/ring.h: ring_claim, ring_post, ring_peek, ring_drop, doze_begin, doze_end,
 *            doze_must_wake; who calls them in this order: daemon/loop.c nap(), session_look and
 *            turn_of_all with client/channel.c channel_post; client/channel.c channel_await (doze_end)
 *            and channel_leave (a new nap without doze_end) with daemon/session.c session_turn;
 *            daemon/swap.c and swap_thread.c in both directions.
 *
 *      writer w                store buffer            memory            store buffer      sleeper
 *      private tail, head ---> [tail, entry ...] ---> entry[], tail
 *      answered          <------------------------- head, doze <------- [head, doze ...]   private heads
 *                         packets[w]: what the sleeper polls: one is as good as many
 *
 * Each process has its own FIFO of stores (x86-64's TSO): a store goes into it, a process of its own
 * brings the oldest to memory at any later moment, a load reads memory. No one loads what he stores
 * himself (each side keeps its own index, and its doze word, privately), so buffers need no look-up.
 * A full fence waits until the own buffer is empty; acquire and release are nothing here, for TSO
 * keeps stores among themselves, and loads, in order.
 *
 * PROPERTIES  A sleeper with a record in a ring, whose writers do no more, is woken: else it sleeps for
 *            ever and the search ends in an invalid end state (sleeps have no time limit here, so that a
 *            lost wake-up cannot hide behind it). What is taken is what was posted, in order. No entry
 *            is written while it can be read.
 *
 * LEFT OUT   Other memory orders than TSO (tests/litmus has POST and DROP in the other order, too; the
 *            daemon is built for x86-64 first). The wrap of the 32-bit words: only differences are
 *            compared, and a nap number that comes again after 2^31 naps of which a writer saw none would
 *            cost one wake-up, which the time limit of the nap ends. A full ring: writers wait by polling
 *            (loop.c PAUSED_MS; calls retry), so it is a wait for the head. RING_BROKEN: hostile peers are
 *            the fuzzers' business. Records are one word: POST and DROP order all of it alike. Two
 *            writers, three records in all, a ring of one entry: every role meets every other at a
 *            full and at an empty ring, in a first and in a later nap. Buffers hold all stores that are
 *            made between two fences, or in a whole run: an assertion says so.
 *
 * MUTATION NO_DOZE_1        the sleeper's fence between its doze store and its look at the ring
 * MUTATION NO_DOZE_2        the writer's fence between its tail store and its look at the doze word
 * MUTATION NO_SECOND_LOOK   the sleeper's look at the ring after it has said that it dozes
 * MUTATION NAPS_LOOK_ALIKE  the count of naps: the word is 1 or 0
 * MUTATION DRAIN_LATE       the order of packets: those of earlier naps are taken after the second look
 * MUTATION POST_EARLY       the order of POST: the tail is stored before the record
 * MUTATION DROP_EARLY       the order of DROP: the head is stored before the record is read
 */
#define WRITERS 2
#define RECORDS 3   /* in all */
#define ROOM    10  /* of a store buffer */

/* Memory. Writer w has a ring of one entry; tails and heads run free. */
byte entry[WRITERS];
byte tail[WRITERS];
byte head[WRITERS];
byte doze;
bool packet[WRITERS];

byte posted[WRITERS]; /* ghosts: how many each writer has posted, and the sleeper taken */
byte taken[WRITERS];
byte left_to_post = RECORDS;

mtype = { ENTRY, TAIL, HEAD, DOZE };
chan of_writer[WRITERS] = [ROOM] of { mtype, byte };
chan of_sleeper = [ROOM] of { mtype, byte, byte };

/* The hardware. */
active [WRITERS] proctype writer_buffer()
{
    byte v;
end:
    do
    :: atomic { of_writer[_pid]?ENTRY, v -> entry[_pid] = v; v = 0 }
    :: atomic { of_writer[_pid]?TAIL, v -> tail[_pid] = v; v = 0 }
    od
}

active proctype sleeper_buffer()
{
    byte w, v;
end:
    do
    :: atomic { of_sleeper?HEAD, w, v -> head[w] = v; w = 0; v = 0 }
    :: atomic { of_sleeper?DOZE, _, v -> doze = v; v = 0 }
    od
}

inline store(what, value)
{
    assert(nfull(of_writer[me]));
    of_writer[me]!what, value
}

/* channel_post: claim, post, must_wake, send. */
proctype writer(byte me)
{
    byte own_tail, nap, answered;
    do
    :: atomic { left_to_post > 0 -> left_to_post-- }
       head[me] == own_tail; /* ring_claim: DROP; until there is room */
       assert(taken[me] == own_tail);
#ifdef POST_EARLY
       own_tail++;
       store(TAIL, own_tail);
       store(ENTRY, own_tail);
#else
       store(ENTRY, own_tail + 1);
       own_tail++;
       store(TAIL, own_tail);
#endif
       posted[me] = own_tail;
#ifndef NO_DOZE_2
       empty(of_writer[me]); /* DOZE-2 */
#endif
       nap = doze;
       if
       :: atomic { (nap & 1) && nap != answered -> answered = nap; packet[me] = true }
       :: else
       fi;
       nap = 0
    :: atomic { left_to_post == 0 -> break }
    od
}

#define MORE(w) (tail[w] != own_head[w])

/* take: ring_peek and ring_drop of all that is there. */
inline take(w)
{
    do
    :: MORE(w) ->
#ifdef DROP_EARLY
        own_head[w]++;
        of_sleeper!HEAD, w, own_head[w];
        got = entry[w];
        taken[w]++;
#else
        got = entry[w];
        taken[w]++;
        own_head[w]++;
        assert(nfull(of_sleeper));
        of_sleeper!HEAD, w, own_head[w];
#endif
        assert(got == own_head[w]);
        got = 0
    :: else -> break
    od
}

active proctype sleeper()
{
    byte own_head[WRITERS], own_doze, got;
    atomic { run writer(0); run writer(1) }
    do
    :: take(0);
       take(1);
       if
       :: own_head[0] + own_head[1] == RECORDS -> break
       :: else
       fi;
       /* doze_begin */
#ifdef NAPS_LOOK_ALIKE
       own_doze = 1;
#else
       own_doze = (own_doze + 1) | 1;
#endif
       assert(nfull(of_sleeper));
       of_sleeper!DOZE, 0, own_doze;
#ifndef NO_DOZE_1
       empty(of_sleeper); /* DOZE-1 */
#endif
       if
#ifndef NO_SECOND_LOOK
       :: MORE(0)
       :: !MORE(0) ->
          if
          :: MORE(1)
          :: !MORE(1) ->
#ifdef DRAIN_LATE
             packet[0] = false;
             packet[1] = false;
#endif
             packet[0] || packet[1] /* poll */
          fi
#else
       :: packet[0] || packet[1]
#endif
       fi;
       if
       :: own_doze = (own_doze + 1) & 254; /* doze_end; the next nap follows on it */
          assert(nfull(of_sleeper));
          of_sleeper!DOZE, 0, own_doze
       :: skip /* channel_leave: the word stays odd until the next nap */
       fi;
       packet[0] = false; /* hear, channel_drain: one descriptor after the other */
       packet[1] = false
    od
}
