"""APIs of a connection itself: versions, SASL, the cluster."""

from __future__ import annotations

from lamina.wire.kafka.message_schema import api

API_VERSIONS = api(
    18,
    "ApiVersions",
    (0, 4),
    3,
    (
        """
        client_software_name     string  3+
        client_software_version  string  3+
        """,
        """
        error_code                int16   0+
        api_keys                  []      0+
          api_key                 int16   0+
          min_version             int16   0+
          max_version             int16   0+
        throttle_time_ms          int32   1+
        supported_features        []      3+  tag 0
          name                    string  3+
          min_version             int16   3+
          max_version             int16   3+
        finalized_features_epoch  int64   3+  tag 1  default -1
        finalized_features        []      3+  tag 2
          name                    string  3+
          max_version_level       int16   3+
          min_version_level       int16   3+
        zk_migration_ready        bool    3+  tag 3
        """,
    ),
)

SASL_HANDSHAKE = api(
    17,
    "SaslHandshake",
    (0, 1),
    None,
    (
        "mechanism  string  0+",
        """
        error_code  int16     0+
        mechanisms  []string  0+
        """,
    ),
)

SASL_AUTHENTICATE = api(
    36,
    "SaslAuthenticate",
    (0, 2),
    2,
    (
        "auth_bytes  bytes  0+",
        """
        error_code           int16   0+
        error_message        string  0+  null 0+
        auth_bytes           bytes   0+
        session_lifetime_ms  int64   1+
        """,
    ),
)

DESCRIBE_CLUSTER = api(
    60,
    "DescribeCluster",
    (0, 1),
    0,
    (
        """
        include_cluster_authorized_operations  bool  0+
        endpoint_type                          int8  1+  default 1
        """,
        """
        throttle_time_ms               int32   0+
        error_code                     int16   0+
        error_message                  string  0+  null 0+  default null
        endpoint_type                  int8    1+  default 1
        cluster_id                     string  0+
        controller_id                  int32   0+  default -1
        brokers                        []      0+
          broker_id                    int32   0+
          host                         string  0+
          port                         int32   0+
          rack                         string  0+  null 0+  default null
        cluster_authorized_operations  int32   0+  default -2147483648
        """,
    ),
)
