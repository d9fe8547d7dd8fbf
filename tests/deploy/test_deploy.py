"""What lies in `deploy/` fits the program: commands, settings, routes, ports, files and metrics.

Nothing is built or started in a cluster here: the files are parsed and held against the program,
and the unit is also looked at by systemd where that is installed.
"""

from __future__ import annotations

import configparser
import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.server.broker import Broker
from lamina.server.http import Routes
from lamina.server.setting_table import ServerSettings
from lamina.server.settings import resolve
from tests.deploy import parsed
from tests.deploy.parsed import DEPLOY, ROOT, Exposed

PORTS = [9300, 9301, 9092]
SETTINGS = resolve(str(DEPLOY / "lamina.toml"), {}, {}).settings


def routes() -> set[str]:
    return {each.path for each in Routes(Broker(ServerSettings(), None)).application().routes}


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Exposed:
    return parsed.exposed(tmp_path_factory.mktemp("exposed"))


def test_the_ports_are_the_defaults() -> None:
    default = ServerSettings()
    assert [default.flight_port, default.http_port, default.kafka_port] == PORTS


# ---------------------------------------------------------------- the image

BUILD, IMAGE = parsed.stages_of((DEPLOY / "Dockerfile").read_text())


def test_the_image_is_made_of_files_that_are_there_and_in_its_context() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    for stage in (BUILD, IMAGE):
        for rest in stage.of("COPY"):
            *sources, _ = [word for word in rest.split() if not word.startswith("--")]
            if "--from=build" in rest:
                continue
            for source in sources:
                assert (ROOT / source).exists(), source
                assert any(fnmatch.fnmatch(source, each) for each in kept), source
    assert all((ROOT / each).exists() for each in kept)


def test_kernels_are_compiled_in_the_build_where_the_image_looks_for_them() -> None:
    (warm,) = [rest for rest in BUILD.of("RUN") if "lamina warm" in rest]
    assert BUILD.steps.index(("RUN", warm)) > max(
        number for number, (word, _) in enumerate(BUILD.steps) if word == "ENV"
    )
    place = BUILD.variables["LAMINA_KERNEL_CACHE"]
    assert IMAGE.variables["LAMINA_KERNEL_CACHE"] == place
    (copied,) = [rest.split() for rest in IMAGE.of("COPY") if "--from=build" in rest]
    assert place.startswith(copied[1])
    assert copied[1] == copied[2]
    assert IMAGE.variables["PATH"].startswith(f"{copied[1]}/bin:")


def test_the_image_installs_an_extra_that_there_is() -> None:
    (install,) = [rest for rest in BUILD.of("RUN") if "pip install" in rest]
    extras = re.findall(r"\.\[([\w,]+)\]", install)[0].split(",")
    assert all(f"\n{each} = [" in (ROOT / "pyproject.toml").read_text() for each in extras)


def test_the_image_runs_as_nobody_and_serves_until_it_is_told_to_stop() -> None:
    (user,) = IMAGE.of("USER")
    assert int(user.partition(":")[0]) > 0
    assert [int(each) for each in IMAGE.of("EXPOSE")[0].split()] == PORTS
    assert IMAGE.of("STOPSIGNAL") == ["SIGTERM"]
    entry, command = json.loads(IMAGE.of("ENTRYPOINT")[0]), json.loads(IMAGE.of("CMD")[0])
    parsed.refuse_unknown_command([*entry, *command])
    (health,) = IMAGE.of("HEALTHCHECK")
    parsed.refuse_unknown_command(json.loads(health.partition("CMD ")[2]))


def test_variables_of_the_image_are_read_by_somebody() -> None:
    ours = {name for name in IMAGE.variables if name.startswith("LAMINA_")}
    assert ours <= parsed.variables_that_are_read()
    found = resolve(str(DEPLOY / "lamina.toml"), IMAGE.variables, {}).settings
    assert (found.host, found.log_format) == ("0.0.0.0", "json")
    assert found.keys_file, "who listens everywhere asks for keys"


