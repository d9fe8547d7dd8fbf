"""What can be set of a server, each with its meaning: the table behind `lamina config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lamina.config import ANY_SIZE_OR_NONE, ANY_TEXT, NO_LIMIT, SWITCH, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(Settings):
    """Where a server listens, whom it lets in, and how much it takes on at once."""

    kind: ClassVar[str] = "server setting"

    host: str = setting(
        "127.0.0.1",
        "host",
        "address",
        "where to listen; beyond loopback only with a key file",
        allowed=ANY_TEXT,
    )
    flight_port: int = setting(
        9300,
        "flight.port",
        "port, 0 for any",
        "Arrow Flight: `lamina.connect`, Spark",
        allowed=(0, 65_535),
    )
    http_port: int = setting(
        9301, "http.port", "port, 0 for any", "JSON, health, metrics", allowed=(0, 65_535)
    )
    kafka_port: int = setting(
        9092,
        "kafka.port",
        "port, 0 for any, -1 for none",
        "Kafka clients: `bootstrap.servers`",
        allowed=(-1, 65_535),
    )
    sockets: str = setting(
        "",
        "sockets",
        "directory, empty for none",
        "Unix sockets flight.sock and http.sock beside the ports, for the server's own user",
        allowed=ANY_TEXT,
    )
    kafka_advertised: str = setting(
        "",
        "kafka.advertised",
        "host or host:port, empty for where a client has come in",
        "what Kafka clients are told to connect to",
        allowed=ANY_TEXT,
    )
    kafka_auto_create: str = setting(
        "true",
        "kafka.auto.create",
        "false or true",
        "whether a topic that a Kafka client asks for is made",
        allowed=SWITCH,
    )
    kafka_default_partitions: int = setting(
        1,
        "kafka.default.partitions",
        "partitions",
        "of topics that are made without saying how many",
        allowed=(1, 10_000),
    )
    kafka_transaction_bytes: int = setting(
        1 << 30,
        "kafka.transaction.bytes",
        "bytes of all open transactions",
        "in memory and in files; what comes beyond is told to come back",
        allowed=(1 << 10, 1 << 40),
    )
    keys_file: str = setting(
        "",
        "keys.file",
        "path, empty for none",
        "API keys (made by `lamina key create`); with one, every call needs a key",
        allowed=ANY_TEXT,
    )
    archive: str = setting(
        "",
        "archive",
        "s3://bucket/prefix or a directory, empty for none",
        "where topics with remote.storage.enable are archived",
        allowed=ANY_TEXT,
    )
    cluster_name: str = setting(
        "",
        "cluster.name",
        "name, empty for none",
        "this server is one of several that have the archive in common; one of them holds it",
        allowed=ANY_TEXT,
    )
    cluster_url: str = setting(
        "",
        "cluster.url",
        "host, or addresses with commas between them; empty for where it listens",
        "where clients and the other servers of the cluster find this one",
        allowed=ANY_TEXT,
    )
    cluster_ttl_ms: int = setting(
        15_000,
        "cluster.ttl.ms",
        "ms",
        "a holder that is not heard of for so long is succeeded by another server",
        allowed=(1000, 600_000),
    )
    tail_ms: int = setting(
        1000,
        "tail.ms",
        "ms",
        "how often a holder ships what is durable; acks=all may lose so much with the machine",
        allowed=(10, 60_000),
    )
    tls_certificate: str = setting(
        "",
        "tls.certificate",
        "path, empty for none",
        "a PEM chain; with it all ports speak TLS only",
        allowed=ANY_TEXT,
    )
    tls_key: str = setting(
        "", "tls.key", "path, empty for none", "the certificate's PEM key", allowed=ANY_TEXT
    )
    connections: int = setting(
        2048,
        "max.connections",
        "Flight streams, Flight calls, HTTP connections and Kafka connections, each",
        "further ones are told to come back",
        allowed=(1, 1 << 20),
    )
    open_files: int = setting(
        512,
        "open.files.max",
        "files, at most half of what the process may open",
        "idle files of segments, journals and the WAL beyond this are closed, and opened again",
        allowed=(1, 1 << 20),
    )
    request_bytes: int = setting(
        32 << 20,
        "max.request.bytes",
        "bytes",
        "a larger append or body is refused",
        allowed=(1 << 10, 1 << 30),
    )
    inflight_bytes: int = setting(
        256 << 20,
        "max.inflight.bytes",
        "bytes of all appends and fetches at work",
        "what comes beyond is told to come back",
        allowed=(1 << 10, 1 << 40),
    )
    wait_ms: int = setting(
        30_000,
        "max.wait.ms",
        "ms",
        "the longest that one long poll waits; clients ask again",
        allowed=(1, 600_000),
    )
    waiting: int = setting(
        1024,
        "max.waiting",
        "long polls and watches of both doors together",
        "further ones are told to come back",
        allowed=(1, 1 << 16),
    )
    rate_requests: int = setting(
        NO_LIMIT,
        "rate.requests",
        "requests a second and key, -1 for any",
        "what comes faster is told to come back",
        allowed=ANY_SIZE_OR_NONE,
    )
    idle_ms: int = setting(
        15_000,
        "idle.ms",
        "ms",
        "an HTTP connection that sends no whole request for so long is closed",
        allowed=(100, 3_600_000),
    )
    drain_ms: int = setting(
        10_000,
        "drain.ms",
        "ms",
        "how long a stop waits for calls at work; accepted appends are answered in any case",
        allowed=(0, 3_600_000),
    )
    quota_produce_bytes: int = setting(
        NO_LIMIT,
        "quota.produce.bytes",
        "bytes a second and key, -1 for any",
        "a key that appends more is told to come back, a Kafka client is slowed down",
        allowed=ANY_SIZE_OR_NONE,
    )
    quota_fetch_bytes: int = setting(
        NO_LIMIT,
        "quota.fetch.bytes",
        "bytes a second and key, -1 for any",
        "a key that reads more is told to come back, a Kafka client is slowed down",
        allowed=ANY_SIZE_OR_NONE,
    )
    disk_warn_bytes: int = setting(
        1 << 30,
        "disk.free.warn.bytes",
        "bytes",
        "with less free space `/health` warns and the log says so",
        allowed=(0, (1 << 63) - 1),
    )
    disk_min_bytes: int = setting(
        64 << 20,
        "disk.free.min.bytes",
        "bytes",
        "with less free space `/health` is 503, before appends fail",
        allowed=(0, (1 << 63) - 1),
    )
    disk_ready_bytes: int = setting(
        0,
        "disk.free.ready.bytes",
        "bytes, 0 for never",
        "with less free space `/ready` is 503: a load balancer sends nobody, readers neither",
        allowed=(0, (1 << 63) - 1),
    )
    metrics_topics: int = setting(
        1000,
        "metrics.topics.max",
        "topics",
        "so many have counters of their own in `/metrics`; the others are counted together",
        allowed=(0, 1 << 20),
    )
    log_format: str = setting(
        "text",
        "log.format",
        "text or json",
        "json: one object per line, with an event and its fields",
        allowed=("text", "json"),
    )
    log_level: str = setting(
        "info",
        "log.level",
        "debug, info, warning or error",
        "what is less important is not logged",
        allowed=("debug", "info", "warning", "error"),
    )
    traces: str = setting(
        "off",
        "traces",
        "off or otel",
        "otel: spans of appends and reads by OpenTelemetry; needs the extra lamina[otel]",
        allowed=("off", "otel"),
    )
