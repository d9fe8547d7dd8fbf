"""A served store for programs on other machines, and producers and consumers under known names.

    remote_store     the same methods, types and errors as an embedded store
    remote_group     the same for a consumer group
    calls            one operation asked of the server, answered as a typed value
    servers          the addresses of a cluster, and which one is asked
    connection       deadlines, typed errors, pauses before a call is repeated
    refusals         why a server cannot be reached, in a sentence
    trust            which certificates are trusted
    append_sessions  open streams for appends; who this client is, so that a repeat is stored once
    key_split        which partition takes which keyed records: a use of kernels
    typed_values     values of typed topics as columns and back: the other use of kernels
    producer         `Producer` as confluent-kafka has it
    consumer         `Consumer` likewise
    consumer_settings  what a consumer may be told
    group_member     a consumer's membership of a group: joining, heartbeats, its share
    assignors        who of a group's members reads what: Kafka's assignors
    committed        where a consumer's positions are kept
    message          `TopicPartition`, `Message`, and the names of special offsets

Most methods of `RemoteStore` are made from the table in `lamina.wire.operations`; those that carry
records are written out. `Producer` and `Consumer` work on either kind of store.

Rules.
1. Importing the client loads no kernel and no storage engine; a test measures it. Only keyed
   records for several partitions need a kernel, and load it when the first of them are appended.
2. An append that is sent again after a broken connection is stored once: each carries a stamp.
3. A call has one deadline. What is repeated, and with which pause, is decided in `connection`
   alone.
4. When a deadline passes and it is unknown whether records were stored, the error says exactly
   that.
"""
