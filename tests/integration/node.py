"""Kubernetes in a network namespace, with one node or none: the real programs, each in its own process.

Tests are skipped where programs are missing. Debian 12 has the packages etcd-server, containerd, runc,
containernetworking-plugins, podman and debootstrap. Build the others with Go from the module
k8s.io/kubernetes, in a module of your own: its go.mod has the requirements of that module, and `replace`
lines with the published version of each staging module (v0.34.4 for v1.34.4).
"""

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from tests.integration.bystander import until
from tools.kafka import reaper
from tools.netns import Namespace

ETCD, API, SCHEDULER, CONTROLLERS, KUBELET = 23790, 23800, 23801, 23802, 23803
HOST: Final = "10.88.0.1"
"""The node's address for pods. A name server at this address knows `KAFKA`, the name of the brokers in the
manifests."""
KAFKA: Final = "kafka"
PLUGINS: Final = next(filter(os.path.isdir, ("/opt/cni/bin", "/usr/lib/cni")), "")
NEEDED: Final = ("etcd", "kube-apiserver", "kubectl", "openssl")
NEEDED_BY_NODE: Final = (
    *("kube-controller-manager", "kube-scheduler", "kubelet"),
    *("containerd", "ctr", "runc"),
)
ABSENT_API: Final = [program for program in NEEDED if shutil.which(program) is None]
"""What an `ApiServer` lacks here."""
ABSENT: Final = [
    *ABSENT_API,
    *(program for program in NEEDED_BY_NODE if shutil.which(program) is None),
    *([] if PLUGINS else ["plugins of CNI"]),
]
"""What a `Node` lacks here."""
PAUSE: Final = "docker.io/library/pause:1"
CONTAINERD: Final = """
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
BRIDGE: Final = {"type": "bridge", "bridge": "pods", "isGateway": True}
ADDRESSES: Final = {
    "type": "host-local",
    "ranges": [[{"subnet": "10.88.0.0/24"}]],
    "routes": [{"dst": "0.0.0.0/0"}],
}


class ApiServer:
    """The API server of Kubernetes, alone: it stores objects, and no pod runs. `with` starts and ends it.

    Args:
        network: its network namespace.
        folder: the folder for its files.
    """

    def __init__(self, network: Namespace, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._kubectl = ("kubectl", f"--kubeconfig={folder}/config")
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kubectl(self, *command: str) -> str:
        """Run kubectl and return its output.

        Raises:
            RuntimeError: kubectl failed. The message has its output.
        """
        return self._network.run(*self._kubectl, *command).stdout

    def shell_command(self, text: str) -> str:
        """Run a shell command whose kubectl asks this API server, and return its output.

        Raises:
            RuntimeError: it failed. The message has its output.
        """
        return self._network.run("env", f"KUBECONFIG={self._folder}/config", "sh", "-ec", text).stdout

    def environment(self) -> dict[str, str]:
        """Return an environment in which kubectl asks this API server."""
        return {**os.environ, "KUBECONFIG": f"{self._folder}/config"}

    def close(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
            reaper.forget(process.pid)

    def _start(self) -> None:
        self._network.run("ip", "link", "add", "pods", "type", "bridge")
        self._network.run("ip", "address", "add", f"{HOST}/24", "dev", "pods")
        self._network.run("ip", "link", "set", "pods", "up")
        self._write_files()
        for command in self._commands():
            with (self._folder / f"{command[0]}.log").open("wb") as log:
                self._run(command, log.fileno())
            if command[0] == "containerd":
                until((self._folder / "containerd.sock").exists, "containerd does not listen")
            if command[0] == "kube-apiserver":
                until(lambda: self._says("get", "--raw=/readyz") == "ok", "no API server", patience=60)

    def _says(self, *command: str) -> str:
        with suppress(RuntimeError):
            return self.kubectl(*command)
        return ""

    def _run(self, command: Sequence[str], output: int) -> None:
        with self._network.inside():
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder
            )
        self._processes.append(process)
        reaper.watch(process.pid)

    def _write_files(self) -> None:
        (self._folder / "tokens").write_text("token,admin,admin,system:masters\n")
        (self._folder / "config").write_text(json.dumps(_KUBECONFIG))
        key = ["openssl", "genrsa", "-out", str(self._folder / "key.pem"), "2048"]
        subprocess.run(key, check=True, capture_output=True)

    def _commands(self) -> Iterator[list[str]]:
        """Yield the command lines of the programs to start, in order."""
        etcd = f"http://127.0.0.1:{ETCD}"
        keys = [f"--service-account-{use}=key.pem" for use in ("key-file", "signing-key-file")]
        yield [
            *("etcd", "--data-dir=etcd", f"--listen-peer-urls=http://127.0.0.1:{ETCD + 1}"),
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
        ]
        yield [
            *("kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={API}", "--cert-dir=certificates"),
            *("--token-auth-file=tokens", "--service-account-issuer=https://node", *keys),
            *("--service-cluster-ip-range=10.96.0.0/16", f"--advertise-address={HOST}"),
            *("--disable-admission-plugins=ServiceAccount", "--authorization-mode=AlwaysAllow"),
            "--kubelet-preferred-address-types=InternalIP",
            # It reaches the services of webhooks by their endpoints: no kube-proxy runs here.
            "--enable-aggregator-routing",
        ]


class Node(ApiServer):
    """A node and its control plane.

    Args:
        network: its network namespace.
        folder: the folder for its files.
        archives: the archives of the images for pods, and of `PAUSE`.
    """

    def __init__(self, network: Namespace, folder: Path, archives: Sequence[Path]) -> None:
        super().__init__(network, folder)
        self._archives = archives
        self._names: socket.socket | None = None

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods of the default namespace."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "--output=json"))["items"]
        return found

    def follow(self, pod: str, container: str, file: Path) -> None:
        """Copy a container's log into a file, until the container ends."""
        with file.open("wb") as output:
            self._run([*self._kubectl, "logs", "--follow", pod, f"-c={container}"], output.fileno())

    def close(self) -> None:
        """End the node. All pods must have ended before."""
        super().close()
        if self._names is not None:
            with suppress(OSError):  # it is not connected, and yet who waits for it is woken
                self._names.shutdown(socket.SHUT_RDWR)
            self._names.close()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (place := line.split()[1]).startswith(f"{self._folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False)

    def _start(self) -> None:
        super()._start()
        with self._network.inside():
            self._names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._names.bind((HOST, 53))
        threading.Thread(target=_response_names, args=[self._names], daemon=True).start()
        socket_of = f"--address={self._folder}/containerd.sock"
        for archive in self._archives:
            self._network.run("ctr", socket_of, "--namespace=k8s.io", "images", "import", str(archive))
        until(lambda: "True" in self._says("get", "nodes", _READY), "the node is not ready", patience=60)
        # What takes this taint away where there are many nodes is none of those that run here.
        self.kubectl("taint", "node", "node", "node.kubernetes.io/not-ready-")

    def _write_files(self) -> None:
        super()._write_files()
        folder = self._folder
        (folder / "cni").mkdir()
        bridge = BRIDGE | {"ipam": ADDRESSES | {"dataDir": f"{folder}/addresses"}}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        text = CONTAINERD.format(folder=folder, plugins=PLUGINS, pause=PAUSE)
        (folder / "containerd.toml").write_text(text)
        (folder / "kubelet.json").write_text(json.dumps(_kubelet(folder)))

    def _commands(self) -> Iterator[list[str]]:
        folder = self._folder
        ours = ["--kubeconfig=config", "--leader-elect=false", "--cert-dir=certificates"]
        yield ["containerd", "--config=containerd.toml"]
        yield from super()._commands()
        yield ["kube-scheduler", *ours, f"--secure-port={SCHEDULER}"]
        controllers = (
            "deployment-controller,replicaset-controller,garbage-collector-controller,endpoints-controller,"
            "endpointslice-controller"
        )
        yield [
            "kube-controller-manager",
            *ours,
            f"--secure-port={CONTROLLERS}",
            f"--controllers={controllers}",
        ]
        yield [
            *("kubelet", "--config=kubelet.json", "--kubeconfig=config", "--hostname-override=node"),
            *(f"--node-ip={HOST}", f"--root-dir={folder}/kubelet", "--cert-dir=certificates"),
        ]


def _response_names(server: socket.socket) -> None:
    """Answer DNS requests like a name server that knows one name, until an empty request arrives."""
    with suppress(OSError):
        while True:
            question, who = server.recvfrom(512)
            if not question:
                return
            server.sendto(response(question), who)


def response(question: bytes) -> bytes:
    """Answer a DNS question (RFC 1035, section 4) for `KAFKA`. Other names do not exist."""
    end = question.find(b"\0", 12) + 5
    name, kind = question[12 : end - 5], question[end - 4 : end - 2]
    known = name == bytes((len(KAFKA),)) + KAFKA.encode()
    found = known and kind == b"\0\1"
    flags, count = (b"\x81\x80" if known else b"\x81\x83"), int(found).to_bytes(2)
    address = b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4" + socket.inet_aton(HOST) if found else b""
    return question[:2] + flags + b"\0\1" + count + bytes(4) + question[12:end] + address


_READY: Final = '--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
_KUBECONFIG: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [
        {
            "name": "node",
            "cluster": {"server": f"https://127.0.0.1:{API}", "insecure-skip-tls-verify": True},
        }
    ],
    "users": [{"name": "admin", "user": {"token": "token"}}],
    "contexts": [{"name": "node", "context": {"cluster": "node", "user": "admin"}}],
    "current-context": "node",
}


def _kubelet(folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "clusterDNS": [HOST],
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "evictionHard": {},
        "localStorageCapacityIsolation": False,
        "port": KUBELET,
        "healthzPort": 0,
        "makeIPTablesUtilChains": False,
    }
