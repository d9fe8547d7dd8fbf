"""The small files that are read and written whole, nearly all of them JSON.

    topic_file         topic.json: format, partitions, epoch, settings. A topic exists by this file
    topic_schemas      schemas.json: every version of a typed topic's schema
    ledger             ledger.json: why each missing range of offsets is missing
    broker_id          meta/broker.id: the identity of the store that owns the directory
    checkpoint         meta/checkpoint.json: how far each partition was durable, a hint
    archive_location   meta/archive.json: where the archive is
    archive_proof      proof.json in the object store: whether it is fit to be an archive
    lease_file         lease.json in the object store: who holds a cluster
    tail_boundary      tail/boundary.json in the object store: which tails may be gone
    seat_file          meta/seat.json: under which epoch of its cluster a directory was served last
    cold_location      meta/cold.json: where the write-ahead log's cold directory is
    group_roster       meta/groups.json: the names of all groups, apart from their own files
    group_copy         state/<group>.json in the archive: a copy of a group's state
    producer_ids       meta/producers.json: which ids were given to Kafka producers
    group_settings     meta/group-settings.json: what was set of share groups by name
    position_file      positions/of-<group>.json: the position of a reader without a store
    archive_manifest   the list of a partition's archived objects, in the object store
    sink_transaction   commit.json and state.json of Spark's exactly-once sink
    tombstone          <base>.tomb: a segment is being deleted, and why

`strict_json` reads all of them: exactly the documented fields, each of its type, no duplicates, a
checksum over the whole. `flips` distinguishes a flipped bit from a version that is really newer,
where no checksum covers the version.

Rules.
1. A field that is missing, unknown or of another type is damage, never a default.
2. `decode(encode(x)) == x`, and `encode` returns the same bytes for the same value everywhere.
3. A newer version raises NewerFormat and stays as it is: it may hold what we cannot express.
4. Damage raises CorruptData with what was expected and what was found. The caller adds the path,
   because nothing here knows one.
"""
