"""APIs of classic consumer groups and their committed offsets."""

from __future__ import annotations

from lamina.wire.kafka.message_schema import api

FIND_COORDINATOR = api(
    10,
    "FindCoordinator",
    (0, 6),
    3,
    (
        """
        key               string    0-3
        key_type          int8      1+
        coordinator_keys  []string  4+
        """,
        """
        throttle_time_ms  int32   1+
        error_code        int16   0-3
        error_message     string  1-3  null 1-3
        node_id           int32   0-3
        host              string  0-3
        port              int32   0-3
        coordinators      []      4+
          key             string  4+
          node_id         int32   4+
          host            string  4+
          port            int32   4+
          error_code      int16   4+
          error_message   string  4+   null 4+
        """,
    ),
)

JOIN_GROUP = api(
    11,
    "JoinGroup",
    (0, 9),
    6,
    (
        """
        group_id              string  0+
        session_timeout_ms    int32   0+
        rebalance_timeout_ms  int32   1+  default -1
        member_id             string  0+
        group_instance_id     string  5+  null 5+  default null
        protocol_type         string  0+
        protocols             []      0+
          name                string  0+
          metadata            bytes   0+
        reason                string  8+  null 8+  default null
        """,
        """
        throttle_time_ms     int32   2+
        error_code           int16   0+
        generation_id        int32   0+  default -1
        protocol_type        string  7+  null 7+  default null
        protocol_name        string  0+  null 7+
        leader               string  0+
        skip_assignment      bool    9+
        member_id            string  0+
        members              []      0+
          member_id          string  0+
          group_instance_id  string  5+  null 5+  default null
          metadata           bytes   0+
        """,
    ),
)

SYNC_GROUP = api(
    14,
    "SyncGroup",
    (0, 5),
    4,
    (
        """
        group_id           string  0+
        generation_id      int32   0+
        member_id          string  0+
        group_instance_id  string  3+  null 3+  default null
        protocol_type      string  5+  null 5+  default null
        protocol_name      string  5+  null 5+  default null
        assignments        []      0+
          member_id        string  0+
          assignment       bytes   0+
        """,
        """
        throttle_time_ms  int32   1+
        error_code        int16   0+
        protocol_type     string  5+  null 5+  default null
        protocol_name     string  5+  null 5+  default null
        assignment        bytes   0+
        """,
    ),
)

HEARTBEAT = api(
    12,
    "Heartbeat",
    (0, 4),
    4,
    (
        """
        group_id           string  0+
        generation_id      int32   0+
        member_id          string  0+
        group_instance_id  string  3+  null 3+  default null
        """,
        """
        throttle_time_ms  int32  1+
        error_code        int16  0+
        """,
    ),
)

LEAVE_GROUP = api(
    13,
    "LeaveGroup",
    (0, 5),
    4,
    (
        """
        group_id             string  0+
        member_id            string  0-2
        members              []      3+
          member_id          string  3+
          group_instance_id  string  3+  null 3+  default null
          reason             string  5+  null 5+  default null
        """,
        """
        throttle_time_ms     int32   1+
        error_code           int16   0+
        members              []      3+
          member_id          string  3+
          group_instance_id  string  3+  null 3+
          error_code         int16   3+
        """,
    ),
)

OFFSET_COMMIT = api(
    8,
    "OffsetCommit",
    (2, 9),
    8,
    (
        """
        group_id                       string  0+
        generation_id_or_member_epoch  int32   1+  default -1
        member_id                      string  1+
        group_instance_id              string  7+  null 7+  default null
        retention_time_ms              int64   2-4  default -1
        topics                         []      0+
          name                         string  0+
          partitions                   []      0+
            partition_index            int32   0+
            committed_offset           int64   0+
            committed_leader_epoch     int32   6+  default -1
            committed_metadata         string  0+  null 0+
        """,
        """
        throttle_time_ms     int32   3+
        topics               []      0+
          name               string  0+
          partitions         []      0+
            partition_index  int32   0+
            error_code       int16   0+
        """,
    ),
)

OFFSET_FETCH = api(
    9,
    "OffsetFetch",
    (1, 9),
    6,
    (
        """
        group_id             string   0-7
        topics               []       0-7  null 2-7
          name               string   0-7
          partition_indexes  []int32  0-7
        groups               []       8+
          group_id           string   8+
          member_id          string   9+   null 9+  default null
          member_epoch       int32    9+   default -1
          topics             []       8+   null 8+
            name             string   8+
            partition_indexes  []int32  8+
        require_stable       bool     7+
        """,
        """
        throttle_time_ms            int32   3+
        topics                      []      0-7
          name                      string  0-7
          partitions                []      0-7
            partition_index         int32   0-7
            committed_offset        int64   0-7
            committed_leader_epoch  int32   5-7  default -1
            metadata                string  0-7  null 0-7
            error_code              int16   0-7
        error_code                  int16   2-7
        groups                      []      8+
          group_id                  string  8+
          topics                    []      8+
            name                    string  8+
            partitions              []      8+
              partition_index       int32   8+
              committed_offset      int64   8+
              committed_leader_epoch  int32   8+  default -1
              metadata              string  8+   null 8+
              error_code            int16   8+
          error_code                int16   8+
        """,
    ),
)

DESCRIBE_GROUPS = api(
    15,
    "DescribeGroups",
    (0, 5),
    5,
    (
        """
        groups                         []string  0+
        include_authorized_operations  bool      3+
        """,
        """
        throttle_time_ms         int32   1+
        groups                   []      0+
          error_code             int16   0+
          group_id               string  0+
          group_state            string  0+
          protocol_type          string  0+
          protocol_data          string  0+
          members                []      0+
            member_id            string  0+
            group_instance_id    string  4+  null 4+  default null
            client_id            string  0+
            client_host          string  0+
            member_metadata      bytes   0+
            member_assignment    bytes   0+
          authorized_operations  int32   3+  default -2147483648
        """,
    ),
)

LIST_GROUPS = api(
    16,
    "ListGroups",
    (0, 5),
    3,
    (
        """
        states_filter  []string  4+
        types_filter   []string  5+
        """,
        """
        throttle_time_ms  int32   1+
        error_code        int16   0+
        groups            []      0+
          group_id        string  0+
          protocol_type   string  0+
          group_state     string  4+
          group_type      string  5+
        """,
    ),
)

DELETE_GROUPS = api(
    42,
    "DeleteGroups",
    (0, 2),
    2,
    (
        "groups_names  []string  0+",
        """
        throttle_time_ms  int32   0+
        results           []      0+
          group_id        string  0+
          error_code      int16   0+
        """,
    ),
)

OFFSET_DELETE = api(
    47,
    "OffsetDelete",
    (0, 0),
    None,
    (
        """
        group_id             string  0+
        topics               []      0+
          name               string  0+
          partitions         []      0+
            partition_index  int32   0+
        """,
        """
        error_code           int16   0+
        throttle_time_ms     int32   0+
        topics               []      0+
          name               string  0+
          partitions         []      0+
            partition_index  int32   0+
            error_code       int16   0+
        """,
    ),
)
