"""The sentences of the report on zones."""

from replay.report.wording import plural
from replay.report.zones_model import ZonesReport


def zones_known(found: ZonesReport) -> str:
    """Say what is not known of zones, and which options tell it; else how to read the tables."""
    brokers = sum(row["rack"] is None for row in found["brokers"])
    connections = sum(row["connections"] for row in found["clients"] if row["rack"] is None)
    lines = ["A zone is a rack of Kafka's brokers. Bytes are those of whole requests and responses."]
    if brokers:
        lines.append(
            f"The rack of {plural(brokers, 'broker')} is not known: no captured Metadata has it, or not with "
            "this address. Name it: --broker-rack 1=NAME, or --broker-rack 10.0.1.0/24=NAME."
        )
    if connections:
        lines.append(
            f"The rack of the clients of {plural(connections, 'connection')} is not known: --client-rack "
            "10.0.1.0/24=NAME names it."
        )
    return " ".join(lines)
