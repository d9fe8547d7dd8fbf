"""APIs of share groups."""

from __future__ import annotations

from lamina.wire.kafka.message_schema import api

SHARE_GROUP_HEARTBEAT = api(
    76,
    "ShareGroupHeartbeat",
    (1, 1),
    0,
    (
        """
        group_id                string    0+
        member_id               string    0+
        member_epoch            int32     0+
        rack_id                 string    0+  null 0+  default null
        subscribed_topic_names  []string  0+  null 0+  default null
        """,
        """
        throttle_time_ms       int32    0+
        error_code             int16    0+
        error_message          string   0+  null 0+  default null
        member_id              string   0+  null 0+  default null
        member_epoch           int32    0+
        heartbeat_interval_ms  int32    0+
        assignment             {}       0+  null 0+  default null
          topic_partitions     []       0+
            topic_id           uuid     0+
            partitions         []int32  0+
        """,
    ),
)

SHARE_GROUP_DESCRIBE = api(
    77,
    "ShareGroupDescribe",
    (1, 1),
    0,
    (
        """
        group_ids                      []string  0+
        include_authorized_operations  bool      0+
        """,
        """
        throttle_time_ms            int32     0+
        groups                      []        0+
          error_code                int16     0+
          error_message             string    0+  null 0+  default null
          group_id                  string    0+
          group_state               string    0+
          group_epoch               int32     0+
          assignment_epoch          int32     0+
          assignor_name             string    0+
          members                   []        0+
            member_id               string    0+
            rack_id                 string    0+  null 0+  default null
            member_epoch            int32     0+
            client_id               string    0+
            client_host             string    0+
            subscribed_topic_names  []string  0+
            assignment              {}        0+
              topic_partitions      []        0+
                topic_id            uuid      0+
                topic_name          string    0+
                partitions          []int32   0+
          authorized_operations     int32     0+  default -2147483648
        """,
    ),
)

SHARE_FETCH = api(
    78,
    "ShareFetch",
    (1, 2),
    0,
    (
        """
        group_id                   string   0+  null 0+  default null
        member_id                  string   0+  null 0+
        share_session_epoch        int32    0+
        max_wait_ms                int32    0+
        min_bytes                  int32    0+
        max_bytes                  int32    0+  default 0x7fffffff
        max_records                int32    1+
        batch_size                 int32    1+
        share_acquire_mode         int8     2+
        is_renew_ack               bool     2+
        topics                     []       0+
          topic_id                 uuid     0+
          partitions               []       0+
            partition_index        int32    0+
            acknowledgement_batches  []     0+
              first_offset         int64    0+
              last_offset          int64    0+
              acknowledge_types    []int8   0+
        forgotten_topics_data      []       0+
          topic_id                 uuid     0+
          partitions               []int32  0+
        """,
        """
        throttle_time_ms             int32    0+
        error_code                   int16    0+
        error_message                string   0+  null 0+  default null
        acquisition_lock_timeout_ms  int32    1+
        responses                    []       0+
          topic_id                   uuid     0+
          partitions                 []       0+
            partition_index          int32    0+
            error_code               int16    0+
            error_message            string   0+  null 0+  default null
            acknowledge_error_code   int16    0+
            acknowledge_error_message  string  0+  null 0+  default null
            current_leader           {}       0+
              leader_id              int32    0+
              leader_epoch           int32    0+
            records                  records  0+  null 0+
            acquired_records         []       0+
              first_offset           int64    0+
              last_offset            int64    0+
              delivery_count         int16    0+
        node_endpoints               []       0+
          node_id                    int32    0+
          host                       string   0+
          port                       int32    0+
          rack                       string   0+  null 0+  default null
        """,
    ),
)

SHARE_ACKNOWLEDGE = api(
    79,
    "ShareAcknowledge",
    (1, 2),
    0,
    (
        """
        group_id                     string  0+  null 0+  default null
        member_id                    string  0+  null 0+
        share_session_epoch          int32   0+
        is_renew_ack                 bool    2+
        topics                       []      0+
          topic_id                   uuid    0+
          partitions                 []      0+
            partition_index          int32   0+
            acknowledgement_batches  []      0+
              first_offset           int64   0+
              last_offset            int64   0+
              acknowledge_types      []int8  0+
        """,
        """
        throttle_time_ms             int32   0+
        error_code                   int16   0+
        error_message                string  0+  null 0+  default null
        acquisition_lock_timeout_ms  int32   2+
        responses                    []      0+
          topic_id                   uuid    0+
          partitions                 []      0+
            partition_index          int32   0+
            error_code               int16   0+
            error_message            string  0+  null 0+  default null
            current_leader           {}      0+
              leader_id              int32   0+
              leader_epoch           int32   0+
        node_endpoints               []      0+
          node_id                    int32   0+
          host                       string  0+
          port                       int32   0+
          rack                       string  0+  null 0+  default null
        """,
    ),
)

