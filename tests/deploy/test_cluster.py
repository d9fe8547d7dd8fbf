"""What lies in `deploy/` for a cluster fits the program, and the page names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lamina.server.clustered import charter_of
from lamina.server.settings import resolve
from tests.deploy import parsed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "cluster.md").read_text()
MANIFESTS: dict[str, Any] = {
    each["kind"]: each
    for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "cluster.yaml").read_text())
}
POD = MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
LISTENING = "grpc://0.0.0.0:9300,http://0.0.0.0:9301,kafka://0.0.0.0:9092"


def test_the_page_names_what_there_is() -> None:
    for name in ("deploy/cluster.toml", "deploy/kubernetes/cluster.yaml", "deploy/lamina.service"):
        assert name in PAGE
        assert (ROOT / name).is_file()


def test_the_settings_of_a_machine_make_a_member_of_a_cluster() -> None:
    settings = resolve(str(DEPLOY / "cluster.toml"), {}, {}).settings
    charter = charter_of("data", settings, LISTENING)
    assert (charter.name, charter.archive) == ("orders", "s3://bucket/orders")
    assert charter.url.startswith("grpc://a.example.com:9300,http://a.example.com:9301")
    (member,) = (
        line
        for line in PAGE.splitlines()
        if line.startswith("lamina serve") and "--cluster " in line
    )
    parsed.refuse_unknown_command(member.split())


def test_each_pod_is_a_member_that_is_found_by_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "lamina.toml"
    path.write_text(MANIFESTS["ConfigMap"]["data"]["lamina.toml"])
    (url,) = (each["value"] for each in CONTAINER["env"] if each["name"] == "LAMINA_CLUSTER_URL")
    service = MANIFESTS["Service"]["metadata"]["name"]
    assert MANIFESTS["StatefulSet"]["spec"]["serviceName"] == service
    assert url == f"$(POD_NAME).{service}"
    pod = {"LAMINA_CLUSTER_URL": url.replace("$(POD_NAME)", "lamina-0")}
    settings = resolve(str(path), pod, {}).settings
    assert "grpc://lamina-0.lamina-cluster:9300" in charter_of("data", settings, LISTENING).url
    assert POD["terminationGracePeriodSeconds"] * 1000 > settings.drain_ms
    parsed.refuse_unknown_command(["lamina", *CONTAINER["args"]])


def test_a_standby_that_is_not_ready_is_not_restarted() -> None:
    assert CONTAINER["startupProbe"]["httpGet"]["path"] == "/live"
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/live"
    assert MANIFESTS["Service"]["spec"]["publishNotReadyAddresses"] is True


def test_the_manifests_select_each_other_and_the_pods_lie_on_two_nodes() -> None:
    labels = MANIFESTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    affinity = POD["affinity"]["podAntiAffinity"]
    (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    for selector in (
        MANIFESTS["Service"]["spec"]["selector"],
        MANIFESTS["StatefulSet"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        rule["labelSelector"]["matchLabels"],
    ):
        assert selector == labels
    assert MANIFESTS["StatefulSet"]["spec"]["replicas"] == 2


def test_each_alert_is_about_metrics_of_the_page() -> None:
    document = yaml.safe_load((DEPLOY / "cluster_alerts.yml").read_text())
    found = [rule for group in document["groups"] for rule in group["rules"]]
    named = set(re.findall(r"`(lamina_cluster_[a-z_]+)`", PAGE))
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert parsed.is_balanced(rule["expr"])
        assert parsed.metrics_in(rule["expr"]) - {"absent"} <= named, rule["expr"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
