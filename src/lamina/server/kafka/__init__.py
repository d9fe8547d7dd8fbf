"""Kafka's protocol in front of the store: every Kafka client talks to `lamina serve`.

    client ─▶ client_connection ─▶ handling ─▶ a handler ─▶ broker, store ─▶ its answer, in order

One event loop in one thread serves all clients. What takes long is done elsewhere: the log's own
writers append, a small pool reads, decodes what is large and calls what may block.

    listener            the port, the loop, TLS, start and stop
    tls_entrance        a connection until its TLS handshake is done
    client_connection   frames in, answers out in order, backpressure
    handling            which handler answers which API; versions and keys
    sessions            what a handler sees: the server, the client, one request
    error_table         which of Kafka's numbers stands for which of our errors
    cluster_metadata    versions, the one broker, topics with auto-creation
    elsewhere           the same, and a no, while another server holds the cluster
    topic_ids           ids of topics
    producing           batches become appends
    unpacking           the room that compressed batches take
    fetching            records become batches; long polls, holes
    arrivals            waiting for appends without a thread
    offset_lookup       offsets by position and by time
    record_deletion     records below an offset
    topic_admin         topics and their settings
    partition_growth    more partitions for a topic
    producer_numbers    ids for idempotent producers
    transacting         transactional ids, and the ends of transactions
    transactional_produce  batches that wait for the end of a transaction
    classic_groups      members of consumer groups
    group_offsets       what groups have committed
    share_groups        members of share groups; groups of both kinds listed and deleted
    share_offsets       where share groups stand: told, moved and forgotten
    share_sessions      what each share consumer looks at, and what it holds
    share_fetching      records for one member alone; long polls
    share_acknowledging what a member says of the records that it holds
    sasl                PLAIN, with an API key as the password
    throttling          bytes per second and key

Rules.
1. Nothing blocks the loop: an append is awaited, a read or a change of topics is in the pool.
2. Answers leave in the order of requests, and appends of one connection enter in that order.
3. Keys, scopes, prefixes, limits and drain are those of the other doors.
4. Every failure has a number of Kafka's that makes clients do the right thing; one that has none
   ends the connection with a line in the log.
5. Whoever does not speak Kafka's protocol is disconnected within bounded memory.

`docs/kafka.md` says what works with which client, and what is refused.
"""
