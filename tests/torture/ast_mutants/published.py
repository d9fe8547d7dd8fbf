"""What lived when the published draw was judged, and what became of each since.

Names are those of commit `d50bcd720d`, of which the draw was judged. A survivor is argued
(`MAY_LIVE`), caught by a test that has come since (`CAUGHT_SINCE`), in code that was rewritten
(`GONE`), or open (`LIVED`).
"""

from __future__ import annotations

MAY_LIVE: dict[str, str] = {
    "archive/join.py:choose:constant:2": "the target size of an object is no promise to the byte",
    "archive/judge.py:_unreadable:constant:3": (
        "it claims more bytes than there are: how many more does not matter"
    ),
    "archive/object_list.py:Shelf.claim:constant:0": (
        "an epoch has to grow, by how much does not matter"
    ),
    "archive/sealed_source.py:PartitionSource.records:comparison:0": (
        "an empty range yields nothing"
    ),
    "archive/sealed_source.py:PartitionSource.records:constant:1": (
        "whatever interrupts the scan says itself where to go on"
    ),
    "archive/tier.py:Tier._upload:comparison:0": (
        "an upload comes before its delay is over, with the same result"
    ),
    "archive/uploader.py:reads_back:slice:1": (
        "a part is compared with one byte of the next one as well"
    ),
    "formats/kernels/plain_values.py:PlainValues._grow:constant:0": (
        "`fill` sets the count of rows before anybody asks for it"
    ),
    "formats/strm/block_group.py:read_group:constant:0": (
        "a group has at least one block, and a block at least one record"
    ),
    "formats/strm/salvage.py:_footers:comparison:1": (
        "an index of no bytes is refused right behind it"
    ),
    "formats/wal/places.py:_sorted:constant:0": "it makes one edge more than anybody asks for",
    "groups/journal.py:Journal._prepare:arithmetic:0": (
        "zeros ahead are for speed: a write behind them extends the file"
    ),
    "groups/shared_partition.py:GroupPartition.read:comparison:0": (
        "the filter is only left out where it would take everything"
    ),
    "log/active_segment.py:ActiveSegment.close_file:return:0": (
        "the store has every owner let go of its file right behind it"
    ),
    "log/appending.py:_largest:constant:0": (
        "the first column of every input schema is the timestamp"
    ),
    "log/batch_offsets.py:runs:arithmetic:1": (
        "looked at closely, a batch without a hole is split nowhere"
    ),
    "log/commit.py:Writer._lead_alone:constant:0": (
        "it decides how appends are grouped, not what becomes of them"
    ),
    "log/directory.py:Place.losses:boolean:0": (
        "it asks the archive also where nothing depends on the answer"
    ),
    "log/quick_check.py:CheapCheck._end_by_index:constant:1": (
        "in doubt the whole segment is walked: slower, with the same result"
    ),
    "log/quick_check.py:CheapCheck._end_by_index:not:0": (
        "in doubt the whole segment is walked: slower, with the same result"
    ),
    "log/segment_index.py:SegmentIndex.extend:order:1": "both steps are taken under one lock",
    "log/stops.py:is_prepared_space:constant:2": "the first 64 bytes were looked at before",
    "storage/open_files.py:OpenFiles._let_go:comparison:3": (
        "at the limit the second round ends before it begins"
    ),
    "wal/ground.py:Ground.quarantine:order:1": (
        "a path is put together, and nothing is looked up for it"
    ),
    "wal/routed.py:_walk:slice:0": (
        "one byte behind the last frame is no frame, and lies behind every mark"
    ),
    "wal/routers.py:Routers.__init__:return:0": "`load` sets both before anybody asks for them",
    "wal/shard_log.py:ShardLog._number:order:0": "the two steps know nothing of each other",
    "wal/topics_view.py:_digest:constant:0": "behind the end of a file there is no byte to read",
    "wal/topics_view.py:_insisting:constant:0": "how often it looks again is no promise",
}
"""Why each may live: it is equivalent, or changes only how long something takes."""

