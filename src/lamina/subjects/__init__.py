"""A schema registry as Confluent's clients know it, without input and output.

A subject is a name (`orders-value`) with numbered versions. Each version refers to a schema, and
each schema has an id: it is the same under every subject, and no id is ever given to two schemas.
The registry keeps its state as records of one topic, `_schemas`, in the format of Confluent's own:
replaying them from first to last gives the state. So the registry is as durable as any topic, and
is archived, restored and shipped like one.

    records of `_schemas` ──entries──▶ book ──▶ answers
                                        │
    a request ──languages──▶ a schema ──┴─changes──▶ new records, or a refusal

    entries        the records: keys, values, and what each of them means
    book           the state: the result of applying all of them
    languages      a schema's text in Avro, JSON Schema or Protobuf: what it means, and whether one
                   reads what another wrote
    json_changes   how JSON Schemas are compared, keyword by keyword
    avro_names     Avro's text with every name in full, to tell schemas apart
    changes        what a request writes: registrations, deletions, levels and modes
    refusal_codes  Confluent's numbers for what is refused

Rules.
1. Nothing here reads or writes: `store/schema_registry.py` does, one change at a time.
2. A record that is not understood, or that contradicts earlier ones, changes nothing: others may
   write to the topic, too.
3. Everything that a client sends may be hostile: the size of a text is checked before it is parsed,
   and so are references before they are followed, and the work of a comparison before it is done.
"""
