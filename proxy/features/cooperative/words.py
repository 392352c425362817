"""Words in the figures of cooperative groups, each with an explanation."""

from typing import Final

EXCLUSIVE: Final = {
    "outsider": "a member is behind no gateway, or does not assign partitions as consumers do",
    "instances": "its members are behind gateways of different versions, and those whose gateway can't read "
    "the assignment of the leader's get nothing: run one version",
    "slots": "its members are behind several gateways, and the broker refuses slots (their logs say why), "
    "or their --cooperative-slots differ",
    "uncommitted": "its members are behind several gateways, and a partition has no committed offset yet, or "
    "the leader of the group may not read it",
    "client_id": "a client.id does not begin with the group's name and a dot, or two members "
    "have the same one",
    "assignor": "its assignor does not assign plain partitions",
}
"""The values of `GroupSeen.exclusive`, each with an explanation in words."""
