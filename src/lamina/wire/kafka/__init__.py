"""Kafka's messages: what every API looks like in every version, and code that is made from it.

    bytes of a frame ─framing─▶ header ─codec─▶ dict ─▶ (the door) ─▶ dict ─codec─▶ buffers

A message is a dict of plain values: numbers, strings, bytes, lists, and dicts for what is nested.
Fields that a version does not have are there with their default when a message is parsed, and are
left out when it is written, so that a handler is written once for all versions.

    message_schema     what a field is: name, type, versions, nullable from, tag, default
    connection_apis    versions, SASL, the cluster
    record_apis        produce, fetch, offsets, producer ids
    topic_apis         metadata, topics, partitions, settings
    group_apis         coordinators, classic groups, committed offsets
    share_apis         share groups
    transaction_apis   transactions
    apis               all of them by key
    codec_source       writes the source of a function for one version of one message
    codec              compiles (API, version, direction) into a straight function on first use
    framing            headers of requests and responses, and whole frames
    error_codes        Kafka's numbers for what went wrong
    consumer_protocol  what consumers of a group say to each other, and who gets which partitions

The tables are text, one line per field, because they are read by people who compare them with the
protocol's guide. Tests let kio and kafka-python judge every version of every message, both ways.

Rules.
1. What arrives is hostile: a length is compared with what is left of the frame before anything of
   that length is made, and a message has at most `codec.ITEMS_MAX` items, however they nest.
2. Records are never copied: they are parsed as a view of the frame and written as buffers of
   their own.
3. Unknown tagged fields are skipped; a malformed message raises MalformedMessage and nothing else.
4. Nothing here knows what a message means.
"""
