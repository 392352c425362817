"""Declares options, and reads them from flags, the environment and a TOML file.

An option ``max_sessions`` is ``--max-sessions``, ``FETCHGATE_MAX_SESSIONS`` and the key ``max_sessions``. A
flag overrides the environment, the environment overrides the file, and the file overrides the default.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar, cast

from proxy.text.printable import brief, printable
from proxy.text.units import did_you_mean
from proxy.text.values import listed

_PREFIX = "FETCHGATE_"
_FILE_VARIABLE = "FETCHGATE_CONFIG"
IN_FOLDER: Final = "fetchgate.toml"
"""The file in a folder that `--config` names."""
_MOST: Final = 128 << 10
"""A file of more characters is not read: most likely it is another file."""
_MOST_DOTS: Final = 500
"""How many dots a line of a file may have. `tomllib` needs seconds for a key of thousands of parts."""
_Value = TypeVar("_Value")
Flags: TypeAlias = Mapping[str, str | Sequence[str] | None]
"""What argparse read, by the names of options: texts, several for flags that may be given several times."""
_ALMOST = 0.9
"""The similarity at which a variable's name counts as a misspelt option (ratio of `difflib`, 0 to 1)."""


class ConfigError(ValueError):
    """An option can't be used. The message names the option and its place, and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of an option: its names, its parser, and whether a reload applies it."""

    name: str
    """The key in the file, from which the flag and the variable are made."""
    parse: Callable[[str], object]
    help: str
    metavar: str = ""
    """Empty for a switch: its flag has no value, and means ``on``."""
    default: str | None = None
    """In the form that an operator writes. If None, the value is None, or () with `repeat`."""
    required: bool = False
    written: str = ""
    """The flag, if it is not made from the name."""
    alias: str = ""
    """A second flag for the option, such as ``-b``."""
    alone: str = ""
    """What the flag means without a value. If empty, it needs one."""
    words: tuple[str, ...] = ()
    """All values, if the metavar does not have them."""
    table: bool = False
    """Whether the option is a table in the TOML file. As a flag or variable, it is written in JSON."""
    many: bool = False
    """Whether the flag may be given several times. The value is then a list with commas, as in the file."""
    repeat: bool = False
    """Whether the option may have several values, also with commas. The value is then a tuple. Only a
    variable, and a string in the file, is divided at its commas."""
    secret: bool = False
    """Whether no message may have the value. It may have any bytes."""
    live: bool = False
    """Whether a reload applies the option: SIGHUP, or a change of the file. Others need a restart."""
    needs: str = ""
    """The name of another option without which this one has no effect."""
    parse_transparent: Callable[[str], object] | None = None
    """The parser for transparent mode, if it differs: it refuses an option that has no effect there."""

    @property
    def flag(self) -> str:
        return self.written or "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return _PREFIX + self.name.upper()

    @property
    def may_be_bytes(self) -> bool:
        """Whether the text may have other bytes than UTF-8, as names of files do."""
        return self.secret or "FILE" in self.metavar or "DIR" in self.metavar

    @property
    def default_texts(self) -> tuple[str, ...]:
        return () if self.default is None else (self.default,)

    def value(self, texts: Sequence[str]) -> object:
        """Parse the texts that were given."""
        if self.repeat:
            return tuple(map(self.parse, texts))
        return self.parse(texts[0]) if texts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The text of an option, and the place where it was set."""

    texts: tuple[str, ...]
    """As on the command line: TOML's ``true`` is ``on``. There are several, or none, only with `repeat`, or
    if the option has no default."""
    source: str
    """``flag``, ``environment``, ``file`` or ``default``."""
    place: str
    """The flag, the variable or the file. For a default value, the flag that would change it."""
    called: str
    """What error messages call the place."""

    @property
    def text(self) -> str:
        return ",".join(self.texts)


def option(*, parse: Callable[[str], _Value], **rest: Any) -> _Value:
    """Declare an option as a field of `Config`, with the arguments of `Option`.

    It returns a dataclass field. The declared type, that of the option's value, is for mypy.
    """
    declared = partial(Option, parse=parse, **rest)
    unset = declared(name="")
    if unset.required:
        return cast("_Value", field(metadata={"option": declared}))
    default = partial(unset.value, unset.default_texts)
    return cast("_Value", field(default_factory=default, metadata={"option": declared}))


def repeated(*, parse: Callable[[str], _Value], **rest: Any) -> tuple[_Value, ...]:
    """Declare an option that may have several values (`Option.repeat`)."""
    return cast("tuple[_Value, ...]", option(parse=parse, repeat=True, **rest))


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
    flags: Flags,
    environ: Mapping[str, str],
    file: str | None,
    known: Sequence[Option],
    removed: Mapping[str, str],
) -> dict[str, Given]:
    """Find the texts of each option in the source with the highest precedence.

    `known` are all options that may be in the file. For `removed`, see `Section.removed`.

    Raises:
        ConfigError: a required option is missing, or the file can't be used.
    """
    written = _read_toml(file, known, removed) if file else {}
    return {option.name: _find(option, flags, environ, written, file) for option in options}


def refuse_pipe(file: str) -> None:
    """Check that a file can be read more than once. A pipe would block a gateway until somebody writes.

    Raises:
        ConfigError: it is a pipe.
    """
    with suppress(OSError):  # whoever reads the file reports why it can't be read
        if Path(file).is_fifo():
            raise ConfigError(f"--config {file}: it is a pipe, which can't be read again; give a file")


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
            if not option.may_be_bytes:
                found.text.encode()
            values[option.name] = option.value(found.texts)
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


def check_needs(options: Sequence[Option], values: Mapping[str, Any]) -> None:
    """Check that no option is set that has no effect without another one (`Option.needs`).

    Raises:
        ConfigError: one is set.
    """
    named = {option.name: option for option in options}
    for option in options:
        if option.needs and values[option.name] and not values[option.needs]:
            needed = named[option.needs]
            give = f"{needed.flag} {needed.metavar.removesuffix('|off')}".strip()
            raise ConfigError(f"{option.flag} has no effect alone: give {give} as well")


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
    flags: Flags,
    environ: Mapping[str, str],
    written: Mapping[str, tuple[str, ...]],
    file: str | None,
) -> Given:
    flag, variable = option.flag, option.variable
    if (given := flags.get(option.name)) is not None:
        texts = (given,) if isinstance(given, str) else tuple(given)
        return Given(texts=_one(option, texts), source="flag", place=flag, called=flag)
    if variable in environ:
        text = environ[variable]
        texts = tuple(listed(text)) if option.repeat else (text,)
        return Given(texts=texts, source="environment", place=variable, called=variable)
    if option.name in written:
        texts, called = _one(option, written[option.name]), f"{option.name} in {file}"
        return Given(texts=texts, source="file", place=str(file), called=called)
    if option.required:
        raise ConfigError(
            f"{option.flag} is missing: give {option.flag} {option.metavar}, {option.variable}, "
            f"or the key {option.name} in the file of --config"
        )
    return Given(texts=option.default_texts, source="default", place=flag, called=flag)


def _one(option: Option, texts: tuple[str, ...]) -> tuple[str, ...]:
    return texts if option.repeat else (",".join(texts),)


def _read_toml(file: str, known: Sequence[Option], removed: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    import tomllib  # noqa: PLC0415 - most gateways have no file

    try:
        document = tomllib.loads(_content(Path(file)))
        return {key: _toml_texts(file, key, value, known, removed) for key, value in document.items()}
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


def _toml_texts(
    file: str, key: str, value: object, known: Sequence[Option], removed: Mapping[str, str]
) -> tuple[str, ...]:
    # A TOML value becomes the texts that somebody would write on the command line.
    names = [option.name for option in known]
    declared = [option for option in known if option.name == key]
    if isinstance(value, dict) and any(option.table for option in declared):
        return (json.dumps(value, default=str),)
    if key not in names and isinstance(value, dict):
        key = brief(printable(key))
        raise ConfigError(f"[{key}] in {file}: tables are not allowed; write options without [{key}]")
    if told := told_removed(removed, key.replace("-", "_"), f"{key} in {file}"):
        raise ConfigError(told)
    if key not in names:
        meant = did_you_mean(key.replace("-", "_"), names)
        raise ConfigError(f"{brief(printable(key))} in {file}: no such option{meant}")
    if isinstance(value, bool):
        return ("on" if value else "off",)
    if isinstance(value, str) and any(option.repeat for option in declared):
        return tuple(listed(value))
    if isinstance(value, (str, int, float)):
        return (str(value),)
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return tuple(str(item) for item in value)
    raise ConfigError(f"{key} in {file}: give a string, a number, or a list of them")