SECOND_MAY_LIVE: dict[str, str] = {
    "archive/archiver.py:Archiver._holds_our_records:constant:0": (
        "whoever compares has just read sealed records, so there are some"
    ),
    "archive/encode.py:encode_object:comparison:1": (
        "the target size of an object is no promise to the byte"
    ),
    "archive/judge.py:Judge._from_header:constant:1": (
        "the checksum of a footer that is made up goes into no entry"
    ),
    "formats/wal/located.py:_gather:boolean:0": (
        "it changes the source of a compiled kernel, which runs as it was"
    ),
    "formats/wal/located.py:_gather:comparison:3": (
        "it changes the source of a compiled kernel, which runs as it was"
    ),
    "groups/copying.py:state_of:constant:0": (
        "numpy takes any negative length for the one to be found"
    ),
    "groups/dead_letters.py:_joined:constant:2": (
        "numpy takes any negative length for the one to be found"
    ),
    "groups/roster.py:Roster.correct:order:0": ("the two steps know nothing of each other"),
    "groups/share_coordinator.py:ShareCoordinator.close:order:1": (
        "both steps are taken under one lock"
    ),
    "formats/keratin/delta.py:EventLog.resync:comparison:0": (
        "it looks from the second byte on, so it never finds the first"
    ),
    "formats/log_format.py:FrameCodec.begins_record:constant:3": (
        "what stands behind the offset is not compared"
    ),
    "formats/strm/block_group.py:read_group:comparison:1": (
        "a group of blocks has at least one record"
    ),
    "formats/strm/record_codec.py:Columns.__init__:constant:5": (
        "it makes room for one number more than anybody reads"
    ),
    "log/segment_index.py:SegmentIndex._passes_over:comparison:2": (
        "in doubt each record is looked at: slower, with the same result"
    ),
    "log/sealed_segment.py:SealedSegment.file:constant:0": (
        "it decides whose file goes first at a limit that holds either way"
    ),
}
"""Survivors of the second draw (seed 20) that no test can tell from Lamina."""

