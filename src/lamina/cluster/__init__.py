"""Two brokers and one bucket: who holds a cluster, what it has committed, who takes over.

    lease.json           who holds it: replaced on the condition that it is the one that was read
    tail/<seq>.tail      one window of all partitions: creating the object commits it
    tail/boundary.json   below it tails may be gone, because everything in them is in the archive

Lamina has no consensus protocol: the object store's conditional writes decide. A takeover raises
the lease's epoch by one (`lease`), puts an empty window, the fence, into the next slot (`tails`),
and reads what is in the slots before it. A holder of an earlier epoch that wakes up meets the
fence: its own window finds the slot taken, and it stops. None of that depends on clocks. Clocks
only limit how long a holder may answer from its own disk, and no two clocks are ever compared.

Nothing here reads a clock or touches an object store: `steps` has the requests as values, so that
tests can run two brokers through every order of events.

Rules.
1. The epoch only grows, even if the lease is lost. No two contents of the lease are ever equal.
2. Slots are dense. A broker that finds its slot taken is fenced, and stops for good.
3. The boundary moves before anything below it is removed, and every read of a window is followed by
   a read of the boundary: a slot below it is used up, whatever it holds. A fence is never removed.
4. A request whose outcome is unknown may still take effect at any later time. Its sender continues
   only from what it then reads.

Where to look.
- what a process is in its cluster, and what it does next: the drawing in `member`
- when a holder stops answering, and when a standby may take over: `Holding` and `Watch` in `lease`
- what `acks=archived` waits for in a cluster: `TailLog.commit` in `tails`
- what is not built yet: docs/cluster.md
"""