# ---------------------------------------------------------------- compose and Prometheus


def test_the_compose_file_fits_the_image() -> None:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    server = document["services"]["lamina"]
    assert (DEPLOY / server["build"]["context"]).resolve() == ROOT
    assert (ROOT / server["build"]["dockerfile"]).is_file()
    assert [int(each.rpartition(":")[2]) for each in server["ports"]] == PORTS
    mounted = dict(each.split(":")[:2] for each in server["volumes"])
    assert mounted["data"] == IMAGE.variables["LAMINA_DATA"]
    assert IMAGE.variables["LAMINA_KEYS_FILE"].startswith(mounted["keys"])
    assert mounted["./lamina.toml"] == IMAGE.variables["LAMINA_CONFIG"]
    assert set(document["volumes"]) == {"data", "keys"}
    assert int(server["stop_grace_period"].rstrip("s")) * 1000 > SETTINGS.drain_ms
    for each in document["services"]["prometheus"]["volumes"]:
        name = each.partition(":")[0]
        assert name == "./metrics.key" or (DEPLOY / name).is_file()


def test_commands_in_comments_are_commands() -> None:
    found = 0
    for path in sorted(DEPLOY.rglob("*")):
        if path.suffix in (".yaml", ".yml", ".service", ".toml") or path.name == "Dockerfile":
            for line in path.read_text().splitlines():
                if not line.startswith("#"):
                    continue
                for text in re.findall(r"\blamina ((?:key|server|config) [^`;>#]*)", line):
                    parsed.refuse_unknown_command(["lamina", *shlex.split(text)])
                    found += 1
    assert found >= 4


def test_prometheus_scrapes_a_route_with_rules_that_are_there() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert all((DEPLOY / each).is_file() for each in document["rule_files"])
    (job,) = document["scrape_configs"]
    assert job["metrics_path"] in routes()
    assert job["static_configs"][0]["targets"] == ["lamina:9301"]


# ---------------------------------------------------------------- systemd


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed")
    text = (DEPLOY / "lamina.service").read_text()
    here = str(Path(sys.executable).with_name("lamina"))
    assert Path(here).exists()
    unit = tmp_path / "lamina.service"
    unit.write_text(text.replace("/opt/lamina/bin/lamina", here))
    command = [program, "verify", str(unit)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_unit_runs_commands_that_there_are_and_waits_for_the_drain() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "lamina.service").read_text())
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    parsed.refuse_unknown_command(words)
    assert words[words.index("--data") + 1] == f"/var/lib/{service['StateDirectory']}"
    assert words[words.index("--config") + 1].startswith(
        f"/etc/{service['ConfigurationDirectory']}/"
    )
    name, place = service["Environment"].split("=")
    assert name in parsed.variables_that_are_read()
    assert place == f"/var/cache/{service['CacheDirectory']}"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service["TimeoutStopSec"]) * 1000 > SETTINGS.drain_ms
    assert service["User"] != "root"


# ---------------------------------------------------------------- Kubernetes

