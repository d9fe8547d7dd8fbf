"""Kafka's protocol in front of the store: every Kafka client talks to `lamina serve`.

    client ─▶ client_connection ─▶ handling ─▶ a handler ─▶ broker, store ─▶ its answer, in order

One event loop in one thread serves all clients. Slow work is done elsewhere: the log's own writers
append, and a small pool of threads reads, decodes large batches and makes calls that may block.

    listener            the port, the loop, TLS, start and stop
    tls_entrance        a connection until its TLS handshake is complete
    client_connection   frames in, answers out in order, backpressure
    handling            which handler answers which API; versions and keys
    sessions            what a handler gets: the server, the client, one request
    error_table         Kafka's error code for each of our errors
    cluster_metadata    versions, the one broker, topics with auto-creation
    elsewhere           the same while another server holds the cluster; all else is refused
    topic_ids           ids of topics
    producing           batches become appends
    unpacking           how much memory compressed batches may take
    fetching            records become batches; long polls; holes
    arrivals            waiting for appends without a thread
    offset_lookup       the earliest and latest offset, and offsets by time
    record_deletion     deleting the records below an offset
    topic_admin         topics and their settings
    partition_growth    more partitions for a topic
    producer_numbers    ids for idempotent producers
    transacting         transactional ids, and the ends of transactions
    transactional_produce  batches that wait for the end of a transaction
    classic_groups      members of consumer groups
    group_offsets       offsets that groups have committed
    share_groups        members of share groups; groups of both kinds listed and deleted
    share_offsets       offsets of share groups: described, altered and deleted
    share_sessions      what each share consumer fetches, and which records it holds
    share_fetching      records for one member alone; long polls
    share_acknowledging a member's verdicts on the records that it holds
    sasl                PLAIN, with an API key as the password
    throttling          bytes per second, per key

Rules.
1. Nothing blocks the loop: appends are awaited; reads and changes of topics run in the pool.
2. Answers leave in the order of requests, and the appends of a connection are made in that order.
3. Keys, scopes, prefixes, limits and draining work as at the other doors.
4. Every failure gets the error code that makes clients do the right thing; one without a code ends
   the connection, with a line in the log.
5. A peer that does not speak Kafka's protocol is disconnected, and costs only bounded memory.

`docs/kafka.md` says what works with which client, and what is refused.
"""
