"""Two brokers and one bucket: who holds a cluster, what it has committed, who takes over.

    lease.json           who holds it: replaced on the condition that it is the one that was read
    tail/<seq>.tail      one window of all partitions: creating the object commits it
    tail/boundary.json   below it tails may be gone, because everything in them is in the archive

There is no consensus of our own: the object store's conditional writes decide. A takeover raises
the lease's epoch by one (`lease`), puts an empty window, the fence, into the next slot (`tails`),
and reads what is in the slots before it. A holder of an earlier epoch that wakes up meets the
fence: its own window finds the slot taken, and it stops. Nothing in that depends on clocks. They
matter only to how long a holder answers for what is on its disk alone, and for that no two clocks
are compared.

Nothing here reads a clock or touches an object store: `steps` has the requests as values, so that
tests run two brokers through every order of events.

Rules.
1. The epoch only grows, also if the lease is gone. No two contents of the lease are ever equal.
2. Slots are dense. A slot that somebody else has taken means: fenced, stop, for good.
3. The boundary moves before anything below it is removed, and is read after every window that was
   read: a slot below it is used up, whatever is there. A fence is never removed.
4. A request whose outcome is not known may be carried out at any later moment. Whoever sent it goes
   on only from what it finds.

Where to look.
- what a process is in its cluster, and what it does next: the drawing in `member`
- when a holder stops answering, and when a standby may take over: `Holding` and `Watch` in `lease`
- what `acks=archived` waits for in a cluster: `TailLog.commit` in `tails`
- what is not built yet: docs/cluster.md
"""