MANIFESTS: dict[str, Any] = {
    each["kind"]: each
    for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "lamina.yaml").read_text())
}
POD = MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_manifests_name_each_other() -> None:
    labels = MANIFESTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        MANIFESTS["Service"]["spec"]["selector"],
        MANIFESTS["StatefulSet"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    spec = MANIFESTS["StatefulSet"]["spec"]
    assert spec["serviceName"] == MANIFESTS["Service"]["metadata"]["name"]
    assert spec["replicas"] == 1, "a directory has one writer"
    there = {each["name"] for each in POD["volumes"]}
    there |= {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == there


def test_ports_and_probes_of_the_pod_are_those_of_the_server() -> None:
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    assert list(ports.values()) == PORTS
    for each in MANIFESTS["Service"]["spec"]["ports"]:
        assert ports[each["targetPort"]] == each["port"]
    asked = {name: CONTAINER[name]["httpGet"] for name in CONTAINER if name.endswith("Probe")}
    assert {each["path"] for each in asked.values()} <= routes()
    assert {each["port"] for each in asked.values()} == {"http"}
    assert asked["livenessProbe"]["path"] == "/live", "a restart does not empty a disk"
    assert asked["readinessProbe"]["path"] == asked["startupProbe"]["path"] == "/ready"


def test_the_pod_serves_with_settings_that_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "lamina.toml"
    path.write_text(MANIFESTS["ConfigMap"]["data"]["lamina.toml"])
    settings = resolve(str(path), {}, {}).settings
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert settings.keys_file.startswith(f"{mounts['keys']}/")
    assert not mounts["keys"].startswith(mounts["settings"]), "it is read-only"
    assert settings.kafka_advertised == f"{MANIFESTS['Service']['metadata']['name']}:9092"
    assert POD["terminationGracePeriodSeconds"] * 1000 > settings.drain_ms
    words = ["lamina", *CONTAINER["args"]]
    parsed.refuse_unknown_command(words)
    assert words[words.index("--data") + 1] == mounts["data"]
    assert words[words.index("--config") + 1] == f"{mounts['settings']}/{path.name}"


def test_the_pod_runs_as_the_user_of_the_image_and_may_write_its_data_alone() -> None:
    (user,) = IMAGE.of("USER")
    assert f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}" == user
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True


# ---------------------------------------------------------------- alerts and dashboard


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def refuse_unknown_metrics(expression: str, metrics: Exposed) -> None:
    assert parsed.is_balanced(expression), expression
    names = parsed.metrics_in(expression)
    assert names, expression
    assert names <= metrics.samples, f"{expression}: {names - metrics.samples}"
    assert parsed.labels_in(expression) <= metrics.labels, expression


def test_each_alert_is_about_metrics_that_there_are(metrics: Exposed) -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found) > 10
    for rule in found:
        refuse_unknown_metrics(rule["expr"], metrics)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert label in metrics.labels


def test_each_panel_of_the_dashboard_shows_metrics_that_there_are(metrics: Exposed) -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    panels = board["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel.get("targets", []):
            refuse_unknown_metrics(target["expr"], metrics)
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= metrics.labels
    for each in board["annotations"]["list"]:
        refuse_unknown_metrics(each["expr"], metrics)
    (asked,) = [each for each in board["templating"]["list"] if each["type"] == "query"]
    assert re.findall(r"label_values\((\w+),", asked["query"]["query"])[0] in metrics.samples


def test_each_metric_is_in_the_table_of_the_page_and_the_table_names_no_other(
    metrics: Exposed,
) -> None:
    page = (ROOT / "docs" / "server.md").read_text()
    table = page.split("| metrics | what |")[1].split("\n\n")[0]
    named = {each for line in table.splitlines() for each in re.findall(r"`([a-z_*]+)`", line)}
    patterns = [each for each in named if each.startswith(("lamina_", "process_"))]
    base = {each.removesuffix("_total") for each in metrics.families if "_created" not in each}
    for family in base:
        known = [p for p in patterns if fnmatch.fnmatch(family, p.removesuffix("_total"))]
        assert known or not family.startswith("lamina_"), f"{family} is in no row"
    for pattern in patterns:
        assert fnmatch.filter(base, pattern.removesuffix("_total")), pattern


def test_expressions_are_read_right() -> None:
    read = parsed.metrics_in(
        'histogram_quantile(0.9, sum by (a, le) (rate(x_bucket{a=~"$b"}[5m]))) > 2 and y / on (c) z'
    )
    assert read == {"x_bucket", "y", "z"}
    assert parsed.labels_in('sum by (a, le) (x{b="c", d=~"e"})') == {"a", "le", "b", "d"}
    assert not parsed.is_balanced("sum(x))(")
