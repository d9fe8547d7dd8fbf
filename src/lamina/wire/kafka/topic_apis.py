"""APIs about topics, their partitions and their settings."""

from __future__ import annotations

from lamina.wire.kafka.message_schema import api

METADATA = api(
    3,
    "Metadata",
    (0, 12),
    9,
    (
        """
        topics                                 []      0+    null 1+
          topic_id                             uuid    10+
          name                                 string  0+    null 10+
        allow_auto_topic_creation              bool    4+    default true
        include_cluster_authorized_operations  bool    8-10
        include_topic_authorized_operations    bool    8+
        """,
        """
        throttle_time_ms               int32    3+
        brokers                        []       0+
          node_id                      int32    0+
          host                         string   0+
          port                         int32    0+
          rack                         string   1+    null 1+  default null
        cluster_id                     string   2+    null 2+  default null
        controller_id                  int32    1+    default -1
        topics                         []       0+
          error_code                   int16    0+
          name                         string   0+    null 12+
          topic_id                     uuid     10+
          is_internal                  bool     1+
          partitions                   []       0+
            error_code                 int16    0+
            partition_index            int32    0+
            leader_id                  int32    0+
            leader_epoch               int32    7+    default -1
            replica_nodes              []int32  0+
            isr_nodes                  []int32  0+
            offline_replicas           []int32  5+
          topic_authorized_operations  int32    8+    default -2147483648
        cluster_authorized_operations  int32    8-10  default -2147483648
        """,
    ),
)

CREATE_TOPICS = api(
    19,
    "CreateTopics",
    (2, 7),
    5,
    (
        """
        topics                []       0+
          name                string   0+
          num_partitions      int32    0+
          replication_factor  int16    0+
          assignments         []       0+
            partition_index   int32    0+
            broker_ids        []int32  0+
          configs             []       0+
            name              string   0+
            value             string   0+  null 0+
        timeout_ms            int32    0+  default 60000
        validate_only         bool     1+
        """,
        """
        throttle_time_ms           int32   2+
        topics                     []      0+
          name                     string  0+
          topic_id                 uuid    7+
          error_code               int16   0+
          error_message            string  1+  null 0+
          topic_config_error_code  int16   5+  tag 0
          num_partitions           int32   5+  default -1
          replication_factor       int16   5+  default -1
          configs                  []      5+  null 5+
            name                   string  5+
            value                  string  5+  null 5+
            read_only              bool    5+
            config_source          int8    5+  default -1
            is_sensitive           bool    5+
        """,
    ),
)

DELETE_TOPICS = api(
    20,
    "DeleteTopics",
    (1, 6),
    4,
    (
        """
        topics       []        6+
          name       string    6+  null 6+  default null
          topic_id   uuid      6+
        topic_names  []string  0-5
        timeout_ms   int32     0+
        """,
        """
        throttle_time_ms  int32   1+
        responses         []      0+
          name            string  0+  null 6+
          topic_id        uuid    6+
          error_code      int16   0+
          error_message   string  5+  null 5+  default null
        """,
    ),
)

CREATE_PARTITIONS = api(
    37,
    "CreatePartitions",
    (0, 3),
    2,
    (
        """
        topics          []       0+
          name          string   0+
          count         int32    0+
          assignments   []       0+  null 0+
            broker_ids  []int32  0+
        timeout_ms      int32    0+
        validate_only   bool     0+
        """,
        """
        throttle_time_ms  int32   0+
        results           []      0+
          name            string  0+
          error_code      int16   0+
          error_message   string  0+  null 0+  default null
        """,
    ),
)

DESCRIBE_CONFIGS = api(
    32,
    "DescribeConfigs",
    (1, 4),
    4,
    (
        """
        resources              []        0+
          resource_type        int8      0+
          resource_name        string    0+
          configuration_keys   []string  0+  null 0+
        include_synonyms       bool      1+
        include_documentation  bool      3+
        """,
        """
        throttle_time_ms   int32   0+
        results            []      0+
          error_code       int16   0+
          error_message    string  0+  null 0+
          resource_type    int8    0+
          resource_name    string  0+
          configs          []      0+
            name           string  0+
            value          string  0+  null 0+
            read_only      bool    0+
            config_source  int8    1+  default -1
            is_sensitive   bool    0+
            synonyms       []      1+
              name         string  1+
              value        string  1+  null 0+
              source       int8    1+
            config_type    int8    3+
            documentation  string  3+  null 0+
        """,
    ),
)

_ALTERED = """
        throttle_time_ms  int32   0+
        responses         []      0+
          error_code      int16   0+
          error_message   string  0+  null 0+
          resource_type   int8    0+
          resource_name   string  0+
        """

ALTER_CONFIGS = api(
    33,
    "AlterConfigs",
    (0, 2),
    2,
    (
        """
        resources        []      0+
          resource_type  int8    0+
          resource_name  string  0+
          configs        []      0+
            name         string  0+
            value        string  0+  null 0+
        validate_only    bool    0+
        """,
        _ALTERED,
    ),
)

INCREMENTAL_ALTER_CONFIGS = api(
    44,
    "IncrementalAlterConfigs",
    (0, 1),
    1,
    (
        """
        resources             []      0+
          resource_type       int8    0+
          resource_name       string  0+
          configs             []      0+
            name              string  0+
            config_operation  int8    0+
            value             string  0+  null 0+
        validate_only         bool    0+
        """,
        _ALTERED,
    ),
)
