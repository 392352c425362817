"""Runs `fetchgate proxy`: starts the gateway, handles signals, finishes the requests in flight, and ends."""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from errno import EADDRINUSE
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Any, Final

from proxy.addresses import Address
from proxy.command.config import Config, misspelt_variables
from proxy.command.effective_config import as_toml
from proxy.command.exits import EXIT_FAILED, EXIT_USAGE, complain, complain_of_variables
from proxy.net.bootstrap import BootstrapError
from proxy.net.listen import OwnListenerError, inherited
from proxy.net.resolve import look_up
from proxy.net.tls import ReloadingContext, Stamp
from proxy.server.bypass import passing_by
from proxy.server.gateway import Gateway
from proxy.server.process import Process, keep_freed, new_event_loop, tell_ready
from proxy.server.reload import Reloader, load_all, load_first
from proxy.telemetry import logs
from proxy.telemetry.access import Token, admin_tls
from proxy.telemetry.admin import METRICS, AdminEndpoint
from proxy.text.error_text import reason_of
from proxy.text.options import ConfigError, OptionsFile
from proxy.text.printable import printable
from proxy.version import VERSION

if TYPE_CHECKING:
    from proxy.capture.tap import Capture

ADMIN_RETRY_SECONDS: Final = 0.5
ADMIN_LATE_SECONDS: Final = 60.0
"""When a warning is logged if the address of the admin endpoint is still in use."""
OWN_FILES: Final = 256
"""How many file descriptors the process needs beside two for each client: for listeners and files."""


def run(arguments: dict[str, Any]) -> int:
    """Run a gateway. With ``--check`` or ``--show-config``, only test or print its options.

    `arguments` has the value of each option by its name, or None. Return the exit code of the process.
    """
    read = None
    try:
        if arguments["show_config"] or arguments["check"]:
            config = load_all(arguments, os.environ)
        else:
            config, read = load_first(arguments, os.environ)
    except ConfigError as error:
        complain_of_variables("proxy")
        return complain("proxy", str(error), EXIT_USAGE)
    if arguments["show_config"]:
        complain_of_variables("proxy")
        sys.stdout.write(as_toml(config))
        return 0
    if arguments["check"]:
        return asyncio.run(_check(config, arguments["gateways"]))
    logs.configure(style=config.log_format, level=config.log_level)
    keep_freed()
    for text in misspelt_variables(os.environ):
        logs.logger().warning("environment variable ignored", reason=text)
    if text := _passing_by(config):
        logs.logger().warning("processes are not redirected to the gateway", reason=text)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_serve(config, read, arguments))
    except KeyboardInterrupt:
        return 0  # a signal may have come before its handler was set


async def _check(config: Config, gateways: int = 0) -> int:
    from proxy.server.preflight import check  # noqa: PLC0415 - a gateway that runs does not need it

    for text in misspelt_variables(os.environ):
        _say(text)
    if text := _passing_by(config):
        _say(text)
    try:
        return 0 if await check(config, _say, gateways) else EXIT_FAILED
    except ConfigError as error:
        return complain("proxy", str(error), EXIT_USAGE)
    except BootstrapError as error:
        return complain("proxy", str(error), EXIT_FAILED)


def _passing_by(config: Config) -> str:
    return "" if config.transparent == "off" else passing_by()


