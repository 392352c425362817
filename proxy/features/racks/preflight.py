"""What ``fetchgate proxy --check`` says of ``--rack``."""

from collections.abc import Iterable, Mapping

from proxy.features.feature import Cluster
from proxy.features.racks.options import RackOptions
from proxy.text.printable import printable


def means(options: RackOptions) -> Iterable[str]:
    """See `Feature.means`."""
    if options.rack:
        yield f"The gateway is in the rack {options.rack}; bytes with brokers are counted by zone."


def fits(options: RackOptions, cluster: Cluster) -> tuple[list[str], str]:
    """See `Feature.fits`."""
    if not options.rack:
        return [], ""
    doubt = "" if options.rack in cluster.racks.values() else "no broker is in its rack"
    return [_in_rack(options.rack, len(cluster.brokers or ()), cluster.racks)], doubt


def _in_rack(rack: str, brokers: int, racks: Mapping[int, str]) -> str:
    if here := sum(each == rack for each in racks.values()):
        verb = "is" if here == 1 else "are"
        return f"{here} of {brokers} broker{'s' * (brokers != 1)} {verb} in the rack {rack}."
    if not racks:
        return f"--rack {rack}: no broker has a rack, so no zone is known; set broker.rack at the brokers"
    known = printable(", ".join(sorted(set(racks.values()))))
    return (
        f"--rack {rack}: no broker is in this rack; the racks are {known}; "
        "set --rack to the broker.rack of brokers in the gateway's zone"
    )
