"""What client and server say to each other: a table of operations, and messages that carry Arrow.

    operations   every method that can be called from elsewhere, with its scope and HTTP route
    values       values of the public types as JSON and back, led by their annotations
    messages     orders, questions, answers and record batches on Flight streams
    failures     errors as JSON: the same class comes back on the other side
    memory       keeps the memory of one message for the next
    kafka/       Kafka's messages, for the clients that speak them instead of ours

A new method of the store is served by one more row in `operations`: the client's method, the
server's dispatch, the HTTP route and the OpenAPI page are made from the table.

Appends and reads carry Arrow and have messages of their own; everything else is JSON, made from
the annotations of the methods themselves, so that a signature is written down once.

Rules.
1. What arrives is hostile: sizes are bounded before anything is decoded, and record batches pass
   `lamina.received` before Arrow's own code reads them.
2. The scope, the topic and the size of a request are known before its records are decoded.
3. An error has the same type on both sides, with its fields.
4. Nothing here imports a storage engine: a client process loads none.
"""
