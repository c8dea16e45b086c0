"""deploy/: manifests that Kubernetes would take, rendered from what is there, and what operators count on in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from services.cli import flag_table
from services.cli.flag import read_flags
from services.cli.parser import build_parser
from tests.support.kubernetes import RENDERED, Manifest, manifests

ROOT = Path(__file__).parents[1]
KUBERNETES = ROOT / "deploy" / "kubernetes"
EXAMPLES = sorted(path.name for path in (KUBERNETES / "examples").iterdir())
FLAGS = {"head": flag_table.HEAD, "engine": flag_table.ENGINE, "gateway": flag_table.GATEWAY}
OTHERS_DEFINITIONS = {"PodMonitor"}  # of the Prometheus operator
WORKLOADS = [("Deployment", "muster-head"), ("StatefulSet", "muster-engine"), ("Deployment", "muster-gateway")]


def container(workload: Manifest) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def values(workload: Manifest) -> dict[str, Any]:
    """The flags of a workload's command as its process reads them, with an index in place of the pod's."""
    arguments = [re.sub(r"\$\(POD_INDEX\)", "1", argument) for argument in container(workload)["args"]]
    return read_flags(FLAGS[arguments[0]], build_parser().parse_args(arguments), {})


def test_what_is_rendered_is_what_is_there() -> None:
    """Without kubectl, by the digest of the sources; with it, by rendering."""
    done = subprocess.run([KUBERNETES / "render", "--digest"], capture_output=True, text=True, check=True)
    for example in EXAMPLES:
        rendered = (RENDERED / f"{example}.yaml").read_text()
        assert done.stdout.strip() in rendered.partition("\n")[0], "run deploy/kubernetes/render"
        if shutil.which("kubectl") is not None:
            command = ["kubectl", "kustomize", str(KUBERNETES / "examples" / example)]
            again = subprocess.run(command, capture_output=True, text=True, check=True)
            assert rendered.partition("\n")[2] == again.stdout


@pytest.mark.parametrize("version", ["1.28", "1.31", "1.34"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_would_take_it(example: str, version: str) -> None:
    checked = set()
    for (kind, name), document in manifests(example).items():
        if kind not in OTHERS_DEFINITIONS:
            kubernetes_validate.validate(document, version, strict=True)
            checked.add((kind, name))
    assert set(WORKLOADS) <= checked


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_process_understands_its_command(example: str) -> None:
    objects = manifests(example)
    head, engine, gateway = (values(objects[key]) for key in WORKLOADS)
    assert engine["head_target"] == gateway["head_target"] == f"muster-head:{head['port']}"
    scaler = objects.get(("HorizontalPodAutoscaler", "muster-engine"))
    num_pods = (
        objects["StatefulSet", "muster-engine"]["spec"]["replicas"] if scaler is None else scaler["spec"]["maxReplicas"]
    )
    assert head["max_data_parallel_size"] >= num_pods
    assert engine["rank"] == 1
    assert not engine["head_timeout"], "Kubernetes starts a head again; engines serve on meanwhile"


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("key", WORKLOADS)
def test_a_pod_has_the_time_that_its_process_takes(example: str, key: tuple[str, str]) -> None:
    workload = manifests(example)[key]
    spec, told = workload["spec"]["template"]["spec"], values(workload)
    needs_s = told.get("drain_delay", 0.0) + told.get("shutdown_timeout", 0.0)
    assert spec.get("terminationGracePeriodSeconds", 30) >= needs_s + 10
    assert "lifecycle" not in container(workload), "the process drains itself"


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("key", WORKLOADS)
def test_pods_may_do_nothing_that_they_need_not(example: str, key: tuple[str, str]) -> None:
    spec = manifests(example)[key]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container(manifests(example)[key])["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in container(manifests(example)[key])["volumeMounts"]}
    assert mounted["tmp"] == "/tmp"
    assert {volume["name"] for volume in spec["volumes"]} == set(mounted)


@pytest.mark.parametrize("example", EXAMPLES)
def test_ports_probes_services_and_policies_meet(example: str) -> None:
    objects = manifests(example)
    ports = {}
    for key in WORKLOADS:
        each = container(objects[key])
        told = values(objects[key])
        ports[key[1]] = {port["name"]: port["containerPort"] for port in each["ports"]}
        assert told.get("health_port", told.get("grpc_port")) in ports[key[1]].values()
        for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
            probe = each[kind]
            port = probe["grpc"]["port"] if "grpc" in probe else probe["httpGet"]["port"]
            assert port in ports[key[1]] or port in ports[key[1]].values()
    for (kind, name), document in objects.items():
        if kind == "Service":
            workload = "muster-gateway" if name == "muster" else name
            assert {port["targetPort"] for port in document["spec"]["ports"]} <= set(ports[workload])
        if kind == "NetworkPolicy":
            (rule,) = document["spec"]["ingress"]
            assert {port["port"] for port in rule["ports"]} <= set(ports[name])
            selected = document["spec"]["podSelector"]["matchLabels"]
            key = next(key for key in WORKLOADS if key[1] == name)
            assert selected.items() <= objects[key]["spec"]["template"]["metadata"]["labels"].items()


def test_the_token_is_asked_for_everywhere_and_certificates_where_they_are_wanted() -> None:
    for example in EXAMPLES:
        for key in WORKLOADS:
            told = values(manifests(example)[key])
            assert told["cluster_token_file"] == Path("/etc/muster/token/tokens")
            has_tls = (told["tls_cert"], told["tls_key"], told["tls_ca"]) != (None, None, None)
            assert has_tls == (example in {"secure", "full"})
            assert told["tls_client_auth"] is True


def test_disruptions_are_one_at_a_time_and_the_gateways_scale() -> None:
    objects = manifests("full")
    budgets = {name: document["spec"] for (kind, name), document in objects.items() if kind == "PodDisruptionBudget"}
    assert {name: budget["maxUnavailable"] for name, budget in budgets.items()} == {
        "muster-gateway": 1,
        "muster-engine": 1,
    }
    scaled = objects["HorizontalPodAutoscaler", "muster-gateway"]["spec"]
    assert scaled["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "muster-gateway"}
    assert [metric["type"] for metric in scaled["metrics"]] == ["Resource", "Pods"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_an_autoscaler_counts_has_no_number_of_its_own(example: str) -> None:
    """To apply the manifests again would take away what the autoscaler had added."""
    objects = manifests(example)
    scaled = {
        (target["kind"], target["name"])
        for (kind, _), document in objects.items()
        if kind == "HorizontalPodAutoscaler"
        for target in [document["spec"]["scaleTargetRef"]]
    }
    assert ("Deployment", "muster-gateway") in scaled
    assert (("StatefulSet", "muster-engine") in scaled) == (example == "full")
    for key in WORKLOADS:
        assert ("replicas" in objects[key]["spec"]) == (key not in scaled), key


def test_rules_of_the_metrics_adapter_name_series_that_exist() -> None:
    from gateway.metrics import GatewayMetrics

    class NoRanks:
        head_connected = True

        def progress(self) -> list[Any]:
            return []

        def rank_loads(self) -> dict[int, Any]:
            return {}

    metrics = GatewayMetrics(gateway="g")
    metrics.observe_cluster(NoRanks())
    text = metrics.render().decode()
    rules = (KUBERNETES / "components" / "autoscaling-metrics" / "adapter-rules.yaml").read_text()
    for name in re.findall(r'__name__="(muster:\w+)"', rules):
        assert f"# TYPE {name} gauge" in text, name


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "containers").iterdir()), ids=lambda path: path.name)
def test_container_files_copy_what_is_there_and_install_what_is_offered(path: Path) -> None:
    text = path.read_text()
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    offered = set(project["project"]["optional-dependencies"])
    for extras in re.findall(r"'\.\[([\w,]+)\]'", text):
        assert set(extras.split(",")) <= offered
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} <= set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    assert text.rstrip().endswith('ENTRYPOINT ["muster"]')
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE), "the manifests' user"
