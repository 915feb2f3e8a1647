"""The files of examples/deploy fit the tools they are for and the router they configure."""

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="the router needs aiohttp")

from wavetank.errors import WavetankError
from wavetank.serving.proxy.configuration import make_configuration
from wavetank.serving.proxy.metrics import RouterMetrics

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def manifests():
    yaml = pytest.importorskip("yaml", reason="manifests are YAML")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def metric_names():
    metrics = RouterMetrics("fewest-requests")
    metrics.watch(list, lambda: dict.fromkeys(("in_flight_requests", "pool_waiting_requests"), 0.0))
    return {
        line.split()[2] for line in metrics.page().decode().splitlines() if line.startswith("# TYPE wavetank_router_")
    }


@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_every_manifest_is_valid_and_says_nothing_the_schema_does_not_know(version):
    validator = pytest.importorskip("kubernetes_validate", reason="checks manifests against the schemas of Kubernetes")
    for manifest in manifests():
        validator.validate(manifest, version, strict=True)


def test_the_validator_would_see_a_misspelt_field():
    validator = pytest.importorskip("kubernetes_validate", reason="checks manifests against the schemas of Kubernetes")
    deployment = next(each for each in manifests() if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["argz"] = []
    with pytest.raises(validator.ValidationError):
        validator.validate(deployment, "1.30", strict=True)


def by_kind():
    found = {each["kind"]: each for each in manifests()}
    assert len(found) == len(manifests())
    return found


def test_the_manifests_name_each_other_and_carry_a_configuration_that_the_router_takes(tmp_path):
    found = by_kind()
    config, service = found["ConfigMap"], found["Service"]
    pod = found["Deployment"]["spec"]["template"]
    assert pod["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    file = tmp_path / "router.toml"
    file.write_text(config["data"]["router.toml"])
    settings = make_configuration(file=file).settings
    assert settings.port == pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert settings.drain_s < pod["spec"]["terminationGracePeriodSeconds"]


def test_the_router_in_kubernetes_takes_its_key_from_a_secret_that_is_mounted(tmp_path):
    found = by_kind()
    pod = found["Deployment"]["spec"]["template"]["spec"]
    text = found["ConfigMap"]["data"]["router.toml"]
    file = tmp_path / "router.toml"
    file.write_text(text)
    settings = make_configuration(file=file).settings
    named = Path(settings.api_key_file)
    [volume] = [each for each in pod["volumes"] if "secret" in each]
    [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert mount["readOnly"] is True
    assert named.parent == Path(mount["mountPath"])
    assert named.name in {item["path"] for item in volume["secret"]["items"]}
    assert Path(settings.keys_file).parent == named.parent
    assert Path(settings.keys_file).name in {item["path"] for item in volume["secret"]["items"]}
    # The user of the pod reads it by its group, nobody else does.
    assert volume["secret"]["defaultMode"] & 0o077 == 0o040
    assert pod["securityContext"]["fsGroup"]
    # The key itself stands in no manifest, and the line that makes it is the one the pod needs.
    assert "Secret" not in found
    made = re.search(r"create secret generic (\S+) --from-literal=([^=]+)=", (DEPLOY / "kubernetes.yaml").read_text())
    assert made is not None
    assert made[1] == volume["secret"]["secretName"]
    assert made[2] in {item["key"] for item in volume["secret"]["items"]}


def test_a_router_in_kubernetes_without_its_key_does_not_start(tmp_path):
    file = tmp_path / "router.toml"
    text = by_kind()["ConfigMap"]["data"]["router.toml"]
    key = tmp_path / "api-key"
    file.write_text(re.sub(r'api_key_file = ".*"', f'api_key_file = "{key}"', text))
    for content in (None, ""):
        if content is not None:
            key.write_text(content)
        with pytest.raises(WavetankError):
            make_configuration(file=file).api_key()
    key.write_text("secret\n")
    assert make_configuration(file=file).api_key() == "secret"


def test_only_named_pods_reach_the_router_and_it_reaches_its_servers_alone():
    found = by_kind()
    policy = found["NetworkPolicy"]["spec"]
    pod = found["Deployment"]["spec"]["template"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    selected = policy["podSelector"]["matchLabels"]
    assert selected
    assert selected.items() <= pod["metadata"]["labels"].items()
    for rule, side in [(rule, "from") for rule in policy["ingress"]] + [(rule, "to") for rule in policy["egress"]]:
        assert rule["ports"]
        # An empty selector, or none, would be everybody.
        assert rule[side]
        for peer in rule[side]:
            # The API of the cluster is no pod.
            if rule["ports"][0]["port"] != 443:
                assert peer["podSelector"]["matchLabels"]
    [http] = [port for rule in policy["ingress"] for port in rule["ports"]]
    assert http["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    [source] = tomllib.loads(found["ConfigMap"]["data"]["router.toml"])["discover"]
    assert {int(source["port"])} == {port["port"] for port in policy["egress"][0]["ports"]}
    assert {port["protocol"] for port in policy["egress"][2]["ports"]} == {"UDP", "TCP"}


def test_the_router_may_ask_the_cluster_for_what_it_asks_and_nothing_else():
    found = by_kind()
    account = found["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"]
    assert found["ServiceAccount"]["metadata"]["name"] == account
    [rule] = found["Role"]["rules"]
    assert rule == {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    binding = found["RoleBinding"]
    assert binding["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    [subject] = binding["subjects"]
    [source] = tomllib.loads(found["ConfigMap"]["data"]["router.toml"])["discover"]
    assert (subject["name"], subject["namespace"]) == (account, source["kubernetes"].partition("/")[0])


def test_the_configuration_file_is_one_that_the_router_takes():
    found = make_configuration(file=DEPLOY / "router.toml")
    assert found.policy == "vllm-default"
    assert len(found.backends) == 2


def test_systemd_waits_longer_than_the_router_drains():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "wavetank-router.service")
    drain_s = tomllib.loads((DEPLOY / "router.toml").read_text())["drain_s"]
    assert int(unit["Service"]["TimeoutStopSec"]) > drain_s
    assert unit["Service"]["ExecStart"].split()[1:3] == ["launch", "router"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    # The program need not be installed here.
    text = (DEPLOY / "wavetank-router.service").read_text()
    unit = tmp_path / "wavetank-router.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_dashboard_asks_only_for_figures_that_the_router_gives():
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"wavetank_router_\w+", target["expr"])
    }
    assert len(asked) > 10
    known = metric_names()
    gauges = {name for name in asked if "view_" in name or "backend_" in name}
    from wavetank.serving.proxy.metrics import BACKEND_GAUGES

    assert gauges <= {f"wavetank_router_{name}" for name, _ in BACKEND_GAUGES}
    assert {name.removesuffix("_bucket") for name in asked - gauges} <= known


def test_the_panels_of_the_dashboard_do_not_overlap_and_each_says_what_it_shows():
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)
    assert all(panel["description"] for panel in panels)


def test_prometheus_scrapes_the_port_of_the_configuration():
    yaml = pytest.importorskip("yaml", reason="Prometheus is configured in YAML")
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    port = tomllib.loads((DEPLOY / "router.toml").read_text())["port"]
    assert jobs[0]["static_configs"][0]["targets"] == [f"127.0.0.1:{port}"]
