"""Options are read again while the gateway runs: by SIGHUP, and when the file of ``--config`` changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from proxy.config import LIVE, Config, ConfigError, changes, with_live
from proxy.logger import Logger
from proxy.net.tls import stamp
from proxy.server.server import TICK_SECONDS
from proxy.telemetry import logs


class Reloaded(Protocol):
    """What takes the options: a gateway, in one process or in several."""

    log: Logger
    mistakes: list[str]
    """Why the options could not be read; nothing when they could."""

    def follow_files(self) -> None:
        """Read files again that have changed."""

    def reconfigure(self, config: Config) -> None:
        """Take the options that apply at once."""

    def note(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Keep what happened, in words."""


class Reloader:
    """Applies what can be, and says what needs a restart.

    Args:
        gateway: whose options they are.
        config: what it was started with.
        load: reads the options anew from wherever they are written.
        file: the file among these, or None.
    """

    def __init__(
        self, gateway: Reloaded, config: Config, load: Callable[[], Config], file: str | None
    ) -> None:
        self.config = config
        """What counts now; what needs a restart stays in it as it was, for the next reload to tell."""
        self.draining = False
        """The gateway leaves, within the time that it was given for it."""
        self._gateway = gateway
        self._load = load
        self._file = Path(file) if file else None
        self._stamp = self._look()

    def reload(self) -> None:
        """Read the options again; a mistake in them is told and changes nothing."""
        gateway = self._gateway
        self._stamp = self._look()
        gateway.follow_files()
        try:
            after = self._load()
        except ConfigError as error:
            gateway.log.warning("not reloaded", reason=str(error))
            gateway.mistakes = [f"options not reloaded, a restart would fail: {error}"]
            gateway.note("not reloaded", f"options not reloaded: {error}", warning=True)
            return
        gateway.mistakes = []
        live = LIVE - {"drain_timeout"} if self.draining else LIVE
        applied, restart = changes(self.config, after, live)
        self.config = with_live(self.config, after, live)
        gateway.reconfigure(self.config)
        logs.configure(style=self.config.log_format, level=self.config.log_level)
        gateway.log.info("reloaded", applied=applied, needs_restart=restart)
        gateway.note("reloaded", _told(applied, restart), warning=bool(restart))

    async def follow(self) -> None:
        """Reload whenever the file has changed, for ever.

        It must look the same twice: an editor may empty it before it writes.
        """
        before = self._stamp
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._look()
            if now == before and now != self._stamp:
                self.reload()
            before = now

    def _look(self) -> object:
        return stamp(self._file) if self._file is not None else None


def _told(applied: list[str], restart: list[str]) -> str:
    told = f"options reloaded: {', '.join(applied) or 'nothing new'}"
    return f"a restart is needed for {', '.join(restart)}; {told}" if restart else told
