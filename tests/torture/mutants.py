"""Lamina with one safety step removed, in each of many ways, and what must catch each.

    python -m tests.torture.mutants                  every mutant; all must be caught
    python -m tests.torture.mutants --list
    python -m tests.torture.mutants lying-ack …      only these

A mutant is a piece of a source file and what stands in its place, in a copy of the source. What
catches it is a row of the matrix (`F8/bit:frame:300` is the row, a format, a number of rounds) or a
test (`tests/…`); one that fails has caught it, and those behind it are not run. A catcher that
fails on the sound source as well proves nothing: `--sound` runs each of them there.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.torture.catching import SOURCE, Mutant, catch, run_catcher
from tests.torture.cluster_mutants import CLUSTER_MUTANTS
from tests.torture.kafka_mutants import KAFKA_MUTANTS

MUTANTS = (
    Mutant(
        "lying-ack",
        "fsync before the acknowledgement",
        "log/active_segment.py",
        "        self.file.sync()\n        self.written = self.durable = self.tail\n",
        "        self.written = self.durable = self.tail\n",
        ("F3/dropped:keratin:160",),
    ),
    Mutant(
        "lying-ack-in-the-air",
        "fsync of a group in the air before it is answered",
        "log/active_segment.py",
        '        """Makes it durable."""\n        self.file.sync()\n',
        '        """Makes it durable."""\n',
        ("tests/log/test_flights_on_disk.py",),
    ),
    Mutant(
        "no-directory-fsync",
        "fsync of the directory after a segment is made",
        "log/active_segment.py",
        "            segment._write_indexes()\n            files.sync_directory(directory)\n",
        "            segment._write_indexes()\n",
        ("F7/names:keratin:200",),
    ),
    Mutant(
        "replace-without-fsync",
        "fsync of the temporary file before its rename",
        "storage/files.py",
        "                position += memoryview(piece).nbytes\n            file.sync()\n",
        "                position += memoryview(piece).nbytes\n",
        ("F3/dropped:keratin:160",),
    ),
    Mutant(
        "replace-without-directory-fsync",
        "fsync of the directory after a rename",
        "storage/files.py",
        "        settle_names(files, os.path.dirname(path))\n",
        "        pass\n",
        ("F7/names:keratin:200",),
    ),
    Mutant(
        "frame-checksum",
        "the checksum of a frame record",
        "formats/frame/log.py",
        "    if peek_u32(frame + length - 8) != crc32(frame, length - 8):\n",
        "    if peek_u32(frame + length - 8) != crc32(frame, length - 8) and length < 0:\n",
        ("F8/bit:frame:150",),
    ),
    Mutant(
        "keratin-checksum",
        "the checksum of a keratin record",
        "formats/keratin/log.py",
        " != crc32c(record + _VERSION, checked):\n",
        " != crc32c(record + _VERSION, checked) and checked < 0:\n",
        ("F8/bit:keratin:150",),
    ),
    Mutant(
        "wal-checksum",
        "the checksum of a wal frame",
        "formats/wal/log.py",
        "    if peek_u64(body + checked) != xxh3(body, checked, seed):\n",
        "    if peek_u64(body + checked) != xxh3(body, checked, seed) and checked < 0:\n",
        ("F8/bit:wal:150",),
    ),
    Mutant(
        "no-watermark",
        "what is below the durable watermark is not cut",
        "log/recovery.py",
        "            if offset >= durable_to:\n",
        "            if offset >= 0:\n",
        ("F8/bit:frame:200",),
    ),
    Mutant(
        "no-quarantine",
        "damaged bytes are set aside before they are left out",
        "log/recovery.py",
        "        kept = self._copy(path, buffer, byte_range)\n",
        "        kept = None\n",
        ("tests/log/test_recovery.py::test_damage_below_the_watermark_costs_one_record",),
    ),
    Mutant(
        "no-tombstone",
        "a tombstone before a segment's files go",
        "log/partition.py",
        "        files.replace(path, tombstone.encode(marker))\n",
        "        files.create(path)\n",
        ("F7/names:frame:1200",),
    ),
    Mutant(
        "tombstone-goes-first",
        "a tombstone goes only after the names of its files are gone for good",
        "log/removal.py",
        "            place.files.remove(path)\n    settle_names(place.files, place.segments)\n",
        "            place.files.remove(path)\n",
        ("F7/names:frame:3000",),
    ),
    Mutant(
        "removal-without-reason",
        "the reason is entered before a segment goes",
        "log/partition.py",
        "                self.ledger = self.place.enter_gap(self.ledger, gap)\n"
        "        except OSError as error:\n            if error.errno in PASSING:  # refused, so",
        "                self.ledger = self.ledger.with_gap(gap)\n"
        "        except OSError as error:\n            if error.errno in PASSING:  # refused, so",
        ("F7/names:frame:200",),
    ),
    Mutant(
        "roll-without-fsync",
        "fsync of a full segment before the next one is made",
        "log/partition.py",
        "            current.file.sync()\n        return ActiveSegment.create(\n",
        "            pass\n        return ActiveSegment.create(\n",
        ("F3/dropped:keratin:160",),
    ),
    Mutant(
        "recovered-not-synced",
        "fsync of what recovery found before it is served",
        "log/recovery.py",
        "            file.write_at(first, bytes(part))\n        file.sync()\n",
        "            file.write_at(first, bytes(part))\n",
        ("F2/every-step:frame:160",),
    ),
    Mutant(
        "recovered-names-not-synced",
        "fsync of the directories before what is in them is served",
        "log/recovery.py",
        "        files.sync_directory(place.directory)\n"
        "        files.sync_directory(place.segments)\n",
        "",
        ("F2/every-step:frame:160",),
    ),
    Mutant(
        "not-poisoned",
        "a failed fsync stops the writer",
        "log/commit.py",
        "        except (OSError, LaminaError) as error:\n"
        "            answer_all(waiting, self.poison(error))\n",
        "        except (OSError, LaminaError):\n            self._answer(waiting)\n",
        ("F12/failed-sync:keratin:60",),
    ),
    Mutant(
        "answer-before-the-prefix",
        "a group is answered once all before it are durable",
        "log/flights.py",
        "                if self._lander is None and self.air[0].is_down:\n"
        "                    self._lander = flight\n"
        "                    return self.air[0]\n",
        "                self._lander = flight\n                return flight\n",
        ("tests/log/test_flights.py",),
    ),
    Mutant(
        "kept-behind-what-fell",
        "a group behind one whose sync failed fails, too",
        "log/flights.py",
        "        self._fallen = self._fallen or flight.error\n",
        "        self._fallen = flight.error\n",
        ("tests/log/test_flights.py",),
    ),
    Mutant(
        "watermark-over-a-hole",
        "what is durable is a finished prefix",
        "log/active_segment.py",
        "        self.durable = departed.tail\n",
        "        self.durable = self.tail\n",
        ("tests/log/test_flights.py",),
    ),
    Mutant(
        "one-descriptor-in-the-air",
        "each sync in the air hears the disk's errors",
        "log/active_segment.py",
        "            is_own, self._is_lent = not self._is_lent, True\n",
        "            is_own, self._is_lent = True, True\n",
        ("tests/log/test_flights_on_disk.py",),
    ),
    Mutant(
        "told-beside-a-dying-writer",
        "a reader without a writer makes what it shows durable",
        "log/partition_view.py",
        "            view.file.sync()\n",
        "            pass\n",
        ("tests/log/test_flights_on_disk.py",),
    ),
    Mutant(
        "shown-beside-a-live-writer",
        "a reader beside a writer shows what that has published as durable",
        "log/partition_view.py",
        "        view.follow(watermark if live else stop, watermark=watermark)\n",
        "        view.follow(stop, watermark=watermark)\n",
        ("tests/log/test_flights_on_disk.py",),
    ),
    Mutant(
        "two-leaders",
        "one thread leads in the name of a token",
        "log/commit.py",
        "        if not (self._lending.claims(token) and self._leader is token):\n"
        "            return\n        try:\n            self._lead(token)\n",
        "        if self._leader is not token:\n"
        "            return\n        try:\n            self._lead(token)\n",
        ("tests/log/test_flights.py",),
    ),
    Mutant(
        "rolled-in-the-air",
        "a segment is sealed once nothing of it is in the air",
        "log/partition.py",
        "            self.writer.flights.settle()\n            # A crash must",
        "            # A crash must",
        ("tests/log/test_flights.py",),
    ),
    Mutant(
        "exclusive-in-the-air",
        "an exclusive action begins once nothing is in the air",
        "log/commit.py",
        "                while self._leader is not None or self._air:\n"
        "                    self._sleep()\n"
        "                self._leader = token\n",
        "                while self._leader is not None:\n"
        "                    self._sleep()\n"
        "                self._leader = token\n",
        ("tests/log/test_flights.py",),
    ),
    Mutant(
        "full-disk-not-undone",
        "what a full disk took of an append is cut off",
        "log/active_segment.py",
        "            file.truncate(tail.position)\n            file.sync()\n"
        "        if self.durable.position",
        "            assert file\n        if self.durable.position",
        ("F13/no-space:keratin:250",),
    ),
    Mutant(
        "wal-lying-ack",
        "fsync of the write-ahead log before the acknowledgement",
        "wal/shard.py",
        "        if self._unsynced and self.active is not None:\n"
        "            self._sync_file(self.active)\n",
        "        if self._unsynced and self.active is not None:\n",
        ("F3/dropped:wal:160",),
    ),
    Mutant(
        "routed-not-judged",
        "a record and its copies are left out where they are not whole",
        "wal/routed.py",
        "Ranges.of(frames.tolist())",
        "Ranges.of(frames[:0].tolist())",
        ("F4/reordered:wal:300", "tests/wal/test_routers.py"),
    ),
    Mutant(
        "copies-in-another-group",
        "a record and its copies count together: they are flagged as one group",
        "wal/shard_log.py",
        "        flags[place] |= layout.ROUTED\n",
        "        flags[place] |= 0\n",
        ("F4/reordered:wal:300", "tests/wal/test_routers.py"),
    ),
    Mutant(
        "routed-without-mark",
        "the mark that ends a group with copies",
        "wal/shard_log.py",
        "        if routed:\n            row = ",
        "        if routed and now_ms < 0:\n            row = ",
        ("F3/dropped:wal:160",),
    ),
    Mutant(
        "wal-rotation-order",
        "fsync of a full WAL file before the next one is written to",
        "wal/shard.py",
        "            self.sync()\n            self._give_back(old)\n",
        "            self._unsynced = False\n            old.file.truncate(old.size)\n",
        ("F3/dropped:wal:160",),
    ),
    Mutant(
        "wal-file-without-directory-fsync",
        "fsync of the directory after a WAL file is made",
        "wal/shard.py",
        "        file = files.create(path)\n        try:\n"
        "            files.sync_directory(self.directory)\n"
        "            files.replace(paths.join(self.directory, paths.CURRENT),"
        " current.encode(index))\n",
        "        files.replace(paths.join(self.directory, paths.CURRENT),"
        " current.encode(index))\n"
        "        file = files.create(path)\n        try:\n            pass\n",
        ("F3/dropped:wal:160",),
    ),
    Mutant(
        "checkpoint-without-fsync",
        "fsync of segments before a checkpoint says that they hold records",
        "wal/compactor.py",
        "            for file in kind:\n                file.sync()\n",
        "            assert kind\n",
        ("F3/dropped:wal:160",),
    ),
    Mutant(
        "checkpoint-without-directory-fsync",
        "fsync of the directory of new segments before a checkpoint",
        "wal/compactor.py",
        "            self._ground.files.sync_directory(self._created[-1].directory)\n",
        "            self._created.clear()\n",
        ("F7/names:wal:200",),
    ),
    Mutant(
        "unmarked-index",
        "an index is believed only of a segment that a checkpoint vouches for",
        "wal/held.py",
        "    if marked >= segment.end_sequence - 1:\n",
        "    if marked >= 0:\n",
        ("F6/tails:wal:1500",),
    ),
    Mutant(
        "unfinished-append",
        "what power loss left of an idempotent append is hidden before a repeat is stored",
        "wal/idempotence.py",
        "            left_over.append((entry.base_offset,",
        "            _ = ((entry.base_offset,",
        ("F4/short:wal:600",),
    ),
    Mutant(
        "head-hole",
        "a range that no layer of a wal topic holds gets a reason",
        "wal/topic_recovery.py",
        "            if first > after:\n",
        "            if first < 0:\n",
        ("F10/cut:wal:200",),
    ),
    Mutant(
        "no-snapshot-fallback",
        "a damaged snapshot of metadata gives way to the one before it",
        "wal/snapshots.py",
        "                self._damaged.add(number)\n                continue\n",
        "                self._damaged.add(number)\n                return newest\n",
        (
            "tests/wal/test_derived_files.py"
            "::test_a_bad_snapshot_is_not_one_of_the_two_that_are_kept",
        ),
    ),
    Mutant(
        "group-lying-ack",
        "fsync of a group's journal before its ack is answered",
        "groups/journal.py",
        '        """Makes all events durable."""\n        self._file.sync()\n',
        '        """Makes all events durable."""\n',
        ("F4/groups:groups:200",),
    ),
    Mutant(
        "group-ahead",
        "a group is never ahead of its log",
        "groups/journal.py",
        "        was_ahead = state.is_beyond(log_end_offset)\n",
        "        was_ahead = log_end_offset < 0\n",
        ("F20/mixed:frame:100",),
    ),
    Mutant(
        "group-rotation",
        "a new journal begins with the acks ahead of the frontier",
        "groups/journal.py",
        "    for offsets in state.ahead_in_pieces(REPEATED_AT_ONCE):\n"
        "        yield delta.encode(int(Event.ACK), offsets).data\n",
        "",
        ("F4/groups:groups:800",),
    ),
    Mutant(
        "producer-repeats",
        "a repeated batch gets its first answer",
        "log/producers.py",
        "            if (entry.sequence, entry.count) == (stamp.sequence, count):\n",
        "            if (entry.sequence, entry.count) == (-1, count):\n",
        ("F18/requests:frame:8",),
    ),
    Mutant(
        "producer-sequence",
        "a producer that skips sequences is refused",
        "log/producers.py",
        "        if stamp.sequence != expected:\n",
        "        if stamp.sequence < 0:\n",
        ("F18/requests:frame:8",),
    ),
    Mutant(
        "no-fence",
        "a producer with an older epoch is refused",
        "log/producers.py",
        "        if stamp.epoch < known.epoch:\n",
        "        if stamp.epoch < 0:\n",
        ("F18/requests:frame:8",),
    ),
    Mutant(
        "producers-not-synced",
        "fsync of the producers' journal before the records it speaks of",
        "log/producers.py",
        "        file.write_at(self._position, data)\n        file.sync()\n",
        "        file.write_at(self._position, data)\n",
        ("F3/dropped:frame:160",),
    ),
    Mutant(
        "no-read-back",
        "an uploaded object is read back before it counts",
        "archive/archiver.py",
        "            if reads_back(self.shelf.objects, key, encoded.data):\n",
        "            if encoded.data is not None:\n",
        (
            "tests/archive/test_seam.py::test_a_local_copy_stays_while_the_store_gives_back_other_bytes",
        ),
    ),
    Mutant(
        "no-archive-fence",
        "a store that lost the archive to another one lists nothing more",
        "archive/object_list.py",
        "                if (found.writer, found.fencing_epoch)"
        " != (self.writer, wanted.fencing_epoch):\n",
        "                if found.fencing_epoch < 0:\n",
        ("tests/archive/test_seam.py::test_a_second_store_takes_over_and_the_first_one_stops",),
    ),
    Mutant(
        "archived-not-covered",
        "local segments go only when listed objects hold all their records",
        "log/partition.py",
        "            and segment.next_offset <= archived_end\n"
        "            and covers(entries, self.ledger, segment.base_offset, segment.next_offset)\n",
        "",
        ("tests/archive/test_seam.py::test_local_segments_stay_while_no_listed_object_holds_them",),
    ),
    Mutant(
        "no-commit-key",
        "a transaction that was stored is not stored again",
        "spark/commit/transaction.py",
        "        is_new = state is None or transaction.number > state.number\n",
        "        is_new = True\n",
        ("tests/spark/test_transactions.py",),
    ),
    Mutant(
        "sink-forgets-rows",
        "every row of a decided write is stored before the sink acknowledges it",
        "spark/commit/transaction.py",
        "        places = [(place, list(some)) for place, some in",
        "        places = [(place, list(some)[1:]) for place, some in",
        ("F1/spark:keratin:1",),
    ),
    Mutant(
        "sink-stores-twice",
        "a write that is stored is not stored again: its number says so, and so does its producer",
        "spark/commit/transaction.py",
        "        is_new = state is None or transaction.number > state.number\n",
        "        is_new = True\n"
        "        self._producer = lambda *_: (id(transaction) & (1 << 60) - 1, None)\n",
        ("F1/spark:keratin:1",),
    ),
    Mutant(
        "source-out-of-order",
        "a task of Spark's source gives rows in the order of the log",
        "spark/pieces/task.py",
        "            rows = projection.apply(batch, origin)\n"
        "            if rows.num_rows:\n"
        "                yield rows\n",
        "            half = batch.num_rows // 2\n"
        "            for some in (batch.slice(half), batch.slice(0, half)):\n"
        "                yield projection.apply(some, origin)\n",
        ("F1/spark:keratin:1",),
    ),
    Mutant(
        "misplaced-segment",
        "a misplaced file does not speak for its neighbours' records",
        "log/recovery.py",
        "        for step in runs(log, position, offset, limit=Timed(), end_number=end_offset):\n",
        "        for step in runs(log, position, offset, limit=Timed()):\n",
        (
            "tests/log/test_strange_files.py::"
            "test_records_of_the_next_segment_behind_damage_do_not_count",
        ),
    ),
    Mutant(
        "misplaced-wal-segment",
        "a misplaced wal segment does not speak for its neighbours' records",
        "wal/topic_recovery.py",
        "segments.walk_salvaged(files, bare, end_sequence=end_sequence)",
        "segments.walk_salvaged(files, bare)",
        ("F10/swap:wal:60",),
    ),
    Mutant(
        "two-writers",
        "a second writer of a directory is refused",
        "storage/locks.py",
        "            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            return fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        ("F16/processes:frame:6",),
    ),
    Mutant(
        "reserve-taken-back",
        "nobody takes the reserve while something that frees space uses it",
        "store/disk_reserve.py",
        "            with self._using:\n",
        "            with contextlib.nullcontext():\n",
        (
            "tests/store/test_io_errors.py"
            "::test_maintenance_does_not_take_the_reserve_while_a_trim_needs_it",
        ),
    ),
    Mutant(
        "half-visible",
        "an append over the end of a segment is shown all at once",
        "log/partition.py",
        "            sealed = tuple(segment.finish() for segment in full)\n",
        "            for segment in full:\n"
        "                segment.written = segment.durable = segment.tail\n"
        "            sealed = tuple(segment.finish() for segment in full)\n",
        ("F15/interrupt:keratin:100",),
    ),
    Mutant(
        "version-before-checksum",
        "a header's checksum is judged before its version",
        "formats/keratin/header.py",
        '    if computed == fields["header_crc32c"] or _is_sound(whole[: fields["header_len"]]):\n',
        "    if computed >= 0:\n",
        (
            "tests/log/test_strange_files.py::test_a_damaged_header_is_written_again_and_costs_no_record",
        ),
    ),
    Mutant(
        "foreign-segment",
        "a file without a sound record is moved aside whole",
        "log/segment_files.py",
        "            if extent.is_foreign:\n",
        "            if extent.is_foreign and base < 0:\n",
        ("tests/log/test_strange_files.py::test_a_foreign_middle_segment_is_a_gap",),
    ),
    Mutant(
        "overlap-unsettled",
        "of two segments that hold the same offsets one serves them",
        "log/segment_files.py",
        "            if before is None or before.next_offset <= base:\n",
        "            if before is None or before.next_offset <= base or base >= 0:\n",
        (
            "tests/log/test_strange_files.py"
            "::test_overlapping_segments_serve_each_offset_once_and_never_move_the_end_back",
        ),
    ),
    Mutant(
        "another-identity",
        "a directory whose broker.id is another store's is refused",
        "store/opening.py",
        "        if own is None or found.broker in (None, own):\n",
        "        if own is not None or found.broker in (None, own):\n",
        ("tests/store/test_identity.py::test_the_identity_of_another_store_is_refused",),
    ),
    Mutant(
        "forgotten-group",
        "a group whose files are lost is known by the list of groups",
        "groups/registry.py",
        "        for key in sorted({*partial, *evidence.groups(report)}):\n",
        "        for key in sorted(partial):\n",
        (
            "tests/store/test_identity.py::test_a_group_whose_files_are_all_lost_is_reported_and_goes_on",
        ),
    ),
    *CLUSTER_MUTANTS,
    *KAFKA_MUTANTS,
)


def _try(mutant: Mutant) -> bool:
    """Tells whether a mutant is caught, and says by what."""
    started = time.monotonic()
    catcher, seen = catch(mutant) or ("SURVIVES", "")
    print(f"{mutant.name:36} {catcher} {time.monotonic() - started:.0f} s {seen}", flush=True)
    return catcher != "SURVIVES"


def _is_sound(catcher: str) -> bool:
    """Tells whether what catches mutants passes on the source as it is."""
    started = time.monotonic()
    code, told = run_catcher(catcher, SOURCE)
    end = "passes" if code == 0 else f"ends with {code}: {told[-400:]}"
    print(f"{catcher:44} {time.monotonic() - started:.0f} s {end}", flush=True)
    return code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument(
        "--sound", action="store_true", help="run every catcher on the sound source"
    )
    given = parser.parse_args()
    unknown = set(given.names) - {each.name for each in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; --list names them")
    chosen = [each for each in MUTANTS if not given.names or each.name in given.names]
    if given.list:
        for each in chosen:
            print(f"{each.name:36} {each.step}")
        return
    started = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        if given.sound:
            catchers = sorted({catcher for each in chosen for catcher in each.caught_by})
            good, what = list(pool.map(_is_sound, catchers)), "catchers pass on the sound source"
        else:
            good, what = list(pool.map(_try, chosen)), "mutants are caught"
    print(f"{sum(good)} of {len(good)} {what}, in {time.monotonic() - started:.0f} s")
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
