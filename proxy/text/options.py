"""Declares options, and reads them from flags, the environment and a TOML file.

An option ``max_sessions`` is ``--max-sessions``, ``FETCHGATE_MAX_SESSIONS`` and the key ``max_sessions``. A
flag overrides the environment, the environment overrides the file, and the file overrides the default.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from proxy.text.printable import brief, printable
from proxy.text.units import did_you_mean

_PREFIX = "FETCHGATE_"
_FILE_VARIABLE = "FETCHGATE_CONFIG"
IN_FOLDER: Final = "fetchgate.toml"
"""The file in a folder that `--config` names."""
_MOST: Final = 128 << 10
"""A file of more characters is not read: most likely it is another file."""
_MOST_DOTS: Final = 500
"""How many dots a line of a file may have. `tomllib` needs seconds for a key of thousands of parts."""
_Value = TypeVar("_Value")
_ALMOST = 0.9
"""The similarity at which a variable's name counts as a misspelt option (ratio of `difflib`, 0 to 1)."""


class ConfigError(ValueError):
    """An option can't be used. The message names the option and its place, and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of an option: its names, its parser, and whether a reload applies it."""

    name: str
    metavar: str
    parse: Callable[[str], object]
    default: str | None
    """In the form that an operator writes. None if the option is required."""
    help: str
    alias: str = ""
    """A second flag for the option, such as ``-b``."""
    table: bool = False
    """Whether the option is a table in the TOML file. As a flag or variable, it is written in JSON."""
    many: bool = False
    """Whether the flag may be given several times. The value is then a list with commas, as in the file."""
    live: bool = False
    """Whether a reload applies the option: SIGHUP, or a change of the file. Others need a restart."""
    needs: str = ""
    """The name of another option without which this one has no effect."""
    parse_transparent: Callable[[str], object] | None = None
    """The parser for transparent mode, if it differs: it refuses an option that has no effect there."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return _PREFIX + self.name.upper()

    @property
    def may_name_file(self) -> bool:
        # Such names may have any bytes.
        return "FILE" in self.metavar or "DIR" in self.metavar


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The text of an option, and the place where it was set."""

    text: str
    """As it is written on the command line: TOML's ``true`` is ``on``."""
    source: str
    """``flag``, ``environment``, ``file`` or ``default``."""
    place: str
    """The flag, the variable or the file. For a default value, the flag that would change it."""
    called: str
    """What error messages call the place."""