def _say(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")  # brokers choose their names
    sys.stdout.flush()  # without it, a pipe would get the lines only at the end


async def _serve(config: Config, read: Stamp, arguments: dict[str, Any]) -> int:
    # `read` is the stamp of the options file from which `config` was read.
    loop = asyncio.get_running_loop()
    log = logs.logger()
    files = _raise_file_limit()
    loop.set_exception_handler(logs.unexpected)
    try:
        token = Token(config.admin_token_file) if config.admin_token_file else None
        tls = admin_tls(config)
        from_systemd = inherited(os.environ, os.getpid())
        gateway = Gateway(Process.of(config, loop, log), from_systemd)
        gateway.monitor.certificates["admin_cert"] = tls
        gateway.open()
    except ConfigError as error:
        return complain("proxy", str(error), EXIT_USAGE)
    except OSError as error:
        return _unbound("--listen", config.listen, error)
    sys.unraisablehook = logs.ignored
    try:
        capture = _capture(config, gateway)
    except OSError as error:
        gateway.close()
        reason = reason_of(error)
        return complain(
            "proxy",
            f"can't write to {config.capture}: {reason}; give --capture a directory that can be written",
            EXIT_USAGE,
        )
    binding = replace(gateway.acceptor.binding, shares=False)
    endpoints = _endpoints(config, gateway, token, tls)
    opened: dict[str, str] = {}
    for name, (endpoint, at) in endpoints.items():
        try:
            bind = partial(binding.bind, at, ips=look_up(at.host))
            opened[name] = str(await _start_admin(gateway, endpoint, f"--{name}", at, bind))
        except OSError as error:
            gateway.close()
            return _unbound(f"--{name}", at, error)
    gc.collect()
    gc.freeze()  # Exclude all present objects from later garbage collections.
    log.info("started", version=VERSION, listen=str(gateway.listen), **({"admin": "off"} | opened))
    if files < (needed := 2 * config.max_connections + OWN_FILES):
        log.warning(
            "too few file descriptors for --max-connections",
            needed=needed,
            limit=files,
            remedy="raise the limit (ulimit -n), or lower --max-connections",
        )
    load = partial(load_all, arguments, os.environ)
    options = Reloader(gateway, config, load, OptionsFile.of(arguments["config"], os.environ), read)
    gateway.process.spawn(options.watch_file())
    await _until_stopped(gateway, options)
    for endpoint, _ in endpoints.values():
        endpoint.close()
    if capture is not None:
        capture.close()
    return 0


def _endpoints(
    config: Config, gateway: Gateway, token: Token | None, tls: ReloadingContext | None
) -> dict[str, tuple[AdminEndpoint, Address]]:
    """Return the endpoints to serve, each with its listening address, by option."""
    found: dict[str, tuple[AdminEndpoint, Address]] = {}
    if (at := config.admin) is not None:
        found["admin"] = AdminEndpoint(gateway, [*config.admin_names, at.host], token=token, tls=tls), at
    if (at := config.metrics) is not None:
        found["metrics"] = AdminEndpoint(gateway, [*config.admin_names, at.host], only=METRICS), at
    return found


async def _start_admin(
    gateway: Gateway,
    admin: AdminEndpoint,
    flag: str,
    at: Address,
    bind: Callable[[], list[socket]],
) -> Address:
    """Serve an endpoint. Return the address with the bound port.

    With ``--reuse-port``, the endpoint opens when an older gateway has freed the address. Two gateways never
    share this port, because a client would not know which of them responds.

    Raises:
        OSError: the address can't be bound.
    """
    try:
        sockets = bind()
    except OSError as error:
        waits = gateway.process.config.reuse_port and error.errno == EADDRINUSE
        if not waits or isinstance(error, OwnListenerError):
            raise
        gateway.process.log.info("the admin endpoint opens when the other gateway has stopped", option=flag)
        gateway.process.spawn(_wait_for_admin(gateway, admin, flag, at, bind))
        return at
    admin.start(sockets)
    return Address(at.host, sockets[0].getsockname()[1])


async def _wait_for_admin(
    gateway: Gateway,
    admin: AdminEndpoint,
    flag: str,
    at: Address,
    bind: Callable[[], list[socket]],
) -> None:
    remedy = f"stop the program that uses its address, or give {flag} another HOST:PORT"
    say = partial(gateway.process.log.warning, f"the admin endpoint is still closed: {remedy}", admin=str(at))
    late = gateway.process.loop.call_later(ADMIN_LATE_SECONDS, say)
    try:
        while True:
            await asyncio.sleep(ADMIN_RETRY_SECONDS)
            with suppress(OSError):
                admin.start(bind())
                return
    finally:
        late.cancel()


def _capture(config: Config, gateway: Gateway) -> "Capture | None":
    if config.capture is None:
        return None
    from proxy.capture.tap import Capture, Files  # noqa: PLC0415 - it needs dpkt, which takes 3 MB

    files = Files(config.capture, most_bytes=config.capture_file_bytes, most_files=config.capture_files)
    process = gateway.process
    capture = Capture(files, records=config.capture_records, loop=process.loop, log=process.log)
    gateway.server.set_tap(capture)
    process.log.info("capturing", directory=str(config.capture), records=config.capture_records)
    return capture


async def _until_stopped(gateway: Gateway, options: Reloader) -> None:
    """Wait for SIGTERM or SIGINT. Then finish the requests in flight. A second signal ends this at once."""
    loop, log = gateway.process.loop, gateway.process.log
    stop, again = asyncio.Event(), asyncio.Event()

    def stopping() -> None:
        (again if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping)
    loop.add_signal_handler(signal.SIGHUP, options.reload)
    tell_ready(os.environ)
    await stop.wait()
    options.draining = True
    within = options.config.drain_timeout
    log.info("draining", connections=gateway.status().connections, timeout_seconds=within)
    drained = loop.create_task(gateway.drain(within))
    second_signal = loop.create_task(again.wait())
    await asyncio.wait({drained, second_signal}, return_when=asyncio.FIRST_COMPLETED)
    second_signal.cancel()
    if not drained.done():
        drained.cancel()
        with suppress(asyncio.CancelledError):
            await drained
    log.info("stopped", cut_off=drained.result() if not drained.cancelled() else gateway.close())


def _unbound(flag: str, address: Address, error: OSError) -> int:
    reason = reason_of(error)
    return complain(
        "proxy", f"can't listen at {address}: {reason}; give {flag} another HOST:PORT", EXIT_FAILED
    )


def _raise_file_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