CAUGHT_SINCE: dict[str, dict[str, str]] = {
    "tests/archive/test_damage.py": {
        "wal/archived.py:_explain:boolean:0": (
            "test_an_object_that_is_gone_hides_none_of_its_neighbours"
        ),
    },
    "tests/archive/test_expiry.py": {
        "wal/expiry.py:_search:extreme:0": (
            "test_archived_records_that_are_too_old_are_a_gap_before_and_after_the_list_is_known"
        ),
    },
    "tests/archive/test_groups_rebuilt.py": {
        "groups/registry.py:Groups._open:comparison:0": (
            "test_nothing_is_skipped_whatever_file_is_lost"
        ),
    },
    "tests/archive/test_joining.py": {
        "archive/archiver.py:Archiver.join_small:constant:1": (
            "test_whoever_joins_says_whether_there_may_be_more_to_join"
        ),
        "archive/object_list.py:Shelf.entry_from_headers:not:0": (
            "test_only_a_sound_object_has_an_entry"
        ),
        "store/orphans.py:_unlisted:constant:0": (
            "test_an_object_that_was_replaced_is_as_old_as_what_replaced_it"
        ),
    },
    "tests/archive/test_location.py": {
        "archive/location.py:remember:call:1": (
            "test_remembering_makes_the_directory_and_keeps_a_damaged_note_aside"
        ),
        "archive/open_archive.py:Memory.is_own:comparison:1": (
            "test_an_archive_is_its_own_unless_another_one_is_remembered"
        ),
    },
    "tests/archive/test_newer_lists.py": {
        "store/archive_store.py:archived_topic:raise:0": (
            "test_an_archive_alone_refuses_a_newer_copy_of_topic_json"
        ),
    },
    "tests/archive/test_seam.py": {
        "archive/archiver.py:Archiver._holds_our_records:comparison:1": (
            "test_an_object_of_an_upload_that_was_cut_off_is_taken_whatever_its_bytes"
        ),
    },
    "tests/archive/test_settle_losses.py": {
        "archive/settle_losses.py:held:comparison:0": (
            "test_an_object_that_only_touches_a_gap_holds_nothing_of_it"
        ),
    },
    "tests/archive/test_topic_copies.py": {
        "archive/topic_copies.py:Metadata.forget:return:0": (
            "test_after_damage_everything_of_the_partition_is_put_again"
        ),
    },
    "tests/archive/test_wal.py": {
        "wal/deletes.py:_in_objects:constant:2": (
            "test_deleted_records_stay_deleted_whatever_is_lost"
        ),
        "wal/wal_partition.py:WalPartition._hand_over:call:0": (
            "test_an_archive_that_is_down_hides_nothing_that_is_local"
        ),
    },
    "tests/formats/test_strm_newer.py": {
        "formats/strm/segment.py:has_own_checksum:comparison:0": (
            "test_an_object_of_a_header_and_a_footer_alone_has_a_checksum"
        ),
    },
    "tests/groups/test_copying.py": {
        "groups/copying.py:Copies.of:boolean:0": (
            "test_a_group_that_is_poisoned_or_has_no_life_yet_has_no_copy"
        ),
    },
    "tests/groups/test_group.py": {
        "groups/group.py:Group._poll_once:boolean:0": (
            "test_a_poll_ends_with_the_record_that_reaches_its_bytes"
        ),
    },
    "tests/groups/test_roster.py": {
        "groups/roster.py:Roster.save:comparison:0": (
            "test_a_store_that_never_had_a_group_has_no_list"
        ),
    },
    "tests/log/test_layers.py": {
        "log/archived_layers.py:spans_of:not:0": (
            "test_of_an_archive_that_was_not_asked_yet_nobody_knows_what_it_spans"
        ),
    },
    "tests/log/test_partition_view.py": {
        "log/partition_view.py:PartitionView._sealed:constant:1": (
            "test_a_segment_of_a_newer_format_is_refused_beside_a_writer_and_without"
        ),
    },
    "tests/log/test_producers.py": {
        "log/producers.py:Producers._set_aside:extreme:0": (
            "test_a_journal_is_set_aside_unless_only_its_last_entry_is_cut"
        ),
    },
    "tests/log/test_removal.py": {
        "log/removal.py:take_back:comparison:2": (
            "test_of_a_segment_without_records_nothing_is_kept_aside"
        ),
        "log/removal.py:take_back:order:2": "test_a_cut_is_durable_when_it_returns",
    },
    "tests/log/test_retention_plan.py": {
        "wal/eviction.py:_by_records:not:0": (
            "test_every_verdict_has_a_reason_that_no_sentence_need_be_read_for"
        ),
    },
    "tests/log/test_segment.py": {
        "log/segment.py:load_entries:extreme:1": "test_entries_above_what_is_durable_are_not_taken",
    },
    "tests/log/test_segment_pile.py": {
        "log/segment_pile.py:Layout.segment_for:extreme:0": (
            "test_an_offset_leads_to_its_segment_and_one_before_all_to_the_first"
        ),
    },
    "tests/store/test_directory_check.py": {
        "store/directory_check.py:_unread:return:0": (
            "test_a_file_among_segments_that_nobody_reads_is_named"
        ),
        "store/directory_check.py:_wal_topic:return:0": (
            "test_a_segment_of_a_wal_topic_that_is_gone_is_missing_without_a_reason"
        ),
    },
    "tests/store/test_maintenance.py": {
        "store/maintenance.py:Maintenance.stop:comparison:0": (
            "test_whoever_stops_it_waits_for_a_tick_that_is_under_way"
        ),
        "store/store.py:Store._save_report:constant:0": (
            "test_what_recovery_did_is_kept_once_and_on_a_full_disk_later"
        ),
    },
    "tests/store/test_mend.py": {
        "store/mend.py:_sound:constant:4": (
            "test_of_a_damaged_header_nobody_knows_when_the_segment_was_made"
        ),
        "store/mend.py:_written:arithmetic:0": (
            "test_what_the_archive_has_comes_back_with_the_bytes_that_it_had"
        ),
    },
    "tests/store/test_reads.py": {
        "store/appends.py:AppendAccess._requests:comparison:7": (
            "test_an_append_to_a_partition_of_another_type_is_refused"
        ),
        "store/reads.py:StoreReader.fetch:comparison:0": "test_a_fetch_of_other_types_is_refused",
    },
    "tests/store/test_rewrite.py": {
        "store/rewrite.py:_split:constant:2": (
            "test_each_run_that_stays_is_one_segment_with_its_own_bytes"
        ),
        "store/rewrite.py:_write:comparison:1": (
            "test_each_run_that_stays_is_one_segment_with_its_own_bytes"
        ),
    },
    "tests/wal/test_cold_owner.py": {
        "wal/ownership.py:check:constant:0": "test_no_cold_directory_is_nobodys",
    },
    "tests/wal/test_compactor.py": {
        "wal/compactor.py:_Tail.room:extreme:2": (
            "test_a_segment_that_was_begun_takes_only_what_still_fits"
        ),
    },
    "tests/wal/test_deletes.py": {
        "wal/deletes.py:_meant:constant:0": "test_a_tag_is_not_a_prefix",
    },
    "tests/wal/test_engine.py": {
        "wal/engine.py:WalEngine.load:comparison:1": (
            "test_deletes_outlive_both_snapshots_and_the_wal_file_that_said_so"
        ),
    },
    "tests/wal/test_evidence.py": {
        "wal/evidence.py:has_rotted:arithmetic:2": (
            "test_a_durable_frame_in_two_sectors_has_rotted_where_the_next_one_begins_in_the_second"
        ),
    },
    "tests/wal/test_expiry.py": {
        "wal/expiry.py:_times:raise:0": (
            "test_a_wal_file_that_was_just_freed_leaves_the_answer_as_it_was"
        ),
    },
    "tests/wal/test_reader.py": {
        "wal/reader.py:TopicReader._distrust:constant:0": (
            "test_a_segment_whose_last_frames_are_damaged_is_walked_once"
        ),
        "wal/reader.py:TopicReader.sound_entries:boolean:3": (
            "test_an_index_that_differs_in_one_field_is_not_believed"
        ),
    },
    "tests/wal/test_routers.py": {
        "store/router_rules.py:RouterAccess.alter_router:return:0": (
            "test_rules_and_copies_outlive_the_store"
        ),
        "store/router_rules.py:RouterAccess.create_router:return:0": (
            "test_records_are_copied_by_tag_prefix_and_node_as_they_are"
        ),
    },
    "tests/wal/test_segment_mend.py": {
        "wal/segment_mend.py:_encoded:constant:0": (
            "test_what_the_archive_has_comes_back_with_the_bytes_that_it_had"
        ),
        "wal/segment_mend.py:mend:arithmetic:4": (
            "test_what_the_archive_has_comes_back_with_the_bytes_that_it_had"
        ),
    },
    "tests/wal/test_segment_rewrite.py": {
        "wal/segment_rewrite.py:_split:slice:0": (
            "test_what_stays_is_read_and_what_goes_is_not_in_any_file"
        ),
    },
    "tests/wal/test_segments.py": {
        "wal/segments.py:_walk:constant:7": (
            "test_frames_too_far_for_the_index_are_damage_behind_the_last_that_fits"
        ),
    },
    "tests/wal/test_shard.py": {
        "wal/shard.py:Shard.rotate:call:5": (
            "test_a_rotation_that_fails_leaves_no_file_and_is_done_again"
        ),
        "wal/shard.py:WalFile._pages:arithmetic:8": (
            "test_frames_far_from_each_other_are_read_by_their_pages_wherever_the_first_lies"
        ),
    },
    "tests/wal/test_snapshots.py": {
        "wal/snapshots.py:Snapshots.covers:comparison:1": (
            "test_a_file_is_covered_that_lies_before_both"
        ),
        "wal/snapshots.py:Snapshots.save:order:0": (
            "test_a_snapshot_that_could_not_be_written_covers_nothing"
        ),
    },
    "tests/wal/test_topic.py": {
        "wal/topic.py:Arrivals.announce:call:0": "test_a_reader_that_waits_is_woken_by_what_comes",
        "wal/topic.py:Arrivals.wait:constant:1": "test_nobody_is_counted_as_waiting_who_has_gone",
    },
    "tests/wal/test_upkeep.py": {
        "wal/upkeep.py:_relocate:order:0": (
            "test_readers_are_sent_to_the_cold_copy_before_the_hot_one_is_removed"
        ),
    },
    "tests/wal/test_wal_partition.py": {
        "wal/wal_partition.py:WalPartition.drop_expired:constant:0": (
            "test_where_nothing_expired_nothing_is_dropped_and_no_snapshot_is_due"
        ),
    },
}
"""The test that catches it, by its file; seen on the same change where its code is now."""

GONE: dict[str, str] = {
    "log/partition_reader.py:PartitionReader.info:constant:0": (
        "segments are counted by the layers of the pile"
    ),
    "log/segment_files.py:position_of:arithmetic:3": (
        "the one walk over damage (`formats.scan.runs`) resumes behind it"
    ),
    "log/sound_copies.py:archived:extreme:0": (
        "the one walk over gaps (`log.gap_walk.scan_over`) finds where to go on"
    ),
    "log/sound_copies.py:archived:extreme:1": "`log.cold.in_objects` knows where an object ends",
    "log/time_search.py:first_at_or_after:comparison:2": (
        "the walk over gaps goes on with the larger limit by itself"
    ),
    "wal/eviction.py:_kept_by_discard:comparison:1": (
        "`log.retention` decides for both families, by reasons"
    ),
    "wal/segment_rewrite.py:_split:comparison:1": (
        "the one walk over damage (`formats.scan.runs`) ends by itself"
    ),
}
"""There is no such line any more, and what does its work now."""

LIVED: tuple[str, ...] = ()
"""Judged, and not caught by the tests that run it: each lacks a test or an argument."""
