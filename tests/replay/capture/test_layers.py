import pytest

from tests.test_imports import REPLAY, WORLD, _imports

SHELL = {
    f"replay.capture.files.{name}"
    for name in ("outputs", "sources", "spans", "streams", "reading", "secrets")
}
CAPTURE = sorted(name for name in REPLAY if name.startswith("replay.capture."))


@pytest.mark.parametrize("module", [name for name in CAPTURE if name not in SHELL])
def test_only_the_shell_of_capture_touches_the_world(module: str) -> None:
    assert not {name for name in _imports(REPLAY[module]) if name.split(".")[0] in WORLD}
