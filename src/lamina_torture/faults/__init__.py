"""The rows of the fault matrix, by what they break.

    power        power loss: dropped, reordered and torn writes, names without data
    calls        each call of the disk fails, once or for ever, with every error it may return
    damage       bits, sectors, cuts, and files that have each other's name
    sectors      pages that a real device does not deliver
    mounts       real file systems: a full tmpfs, an ext4 image copied while it is written
    processes    forks, exits, second writers, locks of dead processes
    lifecycles   SIGKILL of real processes, at random instants and at chosen system calls
    interrupts   Ctrl-C and MemoryError wherever Python can raise them
    clock        the wall clock jumps while records are appended, leased and kept
    requests     answers are lost, requests are held back or repeated
    doors        clients of every door while the server is killed
    kafka        three Kafka libraries while the broker is killed, or its disk loses power
    kafka_transactions  transactions of those libraries while the broker is killed
    transactions each step of a transaction's life, and of the restart after it
    groups       consumer groups: each step of polls, acks and rotations
    races        readers between any two steps of a writer
    skew         versions to come, unknown kinds, directories of the release before
    failovers    machines of a cluster: the holder is cut off, killed, relieved or fenced
    generations  one store, used and crashed again and again
    cross        the product of formats, tiers, damages and users
    suites       rows that run test suites of the source checkout

Every module here is found by itself and declares its rows with a decorator; adding a row means
writing one function.

Rules.
1. A row names the invariants that it checks, and fails on nothing else.
2. A case has a name from which it can be run again alone.
3. The same row has a sample size for tests, one for CI and a long one.
"""
