"""The defects that were ever found in Lamina, as data: what happened, how each is put back, and
which test or row of the matrix (`F17/jumps:frame:3` is the row, a format, a number of rounds)
catches it then. `track_record` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Piece = tuple[str, str, str]
"""A file below the package, what stands in it, and what stood there while the defect did."""
FOUND = "tests/torture/test_found.py::"
STRANGE = "tests/log/test_strange_files.py::"
WAL_STRANGE = "tests/wal/test_strange_files.py::"
KEEPING = "tests/wal/test_keeping.py::"
CALLS = "tests/store/test_public_calls.py::"


@dataclass(frozen=True)
class Defect:
    """One defect: put back by its pieces, or the reason why it is not."""

    name: str
    what: str
    caught_by: str
    pieces: tuple[Piece, ...] = ()
    not_put_back: str = ""

    def sources(self, root: Path) -> dict[str, str]:
        """The files with the defect in them; each piece must be there, once."""
        found: dict[str, str] = {}
        for path, now, before in self.pieces:
            text = found.get(path) or (root / path).read_text()
            times = text.count(now)
            if times != 1:
                raise ValueError(f"{self.name}: its piece is {times} times in {path}")
            found[path] = text.replace(now, before)
        return found


DEFECTS = (
    Defect(
        "taken-back-copy",
        "segments of a compactor's copy that was taken back stayed behind a hole; opening said that"
        " acknowledged records were lost, though the WAL held them",
        FOUND + "test_segments_left_by_a_copy_that_was_taken_back_cost_nothing",
        (
            (
                "wal/topic_recovery.py",
                "        return np.logical_and.accumulate(np.array(held[::-1], dtype=np.bool_))"
                "[::-1]\n",
                "        return np.zeros(len(held), dtype=np.bool_)\n",
            ),
        ),
    ),
    Defect(
        "emptied-active-log",
        "a keratin partition whose active log was emptied below its watermark could not be opened:"
        " `ValueError` from the manifest",
        FOUND + "test_an_active_log_that_is_empty_is_a_gap_and_the_store_opens",
        (
            (
                "log/recovery.py",
                "            spans = Bound(self.watermark, finished.end.position)\n",
                "            spans = finished.end\n",
            ),
        ),
    ),
    Defect(
        "endless-read",
        "reading a sealed segment whose file had been emptied never ended",
        FOUND + "test_a_sealed_log_that_is_empty_is_a_gap_and_reading_it_ends",
        not_put_back="opening settles such a file today, before anybody reads it",
    ),
    Defect(
        "jumping-clock",
        "a wall clock set ahead while the store was open let retention empty a topic at once",
        KEEPING + "test_a_clock_that_jumps_ahead_hides_and_evicts_nothing",
        (
            (
                "log/directory.py",
                "        return now_ms if self.steady_ms is None"
                " else min(now_ms, self.steady_ms())\n",
                "        return now_ms\n",
            ),
        ),
    ),
    Defect(
        "identity-not-durable",
        "`broker.id` was believed at opening although its name might not be durable; a later power"
        " loss could leave topics without an identity",
        "F11/for-ever:wal:50",
        not_put_back="each later write into `meta` syncs the same directory: only a disk whose"
        " directory syncs keep failing shows it, in the long column",
    ),
    Defect(
        "directory-not-durable",
        "a directory whose name could not be synced was found by the next attempt and taken for"
        " durable; a power loss then took the first groups of a store",
        "tests/storage/test_files.py::test_a_directory_whose_name_was_not_made_durable_is_not_left",
        (
            (
                "storage/files.py",
                "            with contextlib.suppress(OSError):\n"
                "                os.rmdir(path)\n            raise\n",
                "            raise\n",
            ),
        ),
    ),
    Defect(
        "reserve-taken",
        "on a full disk maintenance made the reserve again before the trim that had given it up"
        " could use it",
        "tests/store/test_io_errors.py::"
        "test_maintenance_does_not_take_the_reserve_while_a_trim_needs_it",
        (
            (
                "store/disk_reserve.py",
                "        if not self._using.acquire(blocking=False):\n            return\n"
                "        try:\n",
                "        self._using.acquire(blocking=False)\n        try:\n",
            ),
        ),
    ),
    Defect(
        "half-taken-back",
        "a group of appends that could not be taken back for want of space was answered as refused;"
        " the next append went behind what was left, and a crash took it",
        "tests/log/test_encoder.py::test_a_group_that_cannot_be_taken_back_stops_the_writer",
        (
            (
                "log/partition.py",
                "            with self._poisoning():\n"
                "                for segment in reversed(touched[1:]):\n"
                "                    segment.discard()\n                first.undo(tail, mark)\n",
                "            with contextlib.suppress(OSError):\n"
                "                for segment in reversed(touched[1:]):\n"
                "                    segment.discard()\n                first.undo(tail, mark)\n",
            ),
        ),
    ),
    Defect(
        "zeros-of-a-roll",
        "sealed segments kept prepared zeros after a kill during a roll: every opening reported a"
        " cut that it did not make, and `verify` failed for good",
        STRANGE + "test_zeros_behind_a_sealed_segment_are_cut_once",
        (
            (
                "log/recovery.py",
                "                cut_behind(self.place, path, end.position, walked.why,"
                " self.report)\n",
                "                pass\n",
            ),
        ),
    ),
    Defect(
        "newer-record-cut",
        "sound records of a newer version were cut without a copy",
        STRANGE + "test_a_sound_record_of_a_newer_version_is_refused_and_never_cut",
        (
            (
                "log/recovery.py",
                "            if found.stop is Stop.BAD_VERSION:\n"
                "                raise newer_record(path, position)\n",
                "",
            ),
            (
                "log/segment_files.py",
                "        if found.stop is Stop.BAD_VERSION:\n"
                "            raise newer_record(path, position)\n",
                "",
            ),
        ),
    ),
    Defect(
        "damaged-header-stays",
        "a damaged header of a log was reported at every opening and never written again",
        STRANGE + "test_a_damaged_header_is_written_again_and_costs_no_record",
        (
            (
                "log/recovery.py",
                "                file.write_at(0, self.codec.log_header(base_offset,"
                " created_ms))\n",
                "                pass\n",
            ),
        ),
    ),
    Defect(
        "foreign-log-cut",
        "a foreign file as the only log of a partition was cut to nothing without a copy",
        STRANGE + "test_a_foreign_file_as_the_only_log_is_kept_whole",
        (
            (
                "log/segment_files.py",
                "        return not self.has_records and not self.is_blank\n",
                "        return False\n",
            ),
            (
                "log/recovery.py",
                "        kept = None if is_torn else self._copy(path, buffer, (position, size))\n",
                "        kept = None\n",
            ),
        ),
    ),
    Defect(
        "overlaps-hide-records",
        "overlapping segments hid records and moved the end back without a word",
        STRANGE + "test_overlapping_segments_serve_each_offset_once_and_never_move_the_end_back",
        (
            (
                "log/segment_files.py",
                "                self.drop(base, before.base_offset)\n",
                "                pass\n",
            ),
        ),
    ),
    Defect(
        "foreign-wal-file-cut",
        "a foreign file as `wal-1.log` was cut to nothing without a copy",
        WAL_STRANGE + "test_a_foreign_file_in_the_wal_is_kept_whole",
        (
            (
                "wal/replay.py",
                "            if self._is_foreign(file):\n                self._set_aside(file)\n"
                "                continue\n",
                "",
            ),
        ),
    ),
    Defect(
        "wal-tail-not-kept",
        "bytes at the end of the WAL that are no torn frame were cut without a copy",
        WAL_STRANGE + "test_a_tail_of_the_wal_that_is_no_torn_frame_is_kept",
        (
            (
                "wal/replay.py",
                "        if self._repair and not _begins_frame(data, position):\n",
                "        if self._repair and False:\n",
            ),
        ),
    ),
    Defect(
        "wal-overlaps",
        "overlapping segments of a wal topic: the later one went aside, with what only it held",
        WAL_STRANGE + "test_overlapping_segments_serve_each_offset_once",
        (("wal/topic_recovery.py", "        if mine > its:\n", "        if mine < its:\n"),),
    ),
    Defect(
        "cap-drops-too-much",
        "a byte cap dropped the segment that straddles it, and so more than it names",
        KEEPING + "test_a_byte_cap_keeps_the_segment_that_straddles_it",
        (("log/retention.py", "    return 0 < excess >= held\n", "    return 0 < excess\n"),),
    ),
    Defect(
        "record-cap-drops-too-much",
        "a record cap of 10 with 11 records left 1",
        KEEPING + "test_a_record_cap_keeps_the_segment_that_straddles_it",
        (
            (
                "wal/eviction.py",
                "        beyond = retention.is_beyond_cap(each.segment.records, excess)\n",
                "        beyond = excess > 0\n",
            ),
        ),
    ),
    Defect(
        "expired-is-served",
        "expired records of wal topics were served from the WAL and the active segment until it"
        " was sealed",
        KEEPING + "test_what_has_expired_is_a_gap_at_once_in_every_layer",
        (
            (
                "wal/expiry.py",
                "    if settings.retention_ms == NO_LIMIT or settings.retention_wait_groups:\n",
                "    if True:\n",
            ),
        ),
    ),
    Defect(
        "gap-hides-other-partitions",
        "a consumer that met a gap in one partition lost the records that it had fetched of others",
        "tests/server/test_producer_consumer.py::test_a_gap_in_one_topic_costs_nothing_of_another",
        (
            (
                "client/consumer.py",
                "                    if found:  # positions have moved past it:"
                " it is handed out first\n"
                "                        break\n",
                "",
            ),
        ),
    ),
    Defect(
        "archive-named-twice",
        "a store did not know where its archive was: `export` and `profile` ended with exit 0 and"
        " only the local rest of a topic",
        "tests/archive/test_location.py::test_a_store_finds_its_archive_without_being_told",
        (
            (
                "archive/open_archive.py",
                "    return os.environ.get(ARCHIVE_VARIABLE) or known\n",
                "    return os.environ.get(ARCHIVE_VARIABLE)\n",
            ),
        ),
    ),
    Defect(
        "untyped-arguments",
        "wrong types and absurd values ended in TypeError, ValueError, AttributeError or"
        " OverflowError from most public calls; one poisoned its partition",
        CALLS
        + "test_arguments_that_make_no_sense_are_refused_by_a_typed_error[store-producer_position]",
        (
            (
                "arguments.py",
                "            given = checked(given, named)\n",
                "            given = given if checked else given\n",
            ),
        ),
    ),
    Defect(
        "dead-producer-thread",
        "a producer whose delivery met an untyped error lost its thread: `flush` and `close` waited"
        " for ever",
        "tests/server/test_producer_consumer.py::"
        "test_an_error_that_is_none_of_ours_is_told_to_whoever_produced",
        (
            (
                "client/producer.py",
                "            except Exception as error:  # whatever it is, it is told:"
                " a dead thread tells nothing\n",
                "            except LaminaError as error:\n",
            ),
        ),
    ),
    Defect(
        "lying-arrow",
        "a Flight client sent batches whose inner offsets lie: the server stored pieces of its own"
        " memory as records, or died of SIGSEGV",
        "tests/server/test_hostile_arrow.py::test_a_batch_of_foreign_code_that_lies_is_refused",
        (
            (
                "received.py",
                "        records.validate(full=True)\n",
                "        records.validate()\n",
            ),
        ),
    ),
    Defect(
        "endless-groups",
        "a `write` key could make groups until descriptors ran out, and the next roll poisoned the"
        " partition",
        "tests/server/test_limits.py::test_a_topic_has_so_many_groups_and_no_more",
        (
            (
                "groups/registry.py",
                "                if is_bounded:\n                    self._refuse_many(about)\n",
                "",
            ),
        ),
    ),
    Defect(
        "newer-go-first",
        "with an archive, after opening, retention removed local (newer) segments before older"
        " archived ones were seen, and an untyped error poisoned the partition",
        "tests/archive/test_retention.py::test_retention_waits_while_the_archive_is_away",
        (
            (
                "log/partition.py",
                "        return not is_known and bool(self.ledger.archived())\n",
                "        return not is_known and False\n",
            ),
        ),
    ),
    Defect(
        "archive-fails-in-silence",
        "`store.archive()` returned normally after three failed puts",
        "tests/archive/test_refused.py::"
        "test_archive_raises_what_failed_after_all_partitions_were_tried",
        (("archive/tier.py", "            raise worst\n", "            del worst\n"),),
    ),
    Defect(
        "archived-waits-for-ever",
        '`acks="archived"` waited for ever where archiving was refused for good',
        "tests/archive/test_refused.py::test_a_bucket_that_refuses_ends_the_wait_for_it",
        (
            (
                "archive/tier.py",
                "                    or (kept.refused is not None and kept.refused_try > begun)\n",
                "                    or (kept.refused is not None and kept.refused_try < begun)\n",
            ),
        ),
    ),
    Defect(
        "swapped-segments",
        "two swapped segment files made recovery enter the untouched segments between them as lost",
        "F10/swap:frame:300",
        not_put_back="`make mutants` puts it back, as `misplaced-segment` and"
        " `misplaced-wal-segment`",
    ),
    Defect(
        "half-visible-append",
        "half of an append that goes over the end of a segment was seen by readers, and stayed so"
        " when the append was interrupted",
        "F15/interrupt:keratin:40",
        not_put_back="`make mutants` puts it back, as `half-visible`",
    ),
    Defect(
        "interrupted-trim-keeps-the-tail",
        "a trim or roll interrupted right behind its wait for the tail kept it: every later append"
        " waited for ever",
        "F15/interrupt:keratin:40",
        not_put_back="it was the shape of the whole method, not a line of it",
    ),
    Defect(
        "prepared-space-takes-the-rest",
        "space prepared ahead of a log took the last bytes of a full disk",
        "tests/store/test_io_errors.py::test_a_full_disk_refuses_appends_and_lets_go_what_frees_it",
        not_put_back="the preparation itself was replaced by another one",
    ),
)
