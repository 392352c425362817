"""Reloads the options of a running gateway on SIGHUP, and when the file of ``--config`` changes."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time
from typing import Any, Final

from proxy.command.config import LIVE, OPTIONS, Config, changes, load, with_live
from proxy.net.tls import Stamp, stamp
from proxy.server.gateway import Gateway
from proxy.server.server import TICK_SECONDS
from proxy.telemetry import logs
from proxy.text.options import IN_FOLDER, ConfigError, OptionsFile
from proxy.text.printable import brief, printable

_LEFT_OUT: Final[Stamp] = (-1, -1, -1)
"""The stamp of a file that was left out. No file has it, so `Reloader` reads the file and reports it."""


def load_all(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Config:
    """Read the options from all sources.

    A file in a folder is for live options alone. Others could keep new gateways from starting, while those
    that run would not apply them.

    Raises:
        ConfigError: an option or the file can't be used, or the folder has other files in place of it.
    """
    file = OptionsFile.of(arguments["config"], environ)
    if others := file.others():
        names = brief(printable(", ".join(others)))
        raise ConfigError(
            f"--config {file.name} has {names}, and no {IN_FOLDER}: "
            f"name the file, or the key of the ConfigMap, {IN_FOLDER}"
        )
    config = load(arguments, environ, file.path())
    if file.is_optional:
        for option in OPTIONS:
            given = config.given[option.name]
            if given.source == "file" and not option.live:
                raise ConfigError(
                    f"{given.called}: it needs a restart, and the directory of --config is for live options; "
                    f"give {option.flag} or {option.variable}"
                )
    return config


def load_first(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Config, Stamp]:
    """Read the options at the start, and the stamp of their file.

    A file that is optional and wrong is left out, as if it were absent. `Reloader` then reports it.

    Raises:
        ConfigError: an option or the file can't be used.
    """
    file = OptionsFile.of(arguments["config"], environ)
    read = _stamp_of(file)
    try:
        return load_all(arguments, environ), read
    except ConfigError as error:
        if not file.is_optional:
            raise
        try:
            return load(arguments, environ, None), _LEFT_OUT
        except ConfigError:
            raise error from None


class Reloader:
    """Applies changed options that need no restart, and reports changed options that need one.

    `load` reads all options again, from all sources. `read` is the stamp of the file of ``--config`` from
    which `config` was read, None if there was no file.
    """

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        load: Callable[[], Config],
        file: OptionsFile,
        read: Stamp,
    ) -> None:
        self.config = config
        """The options in use now. If an option needs a restart, the old value stays here, so each reload
        reports the option again."""
        self.draining = False
        """While the gateway drains, a reload does not change ``--drain-timeout``."""
        self._gateway = gateway
        self._load = load
        self._file = file
        self._stamp = read

    def reload(self) -> None:
        """Reload the options, and certificates whose files have changed. An error keeps the old ones."""
        gateway, process, options = self._gateway, self._gateway.process, self._gateway.process.options
        self._stamp = _stamp_of(self._file)
        gateway.follow_files()
        try:
            after = self._load()
        except ConfigError as error:
            process.log.warning("not reloaded", reason=str(error))
            options.reload_failures += 1
            then = "leave the file out" if self._file.is_optional else "fail"
            options.errors = [f"options not reloaded: {error} (a restart would {then})"]
            process.note("not reloaded", f"options not reloaded: {error}", warning=True)
            return
        options.errors = []
        options.reloaded_at = time()
        live = LIVE - {"drain_timeout"} if self.draining else LIVE
        applied, restart = changes(self.config, after, live)
        self.config = with_live(self.config, after, live)
        gateway.reconfigure(self.config)
        logs.configure(style=self.config.log_format, level=self.config.log_level)
        options.needs_restart = restart
        say = process.log.warning if restart else process.log.info
        say("reloaded", applied=applied, needs_restart=restart)
        process.note("reloaded", _in_words(applied, restart), warning=bool(restart))

    async def watch_file(self) -> None:
        """Reload the options when the file has changed. Runs forever."""
        before = self._stamp
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = _stamp_of(self._file)
            # Read only when the file has stayed the same for one interval: an editor may first empty it.
            if now == before and now != self._stamp:
                self.reload()
            before = now


def _stamp_of(file: OptionsFile) -> Stamp:
    path = file.path()
    if path is None and file.others():
        path = file.name  # the folder changes with its files
    return stamp(Path(path)) if path else None


def _in_words(applied: list[str], restart: list[str]) -> str:
    words = f"options reloaded: {', '.join(applied) or 'nothing changed'}"
    return f"a restart is needed for {', '.join(restart)}; {words}" if restart else words
