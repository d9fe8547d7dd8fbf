"""`lamina serve`: one store behind Arrow Flight, HTTP, Kafka's protocol, and a console.

    client ─▶ flight · http · kafka · console ─▶ broker ─▶ store

The doors are thin. `flight` keeps streams open for appends and streams batches to readers; `http`
has JSON for small clients and the pages that machines watch; Kafka's protocol and the console are
in packages of their own. All of them hand their calls to `broker`, which asks whether the caller
may (`auth`), whether there is room (`limits`), calls the store, counts, and answers.

`service` is a server's life: listen (`listening` says why not), recover, serve, and on a signal
drain, answer and checkpoint. `settings` and `setting_table` say what can be configured, and from
where; `reloading` what may change while it runs, `certificates` among it. `health` with
`disk_watch` says what is wrong, `metrics` counts (`topic_counters` by topic, `writer_totals` fsyncs
and groups, `process_gauges` the server itself), `log_lines` is the log, `tracing` makes spans for
OpenTelemetry. `quotas` bounds the bytes of a key. `standing` says where the server stands in a
cluster, `clustered` makes it stand in one, and `http_errors` says what an error is in HTTP.
`subject_routes` is a schema registry as Confluent's clients expect it, `subject_answers` its calls.
`call_arguments` reads what a call is given, `scan_parts` sends a scan. `arriving` reads an HTTP
request within its bounds, `hasty` ends connections that are too slow, `sites` refuses requests that
a foreign web page makes in a user's name. `held_answers` counts an answer until its last byte was
taken, `replies` makes pages of JSON, `telling` leaves out topics that a key may not see; `jsonrows`
renders records as JSON, and `openapi` describes all routes but those of the registry, which are
Confluent's. `ahead` prepares the next batch of a scan while one is being sent; `shared_groups`
keeps the groups that clients use; a `connected_client` is one of the Kafka door.

Rules.
1. No storage logic here, and no method that the table in `lamina.wire.operations` does not have.
2. Whoever is beyond a limit is refused at once with Busy; nobody waits inside the server for room.
3. A key with a prefix learns nothing of topics outside of it, by no door and no error text.
4. Threads, descriptors and memory are bounded whatever clients do; a client that hangs up costs
   nothing from then on, and records it was about to get are given back.
5. What goes wrong inside is logged once and reaches the client as a typed error.

Where to look.
- who may call what: `auth` and the scopes in `lamina.wire.operations`
- what a shutdown waits for, and what a reload does: `service`, `reloading`
- how a request is bounded, and when it is answered Busy: `limits`, `arriving`, `hasty`
- where a route is declared: `lamina.wire.operations`, and `Routes.application` in `http`
- the status of an error: `STATUS` in `http_errors`, for Kafka `kafka.error_table`
"""
