"""The object store as the oldest layer of every partition: uploaded, listed, read, joined.

    sealed segments ─▶ encode ─▶ uploader ─▶ object_list ─▶ local copies may go
                                                └─▶ object_reader ─▶ records

Each archived partition has a folder in the object store: compressed STRM objects, one list that
names them (`object_list`), and copies of the small files that are needed to read them
(`topic_copies`). With these a topic can be read, and restored, on a machine that never saw it.

`tier` is the broker's side: a thread that claims each partition's list, seals what appends with
`acks=archived` wait for, uploads, joins small objects, and lets local segments go. `archiver` does
the upload step by step, `encode` makes an object out of sealed layers, `join` makes one object out
of small neighbours. Whatever the list names is a layer of the partition's pile
(`lamina.log.layers`), at first beside the local copy and then in its place.

`object_reader` is the reader's side: one range request for an object's index (`object_index`),
then only the blocks that are needed, read ahead and kept in a bounded cache. `judge` decides
whether an object is sound, damaged, unreadable or foreign.

`open_archive` opens the object store that a user means, and `location` remembers it in the data
directory, so that it has to be named only once. `spare_copies` lends the archive's copies of small
files to recovery where the local one is damaged, and `settle_losses` corrects ranges that were
called lost but are in the archive. `proof` finds out whether an object store does what all of this
stands on; one that does not is refused for writing. `terms` says how far a store may archive: in a
cluster no further than its committed windows.

Rules.
1. The list is the truth about what is archived, and is replaced only on the condition that it is
   the one that was read: two stores never both believe that they own it.
2. An object is listed after it was read back and found right. A local copy goes only when a listed
   object was seen to hold its records.
3. Objects never change. What is rewritten is a new object, and the old one becomes an orphan.
4. Nothing is deleted because a list forgot it, and a damaged object stays listed.
5. Appends and local reads never wait for the object store, unless the caller asked to.

Where to look.
- what `acks=archived` waits for: `Tier.wait_archived` in `tier`
- what happens when two stores share one archive: `object_list`, rule 1
- how an archive with a damaged object is read: `object_index` and `object_reader`
- what is archived next: `Archiver.pending` in `archiver`; how objects are named:
  `lamina.storage.paths`
"""
