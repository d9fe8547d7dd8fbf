"""The fault harness: breaks a store in every way of a matrix, and holds it to its promises.

    lamina torture --fault F4 --format wal --seed 7

A row of the matrix (`rows`) says what it breaks, which invariants must hold, and how often it
tries. `running` runs rows and prints, for whatever does not hold, the one command that repeats
that case, and `budgets` holds each trial to the threads, descriptors and memory that it began with.
docs/reliability.md has the table; `page` makes it from the log of a run.

Simulated faults. `simulated` is a file system behind `lamina.storage.files` that knows of each
byte and each name whether it is durable (`disk`), can fail any call, fill up, and lie about a
sync. `workloads` are what is done to a store meanwhile, `scribe` writes down what was promised at
each step, `losing` makes every disk that a crash at that step may leave, and `surviving` checks
each of them against `promises`.

Real faults. `forked` starts processes and kills them for real, `worker` and `lives` are what they
do, `witness` judges what they leave, `hosting` does the same with servers,
`bad_disk` is a device with unreadable sectors, `network` loses answers, `interrupted` raises
Ctrl-C and MemoryError anywhere. `driving`, `kafka_driving` and `spark_driving` run clients through
every door at once, and `histories` judges what they saw by the rules of Jepsen's workload for
Kafka.
`kafka_clients` are producers and groups of three Kafka libraries behind `kafka_tap`, and
`group_histories` judges the groups; `transactional_clients` are producers with transactions of the
same libraries. `cross` is the product of formats, tiers, damages and users.

`client` is a program that survives errors and remembers what it was told, `small` a directory with
a file of each kind, `clocks` a clock that a row sets, and `command` is `lamina torture`.

Rules.
1. A seed repeats a case exactly; nothing in the simulated rows happens by a timer.
2. A row that cannot fail proves nothing: mutants of Lamina, each with one safety step left out,
   must be caught by the rows that are named for them (tests/torture).
3. Production code knows nothing of this package, and has no switch for it.
4. What a row counts is what was really done: a fault that hit nothing is not a case.
"""
