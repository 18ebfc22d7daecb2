"""The definitions for containers, Kubernetes and Ansible: that they are sound, and that they ask for the least."""

from __future__ import annotations

import json
import re
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.systemd.test_units import UNITS
from tools.packages import PACKAGES

yaml = pytest.importorskip("yaml", reason="no PyYAML, which comes with distributed")

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFEST = DEPLOY / "kubernetes/peerwatch.yaml"
CHART = DEPLOY / "helm/peerwatch"
ROLE = DEPLOY / "ansible/roles/peerwatch"


def kinds() -> dict[str, Any]:
    """The objects of the manifest, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


def test_the_manifest_fits_the_schema_of_kubernetes() -> None:
    """Each object is valid by the newest published schema, and by that of the oldest version with such profiles."""
    for one in yaml.safe_load_all(MANIFEST.read_text()):
        for version in (kubernetes_validate.latest_version(), "1.30"):
            kubernetes_validate.validate(one, version, strict=True)
    daemons = kinds()["DaemonSet"]
    daemons["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilites"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="capabilites"):
        kubernetes_validate.validate(daemons, kubernetes_validate.latest_version(), strict=True)


def test_the_image_runs_as_the_user_of_the_manifest() -> None:
    """By its number, since Kubernetes refuses a name where it must not be root."""
    (user,) = re.findall(r"^USER (.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    rights = kinds()["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{rights['runAsUser']}:{rights['runAsGroup']}"


@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment"])
def test_workloads_name_what_is_there(kind: str) -> None:
    """Labels select their own pods, each mount is of a volume, and volumes are of objects in the same file."""
    objects = kinds()
    found = objects[kind]["spec"]
    pod = found["template"]["spec"]
    assert found["selector"]["matchLabels"].items() <= found["template"]["metadata"]["labels"].items()
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert container["image"] == f"peerwatch:{metadata('peerwatch')['Version']}"
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert volumes["config"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    assert {one["metadata"]["namespace"] for one in objects.values() if one["kind"] != "Namespace"} == {"peerwatch"}
    if kind == "Deployment":
        assert volumes["state"]["persistentVolumeClaim"]["claimName"] == objects[
            "PersistentVolumeClaim"
        ]["metadata"]["name"]  # fmt: skip


def test_the_agent_has_the_rights_of_its_unit() -> None:
    """The capabilities of the DaemonSet are those of the systemd unit; nothing else is open that need not be."""
    pod = kinds()["DaemonSet"]["spec"]["template"]["spec"]
    rights = pod["containers"][0]["securityContext"]
    (unit,) = [unit for unit in UNITS if unit.stem == "peerwatch-agent"]
    (wanted,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit.read_text(), re.MULTILINE)
    assert {f"CAP_{name}" for name in rights["capabilities"]["add"]} == set(wanted.split())
    assert rights["capabilities"]["drop"] == ["ALL"]
    assert rights["readOnlyRootFilesystem"] is True
    assert "privileged" not in rights
    assert (pod["hostPID"], pod.get("hostIPC"), pod["automountServiceAccountToken"]) == (True, None, False)


def test_the_detector_has_no_rights() -> None:
    """It is no root, has no capability, no folder of the host, and cannot write but to its own volumes."""
    pod = kinds()["Deployment"]["spec"]["template"]["spec"]
    rights = pod["containers"][0]["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_the_configuration_in_the_manifest_is_valid(tmp_path: Path) -> None:
    """What the ConfigMap holds is a configuration that the programs accept."""
    from cli.config import read_settings

    file = tmp_path / "peerwatch.toml"
    file.write_text(kinds()["ConfigMap"]["data"]["peerwatch.toml"])
    assert read_settings(file).store == "http://influxdb.monitoring:8086/peerwatch"


def rendered(template: str, values: dict[str, Any]) -> str:
    """A template of the chart with these values, for the one directive that the chart uses; others are refused.

    Helm itself is not run: toJson of a value, and of the release's namespace, is all that it would have to do.
    """

    def fill(found: re.Match[str]) -> str:
        value: Any = {"Values": values, "Release": {"Namespace": "peerwatch"}}
        for name in found[1].split("."):
            value = value[name]
        return json.dumps(value)

    text = re.sub(r"{{ \.([\w.]+) \| toJson }}", fill, template)
    assert "{{" not in text, text
    return text


def test_the_chart_is_the_manifest() -> None:
    """With its own values the chart gives the objects of the plain manifest, but for the namespace."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    pieces = [rendered(file.read_text(), values) for file in sorted(CHART.glob("templates/*.yaml"))]
    found = {one["kind"]: one for piece in pieces for one in yaml.safe_load_all(piece)}
    wanted = {kind: one for kind, one in kinds().items() if kind != "Namespace"}
    assert found == wanted
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["version"], chart["appVersion"]) == (
        "v2",
        *[metadata("peerwatch")["Version"]] * 2,
    )


def test_each_value_of_the_chart_has_an_effect() -> None:
    """Another value changes what is rendered, in the place that its name says."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    values |= {"image": "registry/peerwatch:9", "secretName": "ours", "config": 'store = "http://db:8086/x"\n'}
    values["agent"] = {"nodeSelector": {"pool": "h100"}, "tolerations": [], "resources": {"limits": {"cpu": "1"}}}
    values["detector"] = {"resources": {"limits": {"cpu": "3"}}, "storage": "7Gi"}
    found = {file.stem: yaml.safe_load(rendered(file.read_text(), values)) for file in CHART.glob("templates/*.yaml")}
    pods = {name: found[name]["spec"]["template"]["spec"] for name in ("agent", "detector")}
    assert found["configmap"]["data"] == {"peerwatch.toml": 'store = "http://db:8086/x"\n'}
    assert (pods["agent"]["nodeSelector"], pods["agent"]["tolerations"]) == ({"pool": "h100"}, [])
    for name, cpu in (("agent", "1"), ("detector", "3")):
        (container,) = pods[name]["containers"]
        assert (container["image"], container["resources"]) == ("registry/peerwatch:9", {"limits": {"cpu": cpu}})
        (secret,) = (one["secret"] for one in pods[name]["volumes"] if "secret" in one)
        assert secret["secretName"] == "ours"
    assert found["storage"]["spec"]["resources"]["requests"] == {"storage": "7Gi"}


def test_the_role_does_what_a_role_can() -> None:
    """Each task has a name and one module by its full name; handlers that are notified, and variables, exist."""
    tasks = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    handlers = {handler["name"] for handler in yaml.safe_load((ROLE / "handlers/main.yml").read_text())}
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    for task in tasks:
        assert [key for key in task if key.startswith("ansible.builtin.")], task
        assert task["name"]
        assert task.get("notify", "Restart Peerwatch") in handlers
    text = (ROLE / "tasks/main.yml").read_text()
    own = {f"peerwatch_{name}" for name in ("again", "command", "copied", "files", "installed", "pattern", "sections")}
    assert set(re.findall(r"\bpeerwatch_\w+", text)) == set(defaults) | own


def test_the_playbook_starts_services_that_exist() -> None:
    """The services of the playbook and of the role's default are units of a package."""
    units = {unit.removesuffix(".service") for package in PACKAGES for unit in package.units}
    plays = yaml.safe_load((DEPLOY / "ansible/playbook.yml").read_text())
    named = [name for play in plays for role in play["roles"] for name in role["vars"]["peerwatch_services"]]
    assert {f"peerwatch-{name}" for name in named} <= units
    assert units == {unit.stem for unit in UNITS}
