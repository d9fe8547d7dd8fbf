"""The console: the log as a page, served beside the HTTP API below `/console`.

    pages      the door: the page, its files, its feeds and actions, and who may see them
    feeds      what pages show, as JSON: topics, groups, writers, archive, reports, queries
    attendance who is there: members of groups, connected Kafka clients
    looks      one look: at what, by whom, asking for what
    depth      zooming in: a partition's layers, a layer's blocks, a block's records, their bytes
    typed_look a typed topic: its schema, how versions differ, records as columns
    history    the last day, sampled; the newer, the finer
    premises   the server itself: version, disk, settings, keys, limits
    tail       new records of a topic as server-sent events
    found_records  records that were searched, as a file
    actions    what can be done from a page, each with the scope that it needs
    long_work  actions that take longer than a request, with progress and an end
    logins     a key is presented once, and a cookie stands for it from then on
    asked      what a page asks for, read within bounds
    shown      records as pages show them: cut to a bounded size, text told apart from bytes

The page itself is plain JavaScript in `static/`, with one vendored plotting library whose checksum
a test knows. It gets everything as JSON and makes every text node itself.

Rules.
1. What a record or a name holds is text on a page: it never becomes markup or a script.
2. A feed is answered from memory and indexes; only `depth`, `typed_look`, `tail` and
   `found_records` read records, and bounded numbers of them.
3. What changes something needs the same scope as the API's own call, and is logged.
4. A page never polls faster than its history is sampled.
"""
