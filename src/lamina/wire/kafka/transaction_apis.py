"""APIs of transactions."""

from __future__ import annotations

from lamina.wire.kafka.message_schema import api

ADD_PARTITIONS_TO_TXN = api(
    24,
    "AddPartitionsToTxn",
    (0, 3),
    3,
    (
        """
        transactional_id  string   0+
        producer_id       int64    0+
        producer_epoch    int16    0+
        topics            []       0+
          name            string   0+
          partitions      []int32  0+
        """,
        """
        throttle_time_ms          int32   0+
        results_by_topic          []      0+
          name                    string  0+
          results_by_partition    []      0+
            partition_index       int32   0+
            partition_error_code  int16   0+
        """,
    ),
)

_OUTCOME = """
        throttle_time_ms  int32  0+
        error_code        int16  0+
        """

ADD_OFFSETS_TO_TXN = api(
    25,
    "AddOffsetsToTxn",
    (0, 3),
    3,
    (
        """
        transactional_id  string  0+
        producer_id       int64   0+
        producer_epoch    int16   0+
        group_id          string  0+
        """,
        _OUTCOME,
    ),
)

END_TXN = api(
    26,
    "EndTxn",
    (0, 3),
    3,
    (
        """
        transactional_id  string  0+
        producer_id       int64   0+
        producer_epoch    int16   0+
        committed         bool    0+
        """,
        _OUTCOME,
    ),
)

TXN_OFFSET_COMMIT = api(
    28,
    "TxnOffsetCommit",
    (0, 3),
    3,
    (
        """
        transactional_id            string  0+
        group_id                    string  0+
        producer_id                 int64   0+
        producer_epoch              int16   0+
        generation_id               int32   3+  default -1
        member_id                   string  3+
        group_instance_id           string  3+  null 3+  default null
        topics                      []      0+
          name                      string  0+
          partitions                []      0+
            partition_index         int32   0+
            committed_offset        int64   0+
            committed_leader_epoch  int32   2+  default -1
            committed_metadata      string  0+  null 0+
        """,
        """
        throttle_time_ms     int32   0+
        topics               []      0+
          name               string  0+
          partitions         []      0+
            partition_index  int32   0+
            error_code       int16   0+
        """,
    ),
)
