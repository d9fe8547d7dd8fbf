"""Mutants of the cluster: each step by which a standby takes over safely, left out in one place."""

from __future__ import annotations

from tests.torture.catching import Mutant

CLUSTER_MUTANTS = (
    Mutant(
        "cluster-no-fence",
        "a takeover puts an empty window into the next slot before it reads any",
        "cluster/tails.py",
        "        found = yield from _created(seq, data)\n        yield from _require_live(seq)\n",
        "        found = data\n        return TailLog(epoch, seq)\n",
        ("tests/cluster/test_tails.py",),
    ),
    Mutant(
        "cluster-boundary-unread",
        "a fence counts only if the boundary is not above it by then",
        "cluster/tails.py",
        "    if boundary.first_seq > seq:\n        raise Fenced(",
        "    if False:\n        raise Fenced(",
        ("tests/cluster/test_tails.py",),
    ),
    Mutant(
        "cluster-fences-collected",
        "a fence is never removed: a holder that wakes up late must find it",
        "cluster/tails.py",
        "        return not _decoded(seq, stored.data).is_fence\n",
        "        return True\n",
        ("tests/cluster/test_tails.py",),
    ),
    Mutant(
        "cluster-no-margin",
        "a holder stops answering a margin before its ttl is over",
        "cluster/lease.py",
        "        return max(0, self.lease.ttl_ms - margin_ms - (now_ms - self.proven_ms))\n",
        "        return max(0, self.lease.ttl_ms - (now_ms - self.proven_ms))\n",
        ("tests/cluster/test_lease.py",),
    ),
    Mutant(
        "cluster-renewal-from-its-end",
        "a renewal counts from when it was begun",
        "cluster/lease.py",
        "                self.lease, self.proven_ms = wanted, begun_ms\n",
        "                self.lease, self.proven_ms = wanted, clock()\n",
        ("tests/cluster/test_lease.py",),
    ),
    Mutant(
        "cluster-successor-does-not-wait",
        "a standby waits a full ttl from the last change that it has seen",
        "cluster/lease.py",
        "        return now_ms - self.changed_ms >= self.lease.ttl_ms\n",
        "        return now_ms - self.changed_ms >= self.lease.ttl_ms // 2\n",
        ("tests/cluster/test_lease.py",),
    ),
    Mutant(
        "cluster-lease-by-wall-clock",
        "a lease is measured by a clock that nobody sets",
        "store/cluster_life.py",
        "        clock: Clock = boot_clock_ms,\n",
        "        clock: Clock = wall_clock_ms,\n",
        ("tests/store/test_cluster_life.py::test_a_clock_that_is_set_ends_no_lease",),
    ),
    Mutant(
        "cluster-no-gate",
        "an append is answered only while nobody else can hold the lease",
        "store/seat.py",
        "        if self.holding.may_answer(self._clock()):\n            return None\n",
        "        if self.holding.successor is None:\n            return None\n",
        ("tests/store/test_seat.py",),
    ),
    Mutant(
        "cluster-no-second-look",
        "a server asks again when its answer is ready whether it may still give it",
        "server/standing.py",
        "        refusal = self.standing.refusal(was_begun=True)\n"
        "        if refusal is not None:\n"
        "            raise NotPrimary(str(refusal), refusal.holder, was_begun=True)\n",
        "        return\n",
        ("tests/server/test_standing.py",),
    ),
    Mutant(
        "cluster-no-epoch-in-key",
        "an object's key carries the epoch of the broker that made it",
        "archive/join.py",
        "        entry = replace(encoded.entry, generation=later, epoch=shelf.epoch)\n",
        "        entry = replace(encoded.entry, generation=later, epoch=0)\n",
        ("tests/archive/test_epochs.py",),
    ),
    Mutant(
        "cluster-list-replaced-blindly",
        "a list is replaced only if it is the one that was read",
        "archive/object_list.py",
        "        self._etag = self.objects.replace(key, archive.encode(wanted), self._etag)\n"
        "        self.manifest = wanted\n\n    def replace_by_rebuilt",
        "        found = self.objects.read(key).etag if self._etag is not None else None\n"
        "        self._etag = self.objects.replace(key, archive.encode(wanted), found)\n"
        "        self.manifest = wanted\n\n    def replace_by_rebuilt",
        ("tests/archive/test_epochs.py",),
    ),
    Mutant(
        "cluster-fork-kept",
        "a directory that another broker has served since is set aside",
        "store/seat_directory.py",
        "        leave_behind(boot, taken.tails, known, report)\n    if not",
        "        write_seat(boot, epoch, SERVING)\n"
        "        return Ground(history, ends_of(objects, history, _local(boot)))\n    if not",
        ("tests/store/test_seat_directory.py",),
    ),
    Mutant(
        "cluster-divergence-in-silence",
        "what was never shipped is reported as soon as its server stands by",
        "store/cluster_life.py",
        "                self._set_aside()\n",
        "                pass\n",
        (
            "tests/store/test_cluster_life.py"
            "::test_a_holder_that_is_cut_off_stops_and_sets_aside_what_it_never_shipped",
        ),
    ),
    Mutant(
        "cluster-released-unshipped",
        "a lease is released only when the store is closed, and all of it shipped",
        "store/cluster_life.py",
        "            self._doors.drain()\n            self._close()\n"
        "        self._order(self._release)\n",
        "            self._doors.drain()\n            self._order(self._release)\n"
        "            self._seat.halt()\n            self._seat.finish = lambda: None\n"
        "            self._close()\n        self._order(self._release)\n",
        (
            "tests/store/test_cluster_life.py"
            "::test_a_hand_over_ships_everything_and_is_taken_at_once",
        ),
    ),
    Mutant(
        "cluster-lease-hoarded",
        "a lease is released by a machine that cannot open the store",
        "store/cluster_life.py",
        "            self._order(lambda: self._give_up(taken))\n",
        '            self._order(lambda: self._lost(taken, NotPrimary("not here")))\n',
        (
            "tests/store/test_cluster_life.py"
            "::test_a_store_that_cannot_be_opened_is_left_to_another_machine",
        ),
    ),
    Mutant(
        "cluster-answers-while-released",
        "nothing is answered any more once the release of the lease is on its way",
        "cluster/member.py",
        "        self._may_finish = False  # whoever reads the release answers from then on\n",
        "",
        ("tests/cluster/test_member.py",),
    ),
    Mutant(
        "replica-list-not-read",
        "a replica reads the lists again before it lets windows go",
        "store/replica.py",
        "            if reader is not None:\n                self._read_list_of(reader)\n"
        "        following.let_go(",
        "            pass\n        following.let_go(",
        ("tests/store/test_replica.py::test_windows_are_let_go_step_by_step_behind_the_boundary",),
    ),
    Mutant(
        "replica-window-uncut",
        "of a window a replica shows what the list does not have",
        "store/replica_partition.py",
        "each.records.cut(end)",
        "each.records",
        ("tests/store/test_replica.py::test_a_window_that_several_objects_take_the_place_of",),
    ),
    Mutant(
        "replica-hole-unseen",
        "a replica shows nothing behind offsets that neither list nor window has",
        "store/replica_partition.py",
        "            if each.first_offset > end:",
        "            if False:",
        ("tests/store/test_replica.py::test_an_end_never_goes_back",),
    ),
    Mutant(
        "replica-end-goes-back",
        "the end that a replica has shown never goes back",
        "store/replica_partition.py",
        "        if end < self.end_offset():",
        "        if False:",
        ("tests/store/test_replica.py::test_a_list_that_lost_its_end_takes_nothing_back",),
    ),
    Mutant(
        "replica-age-from-its-end",
        "how old a replica is counts from the beginning of its last look",
        "store/replica.py",
        "self._is_ready, self.problem = begun_ms,",
        "self._is_ready, self.problem = self._now_ms(),",
        ("tests/store/test_replica.py::test_how_old_it_is_counts_from_the_beginning_of_a_poll",),
    ),
    Mutant(
        "replica-missing-window-unseen",
        "a window that is missing in the middle of the log is found",
        "store/replica.py",
        "        if self._idle < IDLE_POLLS:",
        "        if True:",
        ("tests/store/test_replica.py::test_a_window_that_somebody_deleted_is_missed",),
    ),
    Mutant(
        "replica-beyond-its-end",
        "an offset that a replica does not have yet is the holder's",
        "store/replica_partition.py",
        "        if start > self.end_offset():",
        "        if False:",
        ("tests/store/test_replica.py::test_everything_else_names_the_holder",),
    ),
)