DESCRIBE_SHARE_GROUP_OFFSETS = api(
    90,
    "DescribeShareGroupOffsets",
    (0, 1),
    0,
    (
        """
        groups          []       0+
          group_id      string   0+
          topics        []       0+  null 0+
            topic_name  string   0+
            partitions  []int32  0+
        """,
        """
        throttle_time_ms       int32   0+
        groups                 []      0+
          group_id             string  0+
          topics               []      0+
            topic_name         string  0+
            topic_id           uuid    0+
            partitions         []      0+
              partition_index  int32   0+
              start_offset     int64   0+
              leader_epoch     int32   0+
              lag              int64   1+  default -1
              error_code       int16   0+
              error_message    string  0+  null 0+  default null
          error_code           int16   0+
          error_message        string  0+  null 0+  default null
        """,
    ),
)

ALTER_SHARE_GROUP_OFFSETS = api(
    91,
    "AlterShareGroupOffsets",
    (0, 0),
    0,
    (
        """
        group_id             string  0+
        topics               []      0+
          topic_name         string  0+
          partitions         []      0+
            partition_index  int32   0+
            start_offset     int64   0+
        """,
        """
        throttle_time_ms     int32   0+
        error_code           int16   0+
        error_message        string  0+  null 0+  default null
        responses            []      0+
          topic_name         string  0+
          topic_id           uuid    0+
          partitions         []      0+
            partition_index  int32   0+
            error_code       int16   0+
            error_message    string  0+  null 0+  default null
        """,
    ),
)

DELETE_SHARE_GROUP_OFFSETS = api(
    92,
    "DeleteShareGroupOffsets",
    (0, 0),
    0,
    (
        """
        group_id      string  0+
        topics        []      0+
          topic_name  string  0+
        """,
        """
        throttle_time_ms  int32   0+
        error_code        int16   0+
        error_message     string  0+  null 0+  default null
        responses         []      0+
          topic_name      string  0+
          topic_id        uuid    0+
          error_code      int16   0+
          error_message   string  0+  null 0+  default null
        """,
    ),
)

DESCRIBE_SHARE_GROUP_OFFSETS = api(
    90,
    "DescribeShareGroupOffsets",
    (0, 1),
    0,
    (
        """
        groups          []       0+
          group_id      string   0+
          topics        []       0+  null 0+
            topic_name  string   0+
            partitions  []int32  0+
        """,
        """
        throttle_time_ms     int32   0+
        groups               []      0+
          group_id           string  0+
          topics             []      0+
            topic_name       string  0+
            topic_id         uuid    0+
            partitions       []      0+
              partition_index  int32   0+
              start_offset     int64   0+
              leader_epoch     int32   0+
              lag              int64   1+  default -1
              error_code       int16   0+
              error_message    string  0+  null 0+  default null
          error_code         int16   0+
          error_message      string  0+  null 0+  default null
        """,
    ),
)

ALTER_SHARE_GROUP_OFFSETS = api(
    91,
    "AlterShareGroupOffsets",
    (0, 0),
    0,
    (
        """
        group_id             string  0+
        topics               []      0+
          topic_name         string  0+
          partitions         []      0+
            partition_index  int32   0+
            start_offset     int64   0+
        """,
        """
        throttle_time_ms     int32   0+
        error_code           int16   0+
        error_message        string  0+  null 0+  default null
        responses            []      0+
          topic_name         string  0+
          topic_id           uuid    0+
          partitions         []      0+
            partition_index  int32   0+
            error_code       int16   0+
            error_message    string  0+  null 0+  default null
        """,
    ),
)

DELETE_SHARE_GROUP_OFFSETS = api(
    92,
    "DeleteShareGroupOffsets",
    (0, 0),
    0,
    (
        """
        group_id      string  0+
        topics        []      0+
          topic_name  string  0+
        """,
        """
        throttle_time_ms  int32   0+
        error_code        int16   0+
        error_message     string  0+  null 0+  default null
        responses         []      0+
          topic_name      string  0+
          topic_id        uuid    0+
          error_code      int16   0+
          error_message   string  0+  null 0+  default null
        """,
    ),
)
