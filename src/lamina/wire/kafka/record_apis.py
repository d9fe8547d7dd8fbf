"""APIs that carry records, and those that say where they are."""

from __future__ import annotations

from lamina.wire.kafka.message_schema import api

PRODUCE = api(
    0,
    "Produce",
    (3, 11),
    9,
    (
        """
        transactional_id  string   3+  null 3+  default null
        acks              int16    0+
        timeout_ms        int32    0+
        topic_data        []       0+
          name            string   0+
          partition_data  []       0+
            index         int32    0+
            records       records  0+  null 0+
        """,
        """
        responses                        []      0+
          name                           string  0+
          partition_responses            []      0+
            index                        int32   0+
            error_code                   int16   0+
            base_offset                  int64   0+
            log_append_time_ms           int64   2+   default -1
            log_start_offset             int64   5+   default -1
            record_errors                []      8+
              batch_index                int32   8+
              batch_index_error_message  string  8+   null 8+  default null
            error_message                string  8+   null 8+  default null
            current_leader               {}      10+  tag 0
              leader_id                  int32   10+  default -1
              leader_epoch               int32   10+  default -1
        throttle_time_ms                 int32   1+
        node_endpoints                   []      10+  tag 0
          node_id                        int32   10+
          host                           string  10+
          port                           int32   10+
          rack                           string  10+  null 10+  default null
        """,
    ),
    advertised_first=0,  # librdkafka compresses only where Produce 0 is in the range
)

FETCH = api(
    1,
    "Fetch",
    (4, 16),
    12,
    (
        """
        cluster_id                string   12+   null 12+  tag 0  default null
        replica_id                int32    0-14  default -1
        replica_state             {}       15+   tag 1
          replica_id              int32    15+   default -1
          replica_epoch           int64    15+   default -1
        max_wait_ms               int32    0+
        min_bytes                 int32    0+
        max_bytes                 int32    3+    default 0x7fffffff
        isolation_level           int8     4+
        session_id                int32    7+
        session_epoch             int32    7+    default -1
        topics                    []       0+
          topic                   string   0-12
          topic_id                uuid     13+
          partitions              []       0+
            partition             int32    0+
            current_leader_epoch  int32    9+    default -1
            fetch_offset          int64    0+
            last_fetched_epoch    int32    12+   default -1
            log_start_offset      int64    5+    default -1
            partition_max_bytes   int32    0+
        forgotten_topics_data     []       7+
          topic                   string   7-12
          topic_id                uuid     13+
          partitions              []int32  7+
        rack_id                   string   11+
        """,
        """
        throttle_time_ms            int32    1+
        error_code                  int16    7+
        session_id                  int32    7+
        responses                   []       0+
          topic                     string   0-12
          topic_id                  uuid     13+
          partitions                []       0+
            partition_index         int32    0+
            error_code              int16    0+
            high_watermark          int64    0+
            last_stable_offset      int64    4+   default -1
            log_start_offset        int64    5+   default -1
            diverging_epoch         {}       12+  tag 0
              epoch                 int32    12+  default -1
              end_offset            int64    12+  default -1
            current_leader          {}       12+  tag 1
              leader_id             int32    12+  default -1
              leader_epoch          int32    12+  default -1
            snapshot_id             {}       12+  tag 2
              end_offset            int64    0+   default -1
              epoch                 int32    0+   default -1
            aborted_transactions    []       4+   null 4+
              producer_id           int64    4+
              first_offset          int64    4+
            preferred_read_replica  int32    11+  default -1
            records                 records  0+   null 0+
        node_endpoints              []       16+  tag 0
          node_id                   int32    16+
          host                      string   16+
          port                      int32    16+
          rack                      string   16+  null 16+  default null
        """,
    ),
)

LIST_OFFSETS = api(
    2,
    "ListOffsets",
    (1, 10),
    6,
    (
        """
        replica_id                int32   0+
        isolation_level           int8    2+
        topics                    []      0+
          name                    string  0+
          partitions              []      0+
            partition_index       int32   0+
            current_leader_epoch  int32   4+  default -1
            timestamp             int64   0+
        timeout_ms                int32   10+
        """,
        """
        throttle_time_ms     int32   2+
        topics               []      0+
          name               string  0+
          partitions         []      0+
            partition_index  int32   0+
            error_code       int16   0+
            timestamp        int64   1+  default -1
            offset           int64   1+  default -1
            leader_epoch     int32   4+  default -1
        """,
    ),
)

OFFSET_FOR_LEADER_EPOCH = api(
    23,
    "OffsetForLeaderEpoch",
    (2, 4),
    4,
    (
        """
        replica_id                int32   3+  default -2
        topics                    []      0+
          topic                   string  0+
          partitions              []      0+
            partition             int32   0+
            current_leader_epoch  int32   2+  default -1
            leader_epoch          int32   0+
        """,
        """
        throttle_time_ms  int32   2+
        topics            []      0+
          topic           string  0+
          partitions      []      0+
            error_code    int16   0+
            partition     int32   0+
            leader_epoch  int32   1+  default -1
            end_offset    int64   0+  default -1
        """,
    ),
)

INIT_PRODUCER_ID = api(
    22,
    "InitProducerId",
    (0, 4),
    2,
    (
        """
        transactional_id        string  0+  null 0+
        transaction_timeout_ms  int32   0+
        producer_id             int64   3+  default -1
        producer_epoch          int16   3+  default -1
        """,
        """
        throttle_time_ms  int32  0+
        error_code        int16  0+
        producer_id       int64  0+  default -1
        producer_epoch    int16  0+
        """,
    ),
)

DELETE_RECORDS = api(
    21,
    "DeleteRecords",
    (0, 2),
    2,
    (
        """
        topics               []      0+
          name               string  0+
          partitions         []      0+
            partition_index  int32   0+
            offset           int64   0+
        timeout_ms           int32   0+
        """,
        """
        throttle_time_ms     int32   0+
        topics               []      0+
          name               string  0+
          partitions         []      0+
            partition_index  int32   0+
            low_watermark    int64   0+
            error_code       int16   0+
        """,
    ),
)