def option(*, parse: Callable[[str], _Value], **rest: Any) -> _Value:
    """Declare an option as a field of `Config`, with the arguments of `Option`.

    It returns a dataclass field. The declared type, that of the option's value, is for mypy.
    """
    return cast("_Value", field(metadata={"option": partial(Option, parse=parse, **rest)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The base of dataclasses whose fields declare options. `proxy.command.config` has all of them."""

    removed: ClassVar[Mapping[str, str]] = {}
    """What to use in place of each removed option, by its name. If only one of its values was removed, the
    key is the name and that value: ``follow_leader fetch``."""

    def check(self, given: Mapping[str, Given]) -> None:
        """Check what no parser of a single option can check.

        Raises:
            ConfigError: the options can't be used together.
        """

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """Return the options that the fields declare, in their order."""
        return tuple(each.metadata["option"](name=each.name) for each in fields(cls) if each.metadata)


@dataclass(frozen=True, slots=True)
class OptionsFile:
    """What ``--config`` names: a file, or a folder that may have the file ``fetchgate.toml``.

    A folder is for an optional ConfigMap of Kubernetes: it is empty until somebody creates the ConfigMap.
    """

    name: str
    """Empty if none is given."""

    @classmethod
    def of(cls, flag: str | None, environ: Mapping[str, str]) -> Self:
        return cls(flag or environ.get(_FILE_VARIABLE, ""))

    @property
    def is_optional(self) -> bool:
        """Whether a folder is named. The gateway then starts without the file if it is absent or wrong."""
        try:
            return bool(self.name) and Path(self.name).is_dir()
        except OSError:  # a folder above it must not be read
            return False

    def path(self) -> str | None:
        """Return the path of the file. None if no file is named, or the folder has none."""
        if not self.is_optional:
            return self.name or None
        file = Path(self.name) / IN_FOLDER
        try:
            file.stat()
        except FileNotFoundError:
            return None
        except OSError:
            pass  # whoever reads the file reports why it can't be read
        return str(file)

    def others(self) -> list[str]:
        """Return the names of other files, not hidden, that are in the folder in place of the file.

        They are a mistake: a ConfigMap with a wrong key has no effect.
        """
        if not self.is_optional or self.path():
            return []
        try:
            files = [each.name for each in Path(self.name).iterdir() if each.is_file()]
        except OSError:  # the folder must not be listed
            return []
        return sorted(name for name in files if not name.startswith("."))


def find(
    options: Sequence[Option],
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    file: str | None,
    known: Sequence[Option],
    removed: Mapping[str, str],
) -> dict[str, Given]:
    """Find the text of each option in the source with the highest precedence.

    `known` are all options that may be in the file. For `removed`, see `Section.removed`.

    Raises:
        ConfigError: a required option is missing, or the file can't be used.
    """
    written = _read_toml(file, known, removed) if file else {}
    return {option.name: _find(option, flags, environ, written, file) for option in options}


def told_removed(removed: Mapping[str, str], key: str, called: str) -> str:
    """Return the error for an option, or a value, that was removed. Empty if it was not.

    `key` is one of `Section.removed`, and `called` what the operator wrote.
    """
    return f"{called} was removed: {removed[key]}" if key in removed else ""


def refuse_removed(removed: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Check that the environment sets no option that was removed.

    Raises:
        ConfigError: it sets one.
    """
    for name in removed:
        if (variable := _PREFIX + name.upper()) in environ:
            raise ConfigError(told_removed(removed, name, variable))


def parse(
    options: Sequence[Option], given: Mapping[str, Given], removed: Mapping[str, str]
) -> dict[str, Any]:
    """Parse the given texts of options, and return the values of all options. See `find`.

    Raises:
        ConfigError: an option can't be used.
    """
    values: dict[str, Any] = {}
    for option in options:
        found = given[option.name]
        try:
            if not option.may_name_file:
                found.text.encode()
            values[option.name] = option.parse(found.text)
        except UnicodeEncodeError:  # a flag or a variable with other bytes than UTF-8
            raise ConfigError(f"{found.called}: {brief(printable(found.text))} is not UTF-8") from None
        except ValueError as error:
            told = told_removed(
                removed,
                f"{option.name} {found.text.lower()}",
                f"{found.called}: {brief(printable(found.text))}",
            )
            raise ConfigError(told or f"{found.called}: {brief(str(error))}") from None
    return values


def misspelt(environ: Mapping[str, str], options: Sequence[Option]) -> list[str]:
    """Return a warning for each environment variable that is probably a misspelt option.

    Misspelt options have no effect. Not every unknown variable that begins with FETCHGATE_ is a mistake:
    Kubernetes sets some of them for a service named fetchgate.
    """
    known = [_FILE_VARIABLE, *(option.variable for option in options)]
    ours = sorted(name for name in environ.keys() - set(known) if name.startswith(_PREFIX))
    if not ours:
        return []
    from difflib import get_close_matches  # noqa: PLC0415 - only mistakes need it

    return [
        f"{name} is not an option and is ignored; did you mean {close}?"
        for name in ours
        for close in get_close_matches(name, known, n=1, cutoff=_ALMOST)
    ]


def _find(
    option: Option,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    written: Mapping[str, str],
    file: str | None,
) -> Given:
    flag, variable = option.flag, option.variable
    if (text := flags.get(option.name)) is not None:
        return Given(text=text, source="flag", place=flag, called=flag)
    if variable in environ:
        return Given(text=environ[variable], source="environment", place=variable, called=variable)
    if option.name in written:
        called = f"{option.name} in {file}"
        return Given(text=written[option.name], source="file", place=str(file), called=called)
    if option.default is None:
        raise ConfigError(
            f"{option.flag} is missing: give {option.flag} {option.metavar}, {option.variable}, "
            f"or the key {option.name} in the file of --config"
        )
    return Given(text=option.default, source="default", place=flag, called=flag)


def _read_toml(file: str, known: Sequence[Option], removed: Mapping[str, str]) -> dict[str, str]:
    import tomllib  # noqa: PLC0415 - most gateways have no file

    try:
        document = tomllib.loads(_content(Path(file)))
        return {key: _toml_text(file, key, value, known, removed) for key, value in document.items()}
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} is not TOML: {brief(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"--config {file}: its lists or tables are nested too deeply") from None
    except ValueError:  # int() and str() refuse thousands of digits
        raise ConfigError(f"--config {file}: a number has thousands of digits") from None


def _content(file: Path) -> str:
    if file.is_fifo():  # reading it would block the gateway until somebody writes
        raise ConfigError(f"--config {file}: it is a pipe, which can't be read again; give a file")
    with file.open(encoding="utf-8-sig") as opened:
        text = opened.read(_MOST + 1)
    if len(text) > _MOST:
        raise ConfigError(f"--config {file}: it is longer than {_MOST >> 10} KiB")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MOST_DOTS:
            raise ConfigError(
                f"--config {file}: line {number} has more than {_MOST_DOTS} dots; write a long list in "
                "several lines"
            )
    return text


def _toml_text(
    file: str, key: str, value: object, known: Sequence[Option], removed: Mapping[str, str]
) -> str:
    # A TOML value becomes the text that somebody would write on the command line.
    names = [option.name for option in known]
    if isinstance(value, dict) and any(option.name == key and option.table for option in known):
        return json.dumps(value, default=str)
    if key not in names and isinstance(value, dict):
        key = brief(printable(key))
        raise ConfigError(f"[{key}] in {file}: tables are not allowed; write options without [{key}]")
    if told := told_removed(removed, key.replace("-", "_"), f"{key} in {file}"):
        raise ConfigError(told)
    if key not in names:
        meant = did_you_mean(key.replace("-", "_"), names)
        raise ConfigError(f"{brief(printable(key))} in {file}: no such option{meant}")
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return ",".join(str(item) for item in value)
    raise ConfigError(f"{key} in {file}: give a string, a number, or a list of them")
