"""The small files that are read and written whole, nearly all of them JSON.

    topic_file         topic.json: format, partitions, epoch, settings. It is what makes a topic
    ledger             ledger.json: why each missing range of offsets is missing
    broker_id          meta/broker.id: whose directory this is
    checkpoint         meta/checkpoint.json: how far each partition was durable, a hint
    archive_location   meta/archive.json: where the archive is
    cold_location      meta/cold.json: where the write-ahead log's cold directory is
    group_roster       meta/groups.json: which groups there are, apart from their own files
    group_copy         state/<group>.json in the archive: a group's state, to be found again
    position_file      positions/of-<group>.json: where a reader without a store stands
    archive_manifest   the list of a partition's archived objects, in the object store
    sink_transaction   commit.json and state.json of Spark's exactly-once sink
    tombstone          <base>.tomb: a segment is being deleted, and why

`strict_json` reads all of them: exactly the documented fields, each of its type, no duplicates, a
checksum over the whole. `flips` finds out what a file said before one bit of it changed, and tells
a flipped bit from a version that is really newer.

Rules.
1. A field that is missing, unknown or of another type is damage, never a default.
2. `decode(encode(x)) == x`, and `encode` gives the same bytes for the same value on any machine.
3. A newer version is refused with NewerFormat and left as it is; it may say what we cannot.
4. Damage raises CorruptData that says what was expected and what was found. The caller adds the
   path, because nothing here knows one.
"""
