"""Reads how many fetch sessions a broker has, from its JMX metric, with Kafka's JmxTool."""

import re
import subprocess
from pathlib import Path
from typing import Final

from tools.kafka import Broker
from tools.kafka.jars import classpath
from tools.kafka.java import java
from tools.kafka.process import JVM

_GAUGE: Final = "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions"
_SECONDS: Final = 60.0


def broker_sessions(broker: Broker) -> int:
    """Return the number of fetch sessions of a broker, including those of its followers."""
    jcmd = [str(Path(java()).parent / "jcmd"), str(broker.pid)]
    _run([*jcmd, "ManagementAgent.start_local"])
    found = re.search(r"URL\s*: (\S+)", _run([*jcmd, "ManagementAgent.status"]))
    if found is None:
        raise RuntimeError(f"{broker!r} has no address for JMX")
    tool = ["-cp", classpath(broker.version, tools=True), "org.apache.kafka.tools.JmxTool"]
    asked = ["--jmx-url", found[1], "--object-name", _GAUGE, "--attributes", "Value", "--one-time"]
    output = _run([str(java()), *JVM, *tool, *asked, "--report-format", "properties"])
    value = re.search(rf"^{re.escape(_GAUGE)}:Value=(\d+)", output, re.MULTILINE)
    if value is None:
        raise RuntimeError(f"{broker!r} did not say how many sessions it has:\n{output}")
    return int(value[1])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} took more than {_SECONDS:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")
    return done.stdout
