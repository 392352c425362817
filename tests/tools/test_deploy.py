"""Everything that the deployment files name exists.

The deployment files are transparent rules, manifests, units and images. Commands of docs/users/run.md,
linux.md, kubernetes.md and two-gateways.md run as they are written.
"""

import os
import re
import runpy
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml

from proxy.command.config import OPTIONS, changes, load
from tools import helm
from tools.certificates import Authority
from tools.netns import Namespace, missing

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "tools" / "deploy"
SCRIPT: Final = DEPLOY / "transparent.sh"
KUBERNETES: Final = DEPLOY / "kubernetes"
UNITS: Final = DEPLOY / "systemd"
SETTINGS: Final = UNITS / "fetchgate.toml"
USERS: Final = ROOT / "docs" / "users"
_BY_HAND, INJECTION = (USERS / "kubernetes.md").read_text().split("\n## Injection\n")
"""INJECTION: the part with commands that tests/integration/test_injector_kubernetes.py runs."""
PAGES: Final = {
    "kubernetes": _BY_HAND,
    **{name: (USERS / f"{name}.md").read_text() for name in ("run", "linux", "two-gateways")},
}
"""The pages about deploying, by name."""
DOCS: Final = "\n".join(PAGES.values())
MODES: Final = ("explicit", "redirect", "tproxy")
UP: Final = ("up", "--mode", "redirect", "--ports", "9092,9094-9096", "--to", "19092", "--user", "61092")
LACKING: Final = missing("nft")


