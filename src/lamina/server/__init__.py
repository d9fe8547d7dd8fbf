"""`lamina serve`: one store behind Arrow Flight, HTTP, and a console.

    client ─▶ flight · http · console ─▶ broker ─▶ store

The doors are thin. `flight` keeps streams open for appends and streams batches to readers; `http`
has JSON for small clients and the pages that machines watch; the console is in a package of its
own. All three hand their calls to `broker`, which asks whether the caller may (`auth`), whether
there is room (`limits`), calls the store, counts, and answers.

`service` is a server's life: listen, recover, serve, and on a signal drain, answer and checkpoint.
`settings` and `setting_table` say what can be configured and where from. `health` and `metrics`
are for those who watch. `arriving` reads what an HTTP request brings, `hasty` ends connections
that do not get on, `sites` refuses web pages that speak for somebody without a key. `held_answers`
counts an answer until its last byte was taken, `replies` makes pages of JSON, `telling` leaves out
topics that a key is not for; `jsonrows` are records as JSON, and `openapi` describes all routes.
`ahead` makes the next batch of a scan while one is being sent; `shared_groups` keeps the groups
that clients use.

Rules.
1. No storage logic here, and no method that the table in `lamina.wire.operations` does not have.
2. Whoever is beyond a limit is refused at once with Busy; nobody waits inside the server for room.
3. A key with a prefix learns nothing of topics outside of it, by no door and no error text.
4. Threads, descriptors and memory are bounded whatever clients do; a client that hangs up costs
   nothing from then on, and records it was about to get are given back.
5. What goes wrong inside is logged once and reaches the client as a typed error.

Where to look.
- who may call what: `auth` and the scopes in `lamina.wire.operations`
- what a shutdown waits for: `service`
- how a request is bounded: `limits`, `arriving`, `hasty`
"""
