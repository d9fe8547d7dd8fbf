"""A schema registry as Confluent's clients know it, without input and output.

A subject is a name (`orders-value`) with numbered versions. Each version is of a schema, and each
schema has an id: the same schema has the same id under every subject, and no id is given twice.
What is registered is written as records of one topic, `_schemas`, as Confluent's registry writes
its own; the state is what those records say, read from the first to the last. So the registry is as
durable as any topic, and is archived, restored and shipped like one.

    records of `_schemas` ──entries──▶ book ──▶ answers
                                        │
    a request ──languages──▶ a schema ──┴─changes──▶ new records, or a refusal

    entries        the records: keys, values, what they say
    book           what all of them say together
    languages      a schema's text in Avro, JSON Schema or Protobuf: what it means, and whether one
                   reads what another wrote
    json_changes   the last of these for JSON Schema, keyword by keyword
    avro_names     Avro's text with every name in full, by which schemas are told apart
    changes        what a request writes: register, delete, levels and modes
    refusal_codes  what is refused, by Confluent's numbers

Rules.
1. Nothing here reads or writes: `store/schema_registry.py` does, one change at a time.
2. A record that says nothing, or contradicts what came before it, changes nothing: the topic can be
   written by others.
3. Everything that a client sends is hostile: text is bounded before it is parsed, references before
   they are followed, comparisons before they are made.
"""