def transparent(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("sh") or "sh", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


# -- transparent.sh


def changed(option: str, value: str) -> tuple[str, ...]:
    at = UP.index(option) + 1
    return (*UP[:at], value, *UP[at + 1 :])


def without(option: str) -> tuple[str, ...]:
    at = UP.index(option)
    return (*UP[:at], *UP[at + 2 :])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a command: up, watch, show or down"),
        (("start",), "'start' is not a command: give up, watch, show or down"),
        (without("--mode"), "--mode is missing"),
        (changed("--mode", "nat"), "--mode nat: give redirect or tproxy"),
        (without("--ports"), "--ports is missing"),
        (changed("--ports", "kafka"), "--ports kafka: 'kafka' is neither a port"),
        (changed("--ports", "9092,,9093"), "'' is neither a port"),
        (changed("--ports", "9094-9092"), "'9094-9092' is neither a port"),
        (changed("--ports", "70000"), "'70000' is neither a port"),
        (changed("--ports", "9092; flush ruleset"), "is neither a port"),
        (changed("--ports", "19000-20000"), "has the port of --to"),
        (without("--to"), "--to is missing"),
        (changed("--to", "0"), "--to 0: it is not a port"),
        (without("--user"), "--user is missing"),
        (changed("--user", "nobody-of-that-name"), "there is no such user"),
        (
            (*changed("--user", "99999999999"), "--dry-run"),
            "--user 99999999999: it is not the number of a user",
        ),
        (
            (*changed("--user", "4294967295"), "--dry-run"),
            "--user 4294967295: it is not the number of a user",
        ),
        ((*changed("--user", "010"), "--dry-run"), "--user 010: it is not the number of a user"),
        ((*UP, "--more"), "'--more' is not an option of up"),
        ((*UP, "--mode"), "--mode needs a value"),
        (("down", "--mode", "redirect"), "'--mode' is not an option of down"),
        (("watch", *without("--mode")[1:]), "--mode is missing"),
        (("watch", *UP[1:], "--dry-run"), "'--dry-run' is not an option of watch"),
    ],
)
def test_a_mistake_is_reported_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = transparent(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("transparent.sh: ")
    assert said in line


def test_help_has_examples_and_what_it_needs() -> None:
    for arguments in (("--help",), ("up", "--help")):
        done = transparent(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "examples:" in done.stdout
        assert "It needs CAP_NET_ADMIN" in done.stdout


def test_a_dry_run_needs_no_right_and_prints_what_would_be_done() -> None:
    done = transparent(*UP, "--dry-run", PATH=os.environ["PATH"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nft -f - <<END\ntable inet fetchgate\ndelete table inet fetchgate\n")
    assert "meta skuid 61092 return" in done.stdout
    assert done.stdout.count("tcp dport { 9092,9094-9096 }") == 2
    assert done.stdout.count("redirect to :19092") == 2
    assert "ip rule" not in done.stdout
    told = transparent(*changed("--mode", "tproxy"), "--dry-run").stdout
    assert told.startswith("ip -4 rule add fwmark 0x6667 lookup 26215\n")
    assert told.count("tproxy ip to :19092") == told.count("tproxy ip6 to :19092") == 1


def test_a_user_may_be_named() -> None:
    assert "meta skuid 0 return" in transparent(*changed("--user", "root"), "--dry-run").stdout


@pytest.mark.parametrize("command", ["up", "show", "down"])
def test_what_it_lacks_is_reported_in_one_line(command: str, tmp_path: Path) -> None:
    for program in ("sh", "cat", "id", "head"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    done = transparent(*(UP if command == "up" else (command,)), PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "transparent.sh: nft is missing: install nftables\n"
    (tmp_path / "nft").write_text(
        "#!/bin/sh\necho 'Operation not permitted (you must be root)' >&2\nexit 1\n"
    )
    (tmp_path / "nft").chmod(0o755)
    done = transparent(*(UP if command == "up" else (command,)), PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "CAP_NET_ADMIN in this network namespace is missing" in line
    assert "Operation not permitted" in line


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
@pytest.mark.parametrize("mode", ["redirect", "tproxy"])
def test_rules_are_laid_replaced_shown_and_taken_away(mode: str) -> None:
    def seen() -> str:
        versions = [place.run("ip", version, "rule").stdout for version in ("-4", "-6")]
        return place.run("nft", "list", "ruleset").stdout + "".join(versions)

    up = [str(SCRIPT), *changed("--mode", mode)]
    with Namespace() as place:
        place.run("nft", "add table inet theirs")
        before = seen()
        place.run(*up)
        laid = seen()
        place.run(*up)
        assert seen() == laid != before
        other = changed("--mode", "tproxy" if mode == "redirect" else "redirect")
        assert "ip -4 rule" not in place.run(*up, "--dry-run").stdout
        would = place.run(str(SCRIPT), *other, "--dry-run").stdout
        assert ("ip -4 rule del" in would) is (mode == "tproxy")
        shown = place.run(str(SCRIPT), "show").stdout
        assert "table inet fetchgate" in shown
        assert ("local default dev lo" in shown) is (mode == "tproxy")
        place.run(str(SCRIPT), *other)
        changed_over = seen()
        place.run(str(SCRIPT), "down")
        place.run(str(SCRIPT), *other)
        assert seen() == changed_over
        place.run(str(SCRIPT), "down")
        assert seen() == before
        assert place.run(str(SCRIPT), "down").stdout == "there are no rules of fetchgate\n"
        none = place.run(str(SCRIPT), "show", check=False)
        assert (none.returncode, none.stderr) == (1, "transparent.sh: there are no rules of fetchgate\n")


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
@pytest.mark.parametrize("mode", ["redirect", "tproxy"])
def test_rules_that_nft_does_not_take_change_nothing_and_are_told_in_one_line(
    mode: str, tmp_path: Path
) -> None:
    def seen() -> list[str]:
        asked = (("nft", "list", "ruleset"), ("ip", "rule"), ("ip", "route", "show", "table", "all"))
        return [place.run(*command).stdout for command in asked]

    # As where the kernel lacks a part: a word of the rules that nft does not know.
    (tmp_path / "nft").write_text(
        f'#!/bin/sh\ncase "$*" in *-f*) sed s/counter/lacking/ ;; esac | {shutil.which("nft")} "$@"\n'
    )
    (tmp_path / "nft").chmod(0o755)
    with Namespace() as place:
        place.run(str(SCRIPT), *UP)
        before = seen()
        path = f"PATH={tmp_path}:{os.environ['PATH']}"
        done = place.run("env", path, str(SCRIPT), *changed("--mode", mode), check=False)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("transparent.sh: nft can't use the rules, and nothing was changed")
        assert "syntax error" in line
        assert seen() == before


# -- Kubernetes


def rendered(mode: str) -> dict[str, Any]:
    """Return the Deployment of a mode, as kustomize renders it."""
    (document,) = kustomized(KUBERNETES / "overlays" / mode)
    return document


def kustomized(folder: Path) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None and shutil.which("kustomize") is None:
        pytest.skip("no kubectl and no kustomize here")
    command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    documents = list(yaml.safe_load_all(done.stdout))
    assert all(isinstance(document, dict) for document in documents)
    return documents


def pod_of(deployment: Mapping[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def environment_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"]}


def assert_options(environment: Mapping[str, str]) -> None:
    """Check that all variables are options of the gateway and have valid values."""
    known = {"FETCHGATE_CONFIG", *(option.variable for option in OPTIONS)}
    assert {name for name in environment if name.startswith("FETCHGATE_")} <= known
    load({}, environment, None)


@pytest.mark.parametrize("mode", MODES)
def test_manifests_are_valid_by_the_schema_of_kubernetes(mode: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here").validate
    document = rendered(mode)
    for version in ("1.29", "1.31"):
        validate(document, version, strict=True)
    document["spec"]["template"]["spec"]["initContainers"][0]["restartPolice"] = "Always"
    with pytest.raises(Exception, match="restartPolice"):
        validate(document, "1.31", strict=True)


@pytest.mark.parametrize("mode", MODES)
def test_the_gateway_is_a_native_sidecar_that_starts_as_it_is_told(mode: str) -> None:
    """For the review (docs/users/security.md): what is open in the manifests."""
    pod = pod_of(rendered(mode))
    sidecar, *others = pod["initContainers"]
    environment = environment_of(sidecar)
    assert (sidecar["name"], sidecar["restartPolicy"], sidecar["args"]) == ("fetchgate", "Always", ["proxy"])
    assert_options(environment)
    assert environment.get("FETCHGATE_TRANSPARENT", "explicit") == mode
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    assert max(map(len, ports)) <= 15, (
        "Kubernetes refuses longer names (RFC 6335, 5.1); its schema does not say"
    )
    assert environment["FETCHGATE_METRICS"] == f"0.0.0.0:{ports['gate-metrics']}"
    admin = load({}, environment, None).admin
    assert admin is not None
    assert admin.host == "127.0.0.1", "others must not read /state"
    assert sidecar["lifecycle"]["preStop"]["exec"]["command"][1] == str(admin)
    pages = {
        probe: sidecar[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {page["port"] for page in pages.values()} == {"gate-metrics"}
    assert [page["path"] for page in pages.values()] == ["/livez", "/livez", "/readyz"]
    *_, wait = sidecar["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > float(environment["FETCHGATE_DRAIN_TIMEOUT"]) + float(wait)
    assert [other["name"] for other in others] == ([] if mode == "explicit" else ["fetchgate-rules"])


@pytest.mark.parametrize("mode", MODES)
def test_the_page_s_file_of_options_is_mounted_where_the_gateway_reads_it(mode: str, tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here").validate
    (told,) = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    file, patch = told.split("---\n")
    (tmp_path / "file.yaml").write_text(file)
    (tmp_path / "patch.yaml").write_text(patch)
    overlay = os.path.relpath(KUBERNETES / "overlays" / mode, tmp_path.resolve())
    kustomization = {"resources": ["file.yaml", overlay], "patches": [{"path": "patch.yaml"}]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    documents = {document["kind"]: document for document in kustomized(tmp_path)}
    for document in documents.values():
        validate(document, "1.31", strict=True)
    pod = pod_of(documents["Deployment"])
    sidecar = pod["initContainers"][0]
    environment = environment_of(sidecar)
    assert_options(environment)
    (mount,) = sidecar["volumeMounts"]
    (volume,) = pod["volumes"]
    (name,) = documents["ConfigMap"]["data"]
    assert environment["FETCHGATE_CONFIG"] == f"{mount['mountPath']}/{name}"
    assert "subPath" not in mount, "the kubelet would not write it again"
    assert (volume["name"], volume["configMap"]["name"]) == (
        mount["name"],
        documents["ConfigMap"]["metadata"]["name"],
    )
    for word, on in (("on", True), ("off", False)):
        text = documents["ConfigMap"]["data"][name].replace('"on"', f'"{word}"')
        (tmp_path / name).write_text(text)
        assert load({}, environment, str(tmp_path / name)).sessions is on


@pytest.mark.parametrize("mode", MODES)
def test_no_container_has_more_rights_than_it_needs(mode: str) -> None:
    pod = pod_of(rendered(mode))
    added = {}
    for container in (*pod["initContainers"], *pod["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        assert "memory" in container["resources"]["limits"]
        assert not container["image"].endswith(":latest")
        assert ":" in container["image"]
        added[container["name"]] = set(context["capabilities"].get("add", ()))
        if container["name"] != "client":
            assert context["readOnlyRootFilesystem"] is True
        if not added[container["name"]]:
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] > 0
    rules: dict[str, set[str]] = {} if mode == "explicit" else {"fetchgate-rules": {"NET_ADMIN"}}
    gateway = {"NET_RAW", "SETUID", "SETGID", "SETPCAP"} if mode == "tproxy" else set()
    assert added == {"fetchgate": gateway, "client": set(), **rules}


@pytest.mark.parametrize("mode", ["redirect", "tproxy"])
def test_the_rules_lead_to_the_gateway_and_leave_its_user_alone(mode: str) -> None:
    sidecar, rules = pod_of(rendered(mode))["initContainers"]
    told = transparent(*rules["args"], "--dry-run")
    assert (told.returncode, told.stderr) == (0, "")
    port = environment_of(sidecar)["FETCHGATE_LISTEN"].rpartition(":")[2]
    assert f"to :{port}" in told.stdout
    user = sidecar["securityContext"]["runAsUser"]
    if mode == "tproxy":
        (reuid,) = [word for word in sidecar["command"] if word.startswith("--reuid=")]
        user = int(reuid.removeprefix("--reuid="))
    assert f"meta skuid {user} return" in told.stdout


# -- two gateways in a row


FAR: Final = KUBERNETES / "overlays" / "link-far"
NEAR: Final = KUBERNETES / "overlays" / "link-near"


def far_end() -> dict[str, dict[str, Any]]:
    """Return the manifests of the far gateway by their kind: the Deployment and the Service."""
    return {document["kind"]: document for document in kustomized(FAR)}


@pytest.mark.parametrize("folder", [FAR, NEAR], ids=["far", "near"])
def test_manifests_of_the_link_are_valid_by_the_schema_of_kubernetes(folder: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here").validate
    for document in kustomized(folder):
        for version in ("1.29", "1.31"):
            validate(document, version, strict=True)


def test_the_near_gateway_is_that_of_mode_explicit_before_the_far_one() -> None:
    (near,) = kustomized(NEAR)
    sidecar, *others = pod_of(near)["initContainers"]
    assert others == []
    environment = environment_of(sidecar)
    assert_options(environment)
    (far,) = pod_of(far_end()["Deployment"])["containers"]
    of_far = environment_of(far)
    port = of_far["FETCHGATE_LISTEN"].rpartition(":")[2]
    assert environment["FETCHGATE_BOOTSTRAP"] == f"{of_far['FETCHGATE_ADVERTISE']}:{port}"
    for entry in sidecar["env"]:
        if entry["name"] == "FETCHGATE_BOOTSTRAP":
            entry["value"] = of_far["FETCHGATE_BOOTSTRAP"]
    assert near == rendered("explicit")


def test_the_far_gateway_is_reached_at_each_port_that_it_names() -> None:
    documents = far_end()
    deployment, service = documents["Deployment"], documents["Service"]
    (gateway,) = pod_of(deployment)["containers"]
    environment = environment_of(gateway)
    assert_options(environment)
    config = load({}, environment, None)
    assert deployment["spec"]["replicas"] == 1, "the sessions are in one process"
    assert config.advertise == service["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    brokers = [config.broker_ports.place(number, config.listen) for number in range(3)]
    for port in service["spec"]["ports"]:
        assert ports.get(port["targetPort"], port["targetPort"]) == port["port"]
    served = [f"{config.listen.host}:{port['port']}" for port in service["spec"]["ports"]]
    assert served == [str(address) for address in (config.listen, *brokers)]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels


def test_the_far_gateway_is_kept_as_the_sidecar_is() -> None:
    """The far gateway has the same image, probes and rights as the sidecar, and more memory.

    Kubernetes gives its pod enough time to drain before the pod is killed.
    """
    pod = pod_of(far_end()["Deployment"])
    (gateway,) = pod["containers"]
    sidecar = pod_of(rendered("explicit"))["initContainers"][0]
    own = {"env", "ports", "lifecycle", "resources"}
    assert {key: value for key, value in gateway.items() if key not in own} == {
        key: value for key, value in sidecar.items() if key not in {*own, "restartPolicy"}
    }
    *_, wait = gateway["lifecycle"]["preStop"]["exec"]["command"]
    drain = float(environment_of(gateway)["FETCHGATE_DRAIN_TIMEOUT"])
    assert pod["terminationGracePeriodSeconds"] > drain + float(wait)


# -- systemd


LENT: Final = re.compile(r"^#(?=LoadCredential=|Environment=FETCHGATE_TLS_)", re.MULTILINE)
"""Matches the `#` of the unit's commented lines for a TLS key that only root may read."""


@pytest.mark.parametrize("lent", [False, True])
def test_units_are_in_order(tmp_path: Path, lent: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    for unit in UNITS.glob("fetchgate.*"):
        text = unit.read_text().replace("/opt/fetchgate/bin/fetchgate", str(shutil.which("true")))
        text = LENT.sub("", text) if lent else text
        (tmp_path / unit.name).write_text(text)
    units = [str(tmp_path / name) for name in ("fetchgate.service", "fetchgate.socket")]
    done = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if "fetchgate" in line]
    assert complaints == []


def test_the_service_is_hardened() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    command = ["systemd-analyze", "security", "--offline=yes", str(UNITS / "fetchgate.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    (level,) = re.findall(r"Overall exposure level for fetchgate.service: ([0-9.]+)", done.stdout)
    assert float(level) < 2.0


def unit(name: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


def environment_file() -> dict[str, str]:
    lines = (UNITS / "fetchgate.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_a_key_is_lent_to_the_service_where_its_options_look_for_it() -> None:
    text = (UNITS / "fetchgate.service").read_text()
    shown = [line for line in LENT.sub("", text).splitlines() if line not in text.splitlines()]
    names = [line.split("=")[1].split(":") for line in shown if line.startswith("LoadCredential=")]
    assert [Path(source).name for _, source in names] == [name for name, _ in names]
    (variables,) = [line.partition("=")[2].split() for line in shown if line.startswith("Environment=")]
    assert variables == [
        f"{option}=%d/{name}"
        for option, (name, _) in zip(("FETCHGATE_TLS_CERT", "FETCHGATE_TLS_KEY"), names, strict=True)
    ]
    assert {variable.split("=")[0] for variable in variables} <= {option.variable for option in OPTIONS}
    assert all(f"`{line}`" in DOCS for line in shown)


def test_what_a_reload_can_change_is_in_a_file_that_nothing_beats(tmp_path: Path) -> None:
    environment = environment_file()
    (install,) = [line for line in commands("linux") if environment["FETCHGATE_CONFIG"] in line]
    assert install.split()[-2:] == ["tools/deploy/systemd/fetchgate.toml", environment["FETCHGATE_CONFIG"]]
    fixed = [
        *environment,
        *(value.split("=")[0] for value in unit("fetchgate.service").get("Environment", ())),
    ]
    live = {option.name: option for option in OPTIONS if option.live}
    assert not {option.variable for option in live.values()} & {*fixed}
    text = SETTINGS.read_text()
    shown = re.sub(
        r"^#(?=\w+ = )", "", text, flags=re.MULTILINE
    )  # all that is written there, as if it counted
    assert [*tomllib.loads(shown)] == [*live]
    (tmp_path / "all.toml").write_text(shown)
    as_shipped, as_shown = (load({}, environment, str(file)) for file in (SETTINGS, tmp_path / "all.toml"))
    assert as_shipped == load({}, environment, None), "the file as it is shipped changes nothing"
    assert changes(as_shipped, as_shown) == (["sessions_off_for"], []), "what is shown is what counts without"


def test_the_sockets_are_those_that_the_gateway_asks_for() -> None:
    environment = environment_file()
    assert_options(environment)
    config = load({}, environment, str(SETTINGS))
    brokers = [config.broker_ports.place(number, config.listen) for number in range(3)]
    assert unit("fetchgate.socket")["ListenStream"] == [
        str(address) for address in (config.listen, *brokers, config.admin)
    ]
    service = unit("fetchgate.service")
    assert float(service["TimeoutStopSec"][0]) > config.drain_timeout
    assert service["ExecStart"] == ["/opt/fetchgate/bin/fetchgate proxy"]
    assert service["StateDirectory"] == ["fetchgate"]
    assert str(config.state).startswith("/var/lib/fetchgate/")


def test_the_gateways_of_the_template_share_what_is_no_socket_of_systemd(tmp_path: Path) -> None:
    (made,) = [line for line in commands("linux") if line.startswith("sed ")]
    script, source = made.split()[1:3]
    done = subprocess.run(["sed", script, str(ROOT / source)], check=True, capture_output=True, text=True)
    assert "socket" not in re.sub(r"^#.*|^Documentation=.*", "", done.stdout, flags=re.MULTILINE)
    assert set((UNITS / "fetchgate.service").read_text().splitlines()) - {*done.stdout.splitlines()} == {
        line for line in (UNITS / "fetchgate.service").read_text().splitlines() if "fetchgate.socket" in line
    }
    reset, start = unit("instance.conf")["ExecStart"]
    assert (reset, start.split()[:2]) == ("", unit("fetchgate.service")["ExecStart"][0].split())
    one, two = (_options(start.replace("%i", number)) for number in "12")
    assert {name for name in one if one[name] != two[name]} == {"admin", "metrics", "state"}
    config = load(one, environment_file(), str(SETTINGS))
    assert config.reuse_port
    assert str(config.state).startswith("/var/lib/fetchgate/")


def _options(command: str) -> dict[str, str | None]:
    words = command.split()[2:]
    return {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(words[::2], words[1::2], strict=True)
    }


# -- images


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], re.sub(r"\s+", " ", line.split(None, 1)[1])) for line in lines]


def test_the_image_is_pinned_slim_and_not_of_root() -> None:
    stages: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            assert image in stages or re.fullmatch(
                r"docker\.io/library/[a-z]+:[0-9a-z.-]*slim[0-9a-z.-]*(@sha256:[0-9a-f]{64})?", image
            )
            stages[name] = []
        else:
            stages[list(stages)[-1]].append((word, rest))
    # The last is what is built without --target.
    assert list(stages) == ["build", "rules", "base", "injector-build", "injector", "gateway"]
    assert "PIP_NO_CACHE_DIR=1" in dict(stages["build"])["ENV"]
    assert dict(stages["base"])["USER"] == "61092:61092"
    assert dict(stages["injector"])["ENTRYPOINT"] == '["python", "-m", "webhook"]'
    words = dict(stages["gateway"])
    assert words["ENTRYPOINT"] == '["fetchgate"]'
    variables = re.findall(r"FETCHGATE_\w+", words["ENV"])
    assert set(variables) <= {option.variable for option in OPTIONS}
    for word, rest in (each for stage in stages.values() for each in stage):
        assert word in {"WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD", "ENV"}
        if word in {"ENTRYPOINT", "CMD"}:
            assert rest.startswith("["), "the shell form takes signals away"
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        for step in rest.split(" && "):
            if "/pip " in step:
                assert " --require-hashes " in step or " --no-index " in step, step
        if word == "COPY" and "--from" not in rest:
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), rest


def test_images_are_given_what_they_are_built_from_and_no_more() -> None:
    nothing, *rest = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"]
    assert nothing == "*"
    given = {line.removeprefix("!") for line in rest if line.startswith("!")}
    asked = {
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in [part for part in rest.split() if not part.startswith("--")][:-1]
    }
    assert {next(name for name in given if f"{source}/".startswith(f"{name}/")) for source in asked} == given


def wait_idle(admin: str, **environ: str) -> int:
    """Run the hook until it sees that no client is connected. Its time limit is longer than the test's."""
    command = [sys.executable, str(DEPLOY / "wait-idle.py"), admin, "3600"]
    return subprocess.run(command, check=False, timeout=150, env=os.environ | environ).returncode


@pytest.mark.parametrize(
    ("left", "slept"),
    [([True], []), ([False, False, True], [0.5, 0.5]), ([False] * 4, [0.5] * 4)],
    ids=["at once", "later", "time limit"],
)
def test_the_hook_asks_twice_a_second_until_all_have_left(
    monkeypatch: pytest.MonkeyPatch, left: list[bool], slept: list[float]
) -> None:
    """The time limit is two seconds."""
    main = runpy.run_path(str(DEPLOY / "wait-idle.py"))["main"]
    asked: list[str] = []
    waits: list[float] = []

    def is_left(admin: str) -> bool:
        asked.append(admin)
        return left[len(asked) - 1]

    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append)
    monkeypatch.setitem(main.__globals__, "time", clock)
    monkeypatch.setitem(main.__globals__, "is_left", is_left)
    monkeypatch.setattr(sys, "argv", ["wait-idle.py", "admin:9464", "2"])

    main()

    assert (asked, waits) == (["admin:9464"] * len(left), slept)


def test_a_gateway_that_is_busy_is_waited_for_until_its_clients_have_left() -> None:
    asked: list[str] = []
    again = threading.Event()

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if len(asked) == 1:
                again.wait(120)  # longer than anybody waits for a response
                return
            again.set()
            told = b"half an ans" if len(asked) == 2 else b'{"connections_open": %d}' % (len(asked) == 3)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(told)

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert wait_idle(f"127.0.0.1:{server.server_port}") == 0
        server.shutdown()
    assert len(asked) >= 4
    assert set(asked) == {"/state?connections=0"}, (
        "a list of all connections may take longer than it is waited for"
    )


def test_a_gateway_with_a_token_is_asked_with_it(tmp_path: Path) -> None:
    asked: list[str] = []

    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"connections_open": 0}')

    (tmp_path / "token").write_text("s3cret\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        admin = f"127.0.0.1:{server.server_port}"
        assert wait_idle(admin, FETCHGATE_ADMIN_TOKEN_FILE=str(tmp_path / "token")) == 0
        server.shutdown()
    assert {*asked} == {"Bearer s3cret"}


@pytest.mark.parametrize("usage", [True, False])
def test_a_gateway_with_tls_is_trusted_by_its_own_certificate(tmp_path: Path, usage: bool) -> None:
    asked: list[str] = []

    class Idle(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"connections_open": 0}')

    ca = Authority(tmp_path, usage=usage)
    pair = ca.sign("fetchgate.example")
    pair.cert.write_text(pair.chain + ca.file.read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Idle) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert wait_idle(f"127.0.0.1:{server.server_port}", FETCHGATE_ADMIN_CERT=str(pair.cert)) == 0
        server.shutdown()
    assert {*asked} == {"/state?connections=0"}


def test_a_gateway_that_is_gone_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert wait_idle(f"127.0.0.1:{port}") == 0


@pytest.mark.parametrize(
    ("example", "gateways"), [("compose.yaml", ["fetchgate"]), ("link.yaml", ["far", "near"])]
)
def test_compose_names_what_there_is(example: str, gateways: list[str]) -> None:
    file = DEPLOY / "compose" / example
    services = yaml.safe_load(file.read_text())["services"]
    assert [name for name, service in services.items() if "build" in service] == gateways
    for name in gateways:
        gateway = services[name]
        assert_options(gateway["environment"])
        build = gateway["build"]
        context = (file.parent / build["context"]).resolve()
        assert context == ROOT
        assert (context / build["dockerfile"]).is_file()
        assert any(
            word == "FROM" and rest.endswith(f" AS {build['target']}") for word, rest in instructions()
        )
        assert gateway["read_only"] is True
        assert gateway["cap_drop"] == ["ALL"]
        assert not any(" " in part for part in gateway["healthcheck"]["test"])
    beside = services[gateways[-1]]
    assert beside["environment"]["FETCHGATE_LISTEN"] in services["client"]["command"]
    assert services["client"]["network_mode"] == f"service:{gateways[-1]}"
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        assert ":" in service.get("image", ":")


def test_gateways_in_a_row_of_compose_follow_each_other_over_the_link() -> None:
    """In the compose file with two gateways, the near gateway reaches the broker only through the far one.

    The broker has no session slots, so it gives no sessions.
    """
    document = yaml.safe_load((DEPLOY / "compose" / "link.yaml").read_text())
    services = document["services"]
    kafka, far, near = (services[name] for name in ("kafka", "far", "near"))
    assert kafka["environment"]["KAFKA_MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS"] == "0"
    assert (kafka["networks"], far["networks"], near["networks"]) == (
        ["centre"],
        ["centre", "link"],
        ["link"],
    )
    assert {*document["networks"]} == {"centre", "link"}
    config = load({}, far["environment"], None)
    assert near["environment"]["FETCHGATE_BOOTSTRAP"] == f"{config.advertise}:{config.listen.port}"
    assert config.advertise == "far", "as its service is called"


# -- the pages


def blocks(page: str = "") -> list[list[str]]:
    """Return the commands of each code block of the pages, or of one page."""
    text = PAGES[page] if page else DOCS
    return [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]


def commands(page: str = "") -> list[str]:
    return [line for block in blocks(page) for line in block]


ELSEWHERE: Final = ("podman build", "kubectl apply", "docker compose")
"""The beginnings of commands that need a cluster, a daemon or a registry. tests/integration/test_deploy_*.py
runs these commands."""
HERE: Final = ("kubectl kustomize", "systemd-analyze", "helm")


*SYSTEMD, GATEWAYS, _, _ = blocks("linux")
"""The commands for systemd, and those that start the gateway in transparent mode.

tests/integration/test_deploy_systemd.py and test_transparent_live.py run them.
"""
IN_A_ROW, _ = blocks("two-gateways")
"""The commands for two gateways in a row. tests/integration/test_client_sessions_live.py runs them."""

((WRITE_REGISTRY,),) = [lines for lines in blocks("kubernetes") if lines[0].startswith("find ")]
"""The command that writes a registry into the manifests. It changes files, so it runs on a copy."""


def test_no_command_of_the_page_is_forgotten() -> None:
    known = (*ELSEWHERE, *HERE, "tools/deploy/transparent.sh")
    run = [*GATEWAYS, *IN_A_ROW, *(line for lines in SYSTEMD for line in lines)]
    run += ["python -m tools.base_images"]  # tests/tools/test_release.py
    run += [WRITE_REGISTRY]
    assert [line for line in commands() if not line.startswith(known) and line not in run] == []


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith(HERE)])
def test_commands_of_the_page_run_as_they_are_written(line: str) -> None:
    program, *_ = line.split()
    found = helm.program() if program == "helm" else shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} here")
    # A helm may be for no version of Kubernetes, until it is told one.
    version = ["--kube-version=1.31.0"] if program == "helm" else []
    command = [found, *line.split()[1:], *version]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    not_installed = "Command /opt/fetchgate/bin/fetchgate is not executable"
    assert done.returncode == 0 or not_installed in done.stderr, done.stderr


def test_one_command_writes_the_registry_into_all_manifests(tmp_path: Path) -> None:
    """It may be repeated."""
    copy = tmp_path / KUBERNETES.relative_to(ROOT)
    shutil.copytree(KUBERNETES, copy)
    for _ in range(2):
        subprocess.run(["sh", "-ec", WRITE_REGISTRY], cwd=tmp_path, check=True, timeout=60)
    seen = set()
    for file in [each for each in copy.rglob("*") if each.is_file()]:
        before = (KUBERNETES / file.relative_to(copy)).read_text()
        after = file.read_text()
        images = [text.strip(' "-,') for text in re.findall(r'image"?: (.*)', after)]
        ours = [image for image in images if "fetchgate" in image]
        assert [image.rpartition("/")[0] for image in ours] == ["registry.example"] * len(ours)
        assert [image.partition(":")[2] for image in ours] == ["0.2.0-1"] * len(ours)
        assert after.replace("registry.example/", "").replace(":0.2.0-1", ":0.2.0") == before
        seen |= {image.rpartition("/")[2].partition(":")[0] for image in ours}
    assert seen == {"fetchgate", "fetchgate-rules", "fetchgate-injector"}


def test_the_page_and_the_manifest_leave_the_same_right() -> None:
    """The setpriv command in the documentation equals the command in the manifest.

    Only the option --bounding-set is left out. The manifest's command is tested by
    tests/integration/test_transparent_live.py.
    """
    (line,) = [line for line in commands() if line.startswith("setpriv") and "net_raw" in line]
    container = pod_of(rendered("tproxy"))["initContainers"][0]
    shipped = [word for word in container["command"] if not word.startswith("--bounding-set=")]
    assert line.split() == [*shipped, *container["args"], "--transparent", "tproxy"]


def test_the_page_s_whole_file_of_options_says_which_are_live(tmp_path: Path) -> None:
    (whole,) = re.findall(r"```toml\n(.*?)```", PAGES["run"], re.DOTALL)
    (file := tmp_path / "fetchgate.toml").write_text(whole)
    load({}, {}, str(file))
    live = {option.name for option in OPTIONS if option.live}
    _, _, shown = whole.partition("# Live")
    assert {*tomllib.loads(whole)} & live == {*tomllib.loads(f"#{shown}")}


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_the_rules_of_the_page_are_laid_and_taken_away_as_it_is_written() -> None:
    with Namespace() as place, place.inside():
        once = [line for line in commands() if line.startswith("tools/deploy/transparent.sh")]
        (watch,) = (line for line in once if " watch " in line)
        once.remove(watch)  # run by tests/integration/test_transparent_live.py
        for line in once:
            done = subprocess.run(line.split(), cwd=ROOT, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), line
        assert place.run("nft", "list", "ruleset").stdout == ""


def test_files_and_options_that_the_page_names_are_there() -> None:
    text = DOCS
    for file in re.findall(r"(?:tools|tests|docs)/[\w./-]+", text):
        assert (ROOT / file.rstrip(".")).exists(), file
    flags = {option.flag for option in OPTIONS}
    named = set(re.findall(r"`(--[a-z-]+)[ `]", text))
    assert named - flags <= {"--config", "--check", "--ports", "--to", "--user", "--read-only"}
